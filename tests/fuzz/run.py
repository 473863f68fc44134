"""A great many damaged streams through the observer: `make fuzz`.

    python -m tests.fuzz.run [--cases 1000000] [--seed N] [--jobs 2]

Each case is a recorded stream, damaged, observed whole and in pieces. The seed of a failing case is
printed: `--only SEED` runs it again.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import random
import sys
import time

from tests.fuzz import check as checks
from tests.fuzz.mutate import case, cuts

BLOCK = 5_000


def one(seed: int) -> str:
    """Run the case of a seed; what the stream came to."""
    rng = random.Random(seed)
    surface, stream = case(rng)
    splits = [cuts(rng, len(stream)) for _ in range(rng.choice((1, 1, 2)))]
    try:
        verdict = checks.check(stream, surface, splits, hide=rng.random() < 0.3)
        if rng.random() < 0.05:
            encoding = rng.choice(checks.ENCODINGS)
            checks.check_compressed(stream, surface, splits[0], encoding)
    except BaseException as exc:
        raise AssertionError(f"case {seed}: {type(exc).__name__}: {exc}") from exc
    outcome = verdict[2]
    return str(outcome.error_type or outcome.kind.value)  # type: ignore[attr-defined]


def block(seeds: range) -> collections.Counter[str]:
    """Run many."""
    return collections.Counter(map(one, seeds))


def main() -> int:
    """Run all, and say what they came to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="the one case of this seed")
    args = parser.parse_args()
    if args.only is not None:
        print(one(args.only))
        return 0
    first = args.seed * 2**32
    blocks = [
        range(first + start, first + min(start + BLOCK, args.cases))
        for start in range(0, args.cases, BLOCK)
    ]
    began, done = time.monotonic(), 0
    came_to: collections.Counter[str] = collections.Counter()
    print(f"{args.cases:,} cases, seed {args.seed}", flush=True)
    with multiprocessing.Pool(args.jobs) as pool:
        for found in pool.imap_unordered(block, blocks):
            came_to += found
            done += found.total()
            if done % (BLOCK * 20) == 0:
                print(f"{done:>10,}  {time.monotonic() - began:6.0f} s", flush=True)
    print(f"{done:,} cases in {time.monotonic() - began:.0f} s, none failed. They came to:")
    for name, count in came_to.most_common():
        print(f"{count:>10,}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
