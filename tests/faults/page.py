"""docs/reference/faults.md: every fault, what a plain client does and what a wrapped one does.

    python -m tests.faults.page            # list them
    python -m tests.faults.page --write    # play all of them, to both, and write the page

Both columns are what was seen in that run.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.faults.bench import FAMILY, FAULTS, Fault, play

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "reference" / "faults.md"

HEAD = """\
# Faults

What networks, gateways and providers do to a call, and what comes of it. Every row is a test under `tests/faults`,
which plays it to a sync and to an async client, on openai 3 over httpx2 (`make test`) and on openai 2.54 over legacy
httpx (`make test-legacy`); rows about streams in six ways: `create(stream=True)`, `.stream()`,
`with_raw_response`, `with_streaming_response`, and the Responses API both ways.

Both columns were written by `make faults` from what it saw: openai {openai} over {family} {version}, sync unless the row
is about event loops, with the SDK's default of two retries. The first endpoint, A, is the client's own; B and C
are its fallbacks, where the row has any. "hello" is the answer; what stands before the semicolon is what the
caller gets, what stands after it is how many requests each endpoint received.
"""


def load() -> dict[str, Fault]:
    """The register, with all the modules that fill it."""
    for path in sorted(HERE.glob("test_*.py")):
        importlib.import_module(f"tests.faults.{path.stem}")
    return FAULTS


def seen(name: str, plain: bool) -> str:
    """Play one fault; what came of it, in words."""
    os.environ.pop("HEADWAY_POLICY", None)
    found = load()[name]
    return play(found, found.colours[0], found.ways[0], plain=plain).words


def row(found: Fault, plain: str, wrapped: str) -> str:
    cells = [found.id, found.title, plain, wrapped]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def kept() -> dict[str, str]:
    """The rows that the page has now."""
    lines = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    return {line.split(" ")[1]: line for line in lines if line.startswith("| ")}


def written(jobs: int, only: Collection[str]) -> str:
    """The page; of the rows that are not asked for, as they were."""
    known = kept() if only else {}
    import openai

    faults = load()
    version = importlib.import_module(FAMILY).__version__
    lines = [HEAD.format(openai=openai.__version__, family=FAMILY, version=version)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        runs = {
            (name, plain): pool.submit(seen, name, plain)
            for name in faults
            if name not in known or name in only
            for plain in (True, False)
        }
        section = ""
        for name, found in faults.items():
            if found.section != section:
                section = found.section
                lines += ["", f"## {section}", ""]
                lines += ["| | fault | plain client | wrapped |", "|---|---|---|---|"]
            played = (name, True) in runs
            results = [runs[name, plain].result() for plain in (True, False)] if played else []
            lines.append(row(found, *results) if played else known[name])
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=[], help="play these, and what is missing")
    options = parser.parse_args()
    if not options.write:
        for found in load().values():
            print(f"{found.id:8} {found.title}")
        return
    PAGE.write_text(written(options.jobs, options.only), encoding="utf-8")
    print(f"{PAGE}: {len(FAULTS)} faults")


if __name__ == "__main__":
    main()
