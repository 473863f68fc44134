"""Run openai-python's own tests with plain and with wrapped clients, and compare test by test.

    python tests/dropin/run.py                        this interpreter's openai, all suites
    python tests/dropin/run.py --openai "2.54.*"      in a virtual environment made for it
    python tests/dropin/run.py --suite client         one of: client, lib, resources
    python tests/dropin/run.py --suite tests/lib/chat
    python tests/dropin/run.py --record               write the figures into the documents

The tests come from the source distribution of the very version that is installed; those of resources
talk to a mock server (`mock_api.py`). Exits non-zero when a wrapped client fails a test that the plain
one passes, other than the known four.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
PAGE = HERE.parents[1] / "docs" / "reference" / "dropin.md"
sys.path.insert(0, str(HERE))  # it is run as a script

from mock_api import document_for, mock_server  # noqa: E402


class Suite(NamedTuple):
    """Tests of the SDK that are run together."""

    paths: tuple[str, ...]
    modes: tuple[str, ...] = ("wrapped", "policy")
    """wrapped: as without a policy. policy: under an enforced one."""
    needs_mock: bool = False


RESOURCES = (
    *("audio", "batches", "chat", "embeddings", "files", "images", "responses", "vector_stores"),
)
SUITES = {
    "client": Suite(
        (
            "tests/test_client.py",
            "tests/test_streaming.py",
            "tests/test_response.py",
            "tests/test_legacy_response.py",
            "tests/test_module_client.py",
        ),
        modes=("wrapped",),  # they count the SDK's own retries, which a policy owns
    ),
    # Some of these expect the mock server. Under a policy, broken streams end in our own errors.
    "lib": Suite(("tests/lib",), modes=("wrapped",), needs_mock=True),
    "resources": Suite(
        tuple(
            f"tests/api_resources/{name}"
            for resource in RESOURCES
            for name in (resource, f"test_{resource}.py")
        ),
        needs_mock=True,
    ),
}
EXPECTED = frozenset(
    f"tests.test_client.{cls}::{test}"
    for cls in ("TestOpenAI", "TestAsyncOpenAI")
    for test in (
        "test_retrying_timeout_errors_doesnt_leak",
        "test_retrying_status_errors_doesnt_leak",
    )
)
"""These assert that the transport's class is defined in the http library, and read its pool."""
EXPECTED_BY_POLICY = re.compile(r"tests\.api_resources\..*(_overload_2|TestSpeech|TestAsyncSpeech)")
"""The mock server answers calls for a stream with a document: under a policy an error, not an empty
stream."""


SUITE_NEEDS = (
    *("pytest>=8.4", "pytest-asyncio>=1.2", "inline-snapshot", "nest-asyncio", "rich", "trio"),
    *("respx", "aiohttp", "httpx", "websockets<16", "botocore", "azure-identity", "Pillow"),
    "numpy",
)
OURS = tuple(
    need
    for need in tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"][
        "dependencies"
    ]
    if not need.startswith(("openai", "httpx2"))  # what is under test, and what comes with it
)


def environment_for(spec: str, cache: Path) -> str:
    """The interpreter of a virtual environment with this openai, what its tests and we need."""
    root = cache / f"venv-openai-{spec.replace('*', 'x')}"
    python = str(root / "bin" / "python")
    if not (root / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(root)], check=True)
        install = [python, "-m", "pip", "install", "-q", f"openai=={spec}"]
        subprocess.run([*install, *SUITE_NEEDS, *OURS], check=True)
        (root / "ready").touch()
    return python


def version_of(python: str) -> str:
    code = "import openai; print(openai.__version__)"
    return subprocess.run(
        [python, "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def source_of(version: str, python: str, cache: Path) -> Path:
    """The unpacked source distribution of this version of openai."""
    root = cache / f"openai-{version}"
    if not root.exists():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                *(python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "openai"),
                *("-d", str(cache), f"openai=={version}"),
            ],
            check=True,
        )
        with tarfile.open(cache / f"openai-{version}.tar.gz") as archive:
            archive.extractall(cache, filter="data")
    return root


def outcomes(root: Path, python: str, paths: list[str], mode: str, mock: str) -> dict[str, str]:
    """Test id -> passed | failed | skipped. `mode`: plain, wrapped or policy."""
    report = Path(tempfile.mkdtemp(prefix="headway-dropin-")) / "report.xml"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(SOURCE)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HEADWAY_DROPIN": mode,
    }
    if mock:
        environment["TEST_API_BASE_URL"] = mock
    command = [python, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    command += ["--tb=short", f"--junitxml={report}"]
    if mode != "plain":
        command += ["-p", "wrap_plugin"]
    done = subprocess.run(
        [*command, *paths], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    log = report.with_name(f"{mode}.log")
    log.write_text(done.stdout + done.stderr)
    if not report.exists():
        print(done.stdout[-3000:], done.stderr[-3000:])
        raise SystemExit(f"pytest gave no report (exit {done.returncode})")
    print(f"  {mode:8}{done.stdout.strip().splitlines()[-1]}  [{log}]", flush=True)
    results: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        failed = kinds & {"failure", "error"}
        state = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
        name = f"{case.get('classname')}::{case.get('name')}"
        if results.get(name) != "failed":  # a teardown error comes as a second entry
            results[name] = state
    return results


class Finding(NamedTuple):
    """One suite in one mode, against the plain client."""

    suite: str
    mode: str
    plain: Counter[str]
    wrapped: Counter[str]
    worse: list[str]
    unexpected: list[str]


def is_expected(test: str, mode: str) -> bool:
    """Whether a test can't pass with a wrapped client."""
    if mode == "policy" and EXPECTED_BY_POLICY.match(test):
        return True
    return test.partition("[")[0] in EXPECTED


def compare(
    name: str, suite: Suite, root: Path, python: str, options: argparse.Namespace
) -> Iterator[Finding]:
    """Run a suite with plain and with wrapped clients."""
    paths = [path for path in suite.paths if (root / path).exists()]
    print(f"{name}: {' '.join(paths)}", flush=True)
    with contextlib.ExitStack() as stack:
        mock = ""
        if suite.needs_mock:
            document = options.spec or document_for(version_of(python), python, options.cache)
            mock = stack.enter_context(mock_server(document, options.cache))
        modes = ("plain", *suite.modes)
        with ThreadPoolExecutor(options.jobs) as pool:
            runs = pool.map(lambda mode: outcomes(root, python, paths, mode, mock), modes)
            results = dict(zip(modes, runs, strict=True))
        plain = results.pop("plain")
        if "passed" not in plain.values():
            raise SystemExit("no test passed with plain clients: nothing to compare with")
        for mode, wrapped in results.items():
            worse = sorted(
                test
                for test, state in plain.items()
                if test not in wrapped or (state == "passed" and wrapped[test] != "passed")
            )
            unexpected = [test for test in worse if not is_expected(test, mode)]
            counts = (Counter(plain.values()), Counter(wrapped.values()))
            yield Finding(name, mode, *counts, worse, unexpected)


def record(version: str, findings: list[Finding]) -> None:
    """Write the figures of this version into the documents."""
    lines = [
        "| suite | clients | passed | failed | skipped | worse than plain |",
        "| --- " * 6 + "|",
    ]
    for finding in findings:
        if finding.mode == "wrapped":
            lines.append(_line(finding.suite, "plain", finding.plain, "-"))
        lines.append(_line(finding.suite, finding.mode, finding.wrapped, str(len(finding.worse))))
    table = "\n".join(lines) + "\n"
    place = re.compile(rf"(<!-- figures: {re.escape(version)} -->\n)(.*?)(<!-- end -->)", re.DOTALL)
    text = PAGE.read_text()
    if not place.search(text):
        raise SystemExit(f"{PAGE} has no place for the figures of {version}")
    PAGE.write_text(place.sub(lambda found: f"{found[1]}{table}{found[3]}", text))


def _line(suite: str, mode: str, counts: Counter[str], worse: str) -> str:
    cells = [suite, mode, *(f"{counts[state]:,}" for state in ("passed", "failed", "skipped"))]
    return f"| {' | '.join([*cells, worse])} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--openai", help="a version like 2.54.*; default: the one installed here")
    parser.add_argument(
        "--suite", action="append", help=f"{', '.join(SUITES)}, or a path of theirs"
    )
    parser.add_argument("--spec", type=Path, help="the OpenAPI document for the mock server")
    parser.add_argument("--jobs", type=int, default=2, help="how many runs at once")
    parser.add_argument("--record", action="store_true", help=f"write the figures into {PAGE.name}")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "headway-dropin"
    )
    options = parser.parse_args()
    python = environment_for(options.openai, options.cache) if options.openai else sys.executable
    version = version_of(python)
    root = source_of(version, python, options.cache)
    findings: list[Finding] = []
    for name in options.suite or SUITES:
        suite = SUITES.get(name) or Suite((name,), needs_mock="api_resources" in name)
        for finding in compare(name, suite, root, python, options):
            findings.append(finding)
            for test in finding.worse:
                mark = "UNEXPECTED" if test in finding.unexpected else "expected"
                print(f"  {mark:11}{test}", flush=True)
    total = sum(len(finding.worse) for finding in findings)
    unexpected = sum(len(finding.unexpected) for finding in findings)
    print(f"openai {version}: worse when wrapped: {total}, unexpected: {unexpected}")
    if options.record:
        record(version, findings)
    return 1 if unexpected else 0


if __name__ == "__main__":
    raise SystemExit(main())
