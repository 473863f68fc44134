"""Coverage-guided fuzzing of the observer with atheris: `make fuzz`.

    python -m tests.fuzz.guided [--seconds 600] [--corpus DIR]

atheris (libFuzzer) keeps what reaches new code, and goes on from there; it begins with the recorded
streams. An input is two bytes of choices, eight that seed the cuts, and the stream.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["headway.transport", "headway.quirks"]):
    from tests.fuzz import check as checks
from tests.fuzz.corpus import RECORDED
from tests.fuzz.mutate import cuts

ENCODINGS = ("gzip", "deflate", "raw deflate")
LENGTH_MAX = 8192


def run(data: bytes) -> None:
    """One input."""
    if len(data) < 10:
        return
    surface = checks.SURFACES[data[0] % len(checks.SURFACES)]
    rng, stream = random.Random(data[2:10]), data[10:]
    split = cuts(rng, len(stream))
    checks.check(stream, surface, [split], hide=bool(data[1] & 1))
    if data[1] & 6 == 6:
        checks.check_compressed(stream, surface, split, ENCODINGS[data[1] % 3])


def seeds(directory: Path) -> None:
    """Write what to begin with."""
    for index, (surface, stream) in enumerate(RECORDED.values()):
        choices = bytes((checks.SURFACES.index(surface), index))
        (directory / f"recorded-{index}").write_bytes(choices + index.to_bytes(8) + stream)


def main() -> None:
    """Fuzz for a while. Ends the process: 0, or libFuzzer's code for a failure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument(
        "--corpus", type=Path, help="where to keep what was found (default: nowhere)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = args.corpus or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        seeds(directory)
        options = [
            f"-max_total_time={args.seconds}",
            f"-max_len={LENGTH_MAX}",
            f"-artifact_prefix={directory}/",
            "-print_final_stats=1",
            "-close_fd_mask=0",
        ]
        atheris.Setup([sys.argv[0], *options, str(directory)], run)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
