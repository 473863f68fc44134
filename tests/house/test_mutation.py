"""Nothing survives mutation testing of the core unargued."""

from __future__ import annotations

from tests.house.mutation import arguments, figures


def test_every_survivor_is_argued() -> None:
    argued = {name for groups in arguments().values() for g in groups for name in g["mutants"]}

    assert [n for found in figures().values() for n in found["survivors"] if n not in argued] == []


def test_nothing_is_argued_that_does_not_survive() -> None:
    survivors = {name for found in figures().values() for name in found["survivors"]}

    assert [
        name
        for groups in arguments().values()
        for group in groups
        for name in group["mutants"]
        if name not in survivors
    ] == []


def test_nine_of_ten_are_killed() -> None:
    known = figures().values()

    assert sum(f["killed"] for f in known) >= 0.9 * sum(f["mutants"] for f in known)
