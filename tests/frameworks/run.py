"""Run agent frameworks through a failover, each in an environment of its own.

    python -m tests.frameworks.run                  all of them, one after the other
    python -m tests.frameworks.run haystack autogen
    python -m tests.frameworks.run --fresh          with the newest versions there are
    python -m tests.frameworks.run --record         and write what was seen into results.json, from
                                                    which the tables of docs/reference are made

Environments stay in .venvs (2 GB with all), with the log of each run. They are made with uv where
there is one, else with pip. Exits non-zero when anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.frameworks.registry import FRAMEWORKS, Framework

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
VENVS = ROOT / ".venvs"
RESULTS = HERE / "results.json"
PARTS = ("ways", "spans", "retries")
PART_S = 600


def _uv() -> str | None:
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return shutil.which("uv", path=beside)


def environment(framework: Framework, *, fresh: bool) -> Path:
    """The interpreter of the framework's environment, with this checkout installed as a wheel."""
    root, uv = VENVS / framework.name, _uv()
    python = root / "bin" / "python"
    if fresh:
        shutil.rmtree(root, ignore_errors=True)
    install = (
        [uv, "pip", "install", "-q", "--python", str(python)]
        if uv
        else [str(python), "-m", "pip", "install", "-q"]
    )
    if not (root / "ready").exists():
        shutil.rmtree(root, ignore_errors=True)
        make = (
            [uv, "venv", "-q", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
        )
        subprocess.run([*make, str(root)], check=True)
        # Together, so that one set of versions serves both, or the resolver says why not.
        subprocess.run([*install, *framework.packages, str(ROOT)], check=True)
        (root / "ready").touch()
    anew = ["--reinstall-package", "headway"] if uv else ["--force-reinstall"]
    subprocess.run([*install, "--no-deps", *anew, str(ROOT)], check=True)
    return python


def run(framework: Framework, python: Path) -> tuple[dict[str, Any], list[str]]:
    """What was seen, and what failed."""
    seen: dict[str, Any] = {}
    failed: list[str] = []
    for part in PARTS:
        log = VENVS / framework.name / f"{part}.log"
        with tempfile.TemporaryDirectory() as directory, log.open("w") as stream:
            out = Path(directory) / "out.json"
            try:
                # -P: this folder's modules must not stand in front of the framework's.
                code = subprocess.run(
                    [str(python), "-P", str(HERE / "child.py"), framework.name, part, str(out)],
                    cwd=directory,
                    env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=PART_S,
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
            found = json.loads(out.read_text()) if out.exists() else {}
        if code != 0 or not found:
            failed.append(part)
            print(f"{framework.name} {part} FAILED: {log}\n{log.read_text()[-4000:]}")
        seen["versions"] = found.pop("versions", seen.get("versions"))
        if part in found or "ways" in found:
            seen[part] = found.get("ways", found.get(part))
    return seen, failed


def _line(framework: Framework, seen: dict[str, Any], failed: list[str]) -> str:
    versions = seen.get("versions") or {}
    name = framework.packages[0].partition("[")[0]
    what = f"{framework.title} {versions.get(name)} (openai {versions.get('openai')})"
    if failed:
        return f"FAILED {what}: {', '.join(failed)}"
    return f"ok     {what}: {', '.join(seen['ways'])}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="framework", help=", ".join(FRAMEWORKS))
    parser.add_argument("--fresh", action="store_true", help="make the environments anew")
    parser.add_argument("--record", action="store_true", help="write results.json and the tables")
    options = parser.parse_args()
    if unknown := set(options.names) - set(FRAMEWORKS):
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(FRAMEWORKS)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failures = 0
    for name in options.names or FRAMEWORKS:
        framework = FRAMEWORKS[name]
        seen, failed = run(framework, environment(framework, fresh=options.fresh))
        print(_line(framework, seen, failed), flush=True)
        failures += bool(failed)
        if not failed:
            results[name] = seen
    if options.record:
        ordered = {name: results[name] for name in FRAMEWORKS if name in results}
        RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
        subprocess.run(
            [sys.executable, "-m", "tests.house.tables", "--write"], cwd=ROOT, check=True
        )
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
