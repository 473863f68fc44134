"""The parts of a shared cost add up to it, to the last digit."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from headway.cost import PICO_USD, ZERO
from headway.record.shared import Joint, split
from headway.task.ledger import Settlement

money = st.decimals(min_value=0, max_value=10_000, allow_nan=False, allow_infinity=False, places=15)
sources = st.dictionaries(st.sampled_from(["provider", "local", "estimated"]), money, max_size=3)
settlements = st.builds(
    lambda by_source, unknown, share, given, made: Settlement(
        by_source,
        unknown,
        sum(by_source.values(), ZERO) * share / 10,
        given,
        made,
        sum(by_source.values(), ZERO),
    ),
    sources,
    st.integers(0, 2),
    st.integers(0, 10),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)


@given(settlements, st.integers(2, 200))
def test_parts_add_up(whole: Settlement, callers: int) -> None:
    part, rest = split(whole, callers)
    others = callers - 1

    assert part.total * others + rest.total == whole.total
    assert part.wasted * others + rest.wasted == whole.wasted
    assert part.input_tokens * others + rest.input_tokens == whole.input_tokens
    assert part.output_tokens * others + rest.output_tokens == whole.output_tokens
    for source, amount in whole.by_source.items():
        assert part.by_source[source] * others + rest.by_source[source] == amount
        assert amount / callers - part.by_source[source] < PICO_USD * 2
    assert part.total == sum(part.by_source.values(), ZERO)
    assert min(part.total, rest.total, part.wasted, rest.wasted) >= 0
    assert part.unknown_attempts == rest.unknown_attempts == whole.unknown_attempts


def test_a_joint_that_nobody_joined_is_left_as_it_is() -> None:
    whole = Settlement({"local": Decimal("0.1")}, 0, ZERO, 1, 1, Decimal("0.1"))

    assert Joint().settle(whole, None) is whole  # type: ignore[arg-type]
