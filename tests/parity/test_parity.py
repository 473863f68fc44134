"""One core, three drivers: the same script gives the same run, to the last field of every event.

    sync transport  ─┐
    async transport ─┼─ attempts (endpoint, kind, number), their order, outcomes, every event
    virtual time    ─┘

`make parity` plays 10,000 random scripts; the quick suite a few hundred, the same ones every time.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from headway.core.snapshot import AdmissionPolicy, DeadlinePolicy, RetryPolicy
from headway.transport.limits import SHORTEST_WAIT_S
from tests.effort import examples
from tests.parity.drivers import Run, run_async, run_sync, run_virtual
from tests.parity.scripts import FIVE, MORE, Script

SEED = 20_261_130
QUICK_EXAMPLES = 120
ALL_EXAMPLES = 10_000
TOLERANCE_S = 1.001 * SHORTEST_WAIT_S
"""A socket is never given less time than that, so a real deadline may be this late."""


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def check(script: Script, runner: asyncio.Runner) -> Run:
    """All three drivers agree; returns what the sync one did."""
    sync = run_sync(script)
    asynchronous = run_async(script, runner)
    virtual = run_virtual(script, sync.facts)

    assert asynchronous.sends == sync.sends == virtual.sends
    assert asynchronous.attempts == sync.attempts == virtual.attempts
    assert asynchronous.results == sync.results
    same_events(sync, asynchronous)
    same_events(sync, virtual)
    for got, (kind, status) in zip(sync.results, virtual.results, strict=True):
        assert (got[0] == "ok") == (kind == "ok"), (got, kind)
        if got[0] == "error" and got[2] is not None:
            # A failure that came as a 200 surfaces under the status it should have had.
            assert got[2] == (502 if status == 200 else status)
    return sync


def same_events(one: Run, other: Run) -> None:
    assert [name for name, _ in one.events] == [name for name, _ in other.events]
    for (name, left), (_, right) in zip(one.events, other.events, strict=True):
        assert left.keys() == right.keys(), name
        for field, value in left.items():
            assert _same(field, value, right[field]), (name, field, value, right[field])


def _same(field: str, one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=1e-9, abs_tol=TOLERANCE_S)
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(_same(field, a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


# --------------------------------------------------------------------------- all of five, thrice


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("first", FIVE)
def test_every_sequence_of_three_outcomes(first: str, stream: bool, runner: asyncio.Runner) -> None:
    for number, rest in enumerate(itertools.product(FIVE, repeat=2)):
        sequence = (first, *rest)
        run = check(Script(((stream, sequence),), seed=number), runner)

        tried = sequence[: len(run.sends)]
        assert "ok" not in tried[:-1]
        assert (run.results[0][0] == "ok") == (tried[-1] == "ok")
        if len(tried) > 1:  # there was another endpoint: that one is asked next
            assert run.sends[0] != run.sends[1]


def test_a_second_failure_elsewhere_is_followed_by_a_third_attempt(runner: asyncio.Runner) -> None:
    run = check(Script(((False, ("503", "refused", "ok")),)), runner)

    assert [(kind, number) for _, _, kind, number in run.attempts] == [
        ("initial", 1),
        ("retry", 2),
        ("retry", 3),
    ]
    assert run.results == [("ok", "Hello")]


# --------------------------------------------------------------------------- random ones

_calls = st.lists(
    st.tuples(st.booleans(), st.lists(st.sampled_from(sorted(MORE)), min_size=1, max_size=4)),
    min_size=1,
    max_size=8,
)
_routes = st.fixed_dictionaries(
    {},
    optional={
        "deadline": st.builds(
            DeadlinePolicy,
            total_s=st.sampled_from([math.inf, 0.3, 2.0, 20.0]),
            ttft_s=st.sampled_from([math.inf, 0.1, 5.0]),
        ),
        "retry": st.builds(
            RetryPolicy,
            attempts_max=st.sampled_from([1, 2, 3, 5]),
            budget_start=st.sampled_from([0.0, 1.0, 3.0]),
        ),
        "admission": st.builds(
            AdmissionPolicy,
            max_inflight=st.sampled_from([None, 1]),
            cold_concurrency=st.sampled_from([1, 3]),
        ),
    },
)
scripts = st.builds(
    lambda calls, seed, gaps, route, deadline: Script(
        tuple((stream, tuple(names)) for stream, names in calls),
        seed,
        tuple(gaps),
        route,
        deadline,
    ),
    _calls,
    st.integers(0, 2**32),
    st.lists(st.sampled_from([0.0, 0.01, 1.0, 15.0, 70.0]), min_size=1, max_size=4),
    _routes,
    st.sampled_from([None, None, 0.3, 3.0, 30.0]),
)

_random = settings(
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@seed(SEED)
@settings(_random, max_examples=examples(QUICK_EXAMPLES))
@given(scripts)
def _few(script: Script) -> None:
    with asyncio.Runner() as runner:
        check(script, runner)


def test_random_scripts() -> None:
    _few()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_random_scripts() -> None:
    with asyncio.Runner() as runner:

        @seed(SEED)
        @settings(_random, max_examples=ALL_EXAMPLES)
        @given(scripts)
        def many(script: Script) -> None:
            check(script, runner)

        many()
