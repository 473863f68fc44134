"""Run openai-python's own tests with plain and with wrapped clients, and compare test by test.

    python tests/dropin/run.py                        this interpreter's openai
    python tests/dropin/run.py --openai "2.54.*"      in a virtual environment made for it
    python tests/dropin/run.py --suite tests/lib/chat

The tests come from the source distribution of the very version that is installed. Exits non-zero
when a wrapped client fails a test that the plain one passes, other than the known four.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1] / "src"
SUITES = (
    "tests/test_client.py",
    "tests/test_streaming.py",
    "tests/test_response.py",
    "tests/test_legacy_response.py",
    "tests/test_module_client.py",
)
EXPECTED = frozenset(
    f"tests.test_client.{cls}::{test}"
    for cls in ("TestOpenAI", "TestAsyncOpenAI")
    for test in (
        "test_retrying_timeout_errors_doesnt_leak",
        "test_retrying_status_errors_doesnt_leak",
    )
)
"""These assert that the transport's class is defined in the http library, and read its pool."""


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


def outcomes(root: Path, python: str, suites: list[str], *, wrapped: bool) -> dict[str, str]:
    """Test id -> passed | failed | skipped."""
    report = Path(tempfile.mkdtemp()) / "report.xml"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(SOURCE)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [python, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    command += ["--tb=short", f"--junitxml={report}"]
    if wrapped:
        command += ["-p", "wrap_plugin"]
    done = subprocess.run(
        [*command, *suites], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    log = report.with_name("wrapped.log" if wrapped else "plain.log")
    log.write_text(done.stdout + done.stderr)
    if not report.exists():
        print(done.stdout[-3000:], done.stderr[-3000:])
        raise SystemExit(f"pytest gave no report (exit {done.returncode})")
    print(f"{'wrapped' if wrapped else 'plain  '}: {done.stdout.strip().splitlines()[-1]}  [{log}]")
    results: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        failed = kinds & {"failure", "error"}
        state = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
        name = f"{case.get('classname')}::{case.get('name')}"
        if results.get(name) != "failed":  # a teardown error comes as a second entry
            results[name] = state
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--openai", help="a version like 2.54.*; default: the one installed here")
    parser.add_argument("--suite", action="append", help="default: the client's own five files")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "headway-dropin"
    )
    options = parser.parse_args()
    python = environment_for(options.openai, options.cache) if options.openai else sys.executable
    version = version_of(python)
    root = source_of(version, python, options.cache)
    suites = [s for s in options.suite or SUITES if (root / s).exists()]
    plain = outcomes(root, python, suites, wrapped=False)
    if "passed" not in plain.values():
        raise SystemExit("no test passed with plain clients: nothing to compare with")
    wrapped = outcomes(root, python, suites, wrapped=True)
    worse = sorted(
        name
        for name, state in plain.items()
        if name not in wrapped or (state == "passed" and wrapped[name] != "passed")
    )
    unexpected = [name for name in worse if name.partition("[")[0] not in EXPECTED]
    print(f"openai {version}: {len(plain)} tests, worse when wrapped: {len(worse)}")
    for name in worse:
        print(f"  {'UNEXPECTED' if name in unexpected else 'expected  '} {name}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    raise SystemExit(main())
