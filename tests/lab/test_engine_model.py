"""The engine model: its scheduler by hand-checkable numbers, its calibration by the table."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headway.lab.engine_cache import PrefixCache
from headway.lab.engine_model import EngineModel, EngineRequest
from headway.lab.engine_profile import PROFILES, EngineProfile

PLAIN = EngineProfile(
    name="plain",
    floor_s=0.010,
    slope_s=0.0001,
    context_coef_s=0.0,
    kv_tokens=64_000,
    sequence_s=0.0,
    overhead_s=0.0,
    api_overhead_s=0.0,
    step_tokens=1000,
)


def test_one_request_takes_its_prefill_and_then_one_floor_per_token() -> None:
    engine = EngineModel(PLAIN)
    request = engine.submit(1.0, prompt_tokens=500, output_tokens=11)

    events = engine.advance(10.0)

    assert [e.kind for e in events] == ["first_token", "finished"]
    assert request.first_token_at == pytest.approx(1.05)  # 500 tokens x 0.1 ms
    assert request.finished_at == pytest.approx(1.15)  # 10 more steps of 10 ms


def test_a_long_prompt_is_prefilled_in_chunks_and_stretches_running_decodes() -> None:
    engine = EngineModel(PLAIN)
    decoding = engine.submit(0.0, 100, 1000)
    engine.advance(0.5)
    before = engine.emitted(decoding)
    late = engine.submit(0.5, 1998, 2)

    engine.advance(0.75)

    assert late.first_token_at == pytest.approx(0.5 + 0.2, abs=0.011)  # 2 chunks of 999
    assert engine.emitted(decoding) - before <= 2 + 6  # two long steps, then 10 ms ones


def test_advancing_in_many_small_steps_changes_nothing() -> None:
    def run(dt: float) -> list[tuple[float | None, float | None]]:
        rng, engine, requests = random.Random(3), EngineModel(PROFILES["8b-a100"]), []
        now = 0.0
        for _ in range(60):
            arrival = now + rng.expovariate(8.0)
            while now + dt < arrival:
                now += dt
                engine.advance(now)
            now = arrival
            engine.advance(now)
            requests.append(engine.submit(now, rng.randint(1, 4000), rng.randint(1, 400)))
        engine.advance(1e6)
        return [(r.first_token_at, r.finished_at) for r in requests]

    for fine, coarse in zip(run(0.003), run(1e9), strict=True):
        assert fine == pytest.approx(coarse, abs=1e-6)


def test_a_prefix_hit_shortens_the_prefill_only() -> None:
    engine = EngineModel(PLAIN)
    engine.submit(0.0, 640, 1, blocks=range(10))
    engine.advance(1.0)
    again = engine.submit(1.0, 704, 1, blocks=range(11))
    engine.advance(2.0)

    assert again.cached_tokens == 640
    assert again.first_token_at == pytest.approx(1.01)  # 64 tokens: the floor


def test_the_cache_evicts_the_least_recently_used_tail_first() -> None:
    cache = PrefixCache(blocks=4)
    cache.insert([1, 2, 3])
    cache.insert([7, 8])

    assert cache.hit([7, 8]) == 2
    assert cache.hit([1, 2, 3]) == 2


def test_requests_wait_in_line_until_kv_space_is_free() -> None:
    engine = EngineModel(PLAIN)
    first = engine.submit(0.0, 60_000, 100)
    second = engine.submit(0.0, 10_000, 10)
    engine.advance(6.5)
    assert (engine.running, engine.waiting) == (1, 1)

    engine.advance(100.0)

    assert first.finished_at is not None
    assert second.first_token_at is not None
    assert second.first_token_at == pytest.approx(first.finished_at + 1.0, rel=1e-6)


TIGHT = replace(PLAIN, kv_tokens=1000)


def test_the_newest_is_preempted_when_the_kv_space_is_full_and_computed_anew() -> None:
    engine = EngineModel(TIGHT)
    old = engine.submit(0.0, 400, 500)
    new = engine.submit(0.0, 400, 150)
    engine.advance(0.08 + 98.5 * 0.01)
    assert (engine.running, engine.emitted(new)) == (2, 99)
    engine.advance(0.08 + 99.5 * 0.01)  # 500 tokens each: the step that began here is the old one's
    assert (engine.running, engine.waiting, new.preemptions) == (1, 1, 1)
    assert engine.emitted(new) == 100  # what was written has reached its reader
    assert engine.emitted(old) == 100
    assert engine.kv_usage == 0.5

    engine.advance(60.0)
    # Room comes when the old one ends, 399 steps later; then 500 tokens at 0.1 ms, and 49 steps.
    assert old.finished_at == pytest.approx(0.08 + 499 * 0.01)
    assert new.finished_at == pytest.approx(0.08 + 499 * 0.01 + 0.05 + 49 * 0.01)
    assert new.first_token_at == pytest.approx(0.08)
    assert (engine.preemptions, engine.kv_usage) == (1, 0.0)


def test_an_engine_that_reserves_lets_the_second_wait_instead() -> None:
    engine = EngineModel(replace(TIGHT, reserves_output=True))
    old = engine.submit(0.0, 400, 500)
    new = engine.submit(0.0, 400, 150)
    engine.advance(60.0)

    assert old.finished_at == pytest.approx(0.04 + 499 * 0.01)
    assert new.first_token_at == pytest.approx(0.04 + 499 * 0.01 + 0.04)
    assert engine.preemptions == 0


def test_what_was_preempted_finds_its_prompt_in_the_cache() -> None:
    engine = EngineModel(TIGHT)
    engine.submit(0.0, 400, 400)
    new = engine.submit(0.0, 400, 300, blocks=range(6))
    engine.advance(60.0)

    # Preempted after 100 tokens, back when the old one ends: 384 of its 500 tokens are known.
    assert new.preemptions == 1
    assert new.finished_at == pytest.approx(0.08 + 399 * 0.01 + 0.0116 + 199 * 0.01)
    assert new.cached_tokens == 0  # of its first reading, which is what usage states


@pytest.mark.parametrize("reserves", [True, False])
def test_the_kv_space_is_never_exceeded_and_all_of_it_comes_back(reserves: bool) -> None:
    def run(dt: float) -> tuple[list[float | None], int]:
        profile = replace(PLAIN, kv_tokens=6000, reserves_output=reserves, context_coef_s=1e-7)
        rng, engine, requests = random.Random(5), EngineModel(profile), []
        now = 0.0
        for i in range(150):
            arrival = now + rng.expovariate(2.0)
            while now + dt < arrival:
                now += dt
                engine.advance(now)
                assert 0.0 <= engine.kv_usage <= 1.0
            now = arrival
            engine.advance(now)
            blocks = range(i % 5 * 100, i % 5 * 100 + 3) if i % 2 else ()
            requests.append(engine.submit(now, rng.randint(200, 1500), rng.randint(1, 900), blocks))
            if i % 10 == 9:
                engine.cancel(requests[rng.randrange(len(requests))])
        while (due := engine.next_event_at()) < float("inf"):
            engine.advance(due + 1e-9)
        assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
        assert all((r.finished_at is None) == r.cancelled for r in requests)
        return [r.finished_at for r in requests], engine.preemptions

    (fine, preempted), (coarse, again) = run(0.004), run(1e9)
    assert fine == pytest.approx(coarse, abs=1e-5)
    assert preempted == again
    assert (preempted == 0) == reserves


@pytest.mark.parametrize("profile", [PLAIN, replace(PLAIN, reserves_output=True)])
def test_no_event_comes_before_it_is_foretold(profile: EngineProfile) -> None:
    profile = replace(profile, kv_tokens=4000)
    rng, engine, now = random.Random(9), EngineModel(profile), 0.0
    for _ in range(60):
        engine.submit(now, rng.randint(100, 900), rng.randint(1, 400))
        now += rng.expovariate(3.0)
        while (due := engine.next_event_at()) <= now:
            assert all(e.at >= due - 1e-9 for e in engine.advance(due + 1e-9))
        assert engine.advance(now) == []


@pytest.mark.parametrize("at", [0.0, 0.02, 0.3])
def test_a_cancelled_request_gives_everything_back(at: float) -> None:
    engine = EngineModel(PLAIN)
    request = engine.submit(0.0, 1500, 50)
    engine.advance(at)
    engine.cancel(request)
    engine.cancel(request)
    engine.advance(50.0)

    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
    assert request.finished_at is None
    after = engine.submit(50.0, 100, 2)
    engine.advance(60.0)
    assert after.finished_at == pytest.approx(50.02)


def test_a_slow_engine_is_slow_by_its_factor() -> None:
    engine = EngineModel(PLAIN, slowdown=10.0)
    request = engine.submit(0.0, 100, 11)
    engine.advance(10.0)
    assert request.finished_at == pytest.approx(1.1)


def test_refuses_what_can_never_fit() -> None:
    with pytest.raises(ValueError, match="exceed 64000"):
        EngineModel(PLAIN).submit(0.0, 64_000, 1)


@pytest.mark.parametrize("engine_name", sorted(PROFILES))
def test_who_waits_for_reports_alone_hears_the_same_at_the_same_instants(engine_name: str) -> None:
    def run(*, reports_only: bool) -> tuple[list[tuple[str, int, float]], int]:
        rng, engine = random.Random(5), EngineModel(PROFILES[engine_name])
        heard: list[tuple[str, int, float]] = []
        number: dict[EngineRequest, int] = {}
        now, looks = 0.0, 0
        for _ in range(300):
            arrival = now + rng.expovariate(2.0)
            while (due := engine.next_event_at(reports_only=reports_only) + 1e-9) < arrival:
                looks += 1
                now = max(now, due)
                # heard at once: as soon as it happened, within the hair
                for kind, request, at in engine.advance(now):
                    assert now - at < 2e-9
                    heard.append((kind, number[request], at))
            now = arrival
            heard += [(kind, number[r], at) for kind, r, at in engine.advance(now)]
            made = engine.submit(now, rng.randrange(1, 4000), rng.randrange(1, 300))
            number[made] = len(number)
        heard += [(kind, number[r], at) for kind, r, at in engine.advance(now + 1e4)]
        return heard, looks

    every, looks = run(reports_only=False)
    reports, fewer = run(reports_only=True)
    assert reports == every
    assert len(reports) == 600
    assert fewer < 0.95 * looks
