"""Workloads: rates are what was asked for, sessions share prefixes, every public format loads."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest

from headway.lab.sim.arrivals import (
    Arrivals,
    DiurnalTimes,
    GammaTimes,
    SteppedTimes,
    poisson_times,
    servegen_times,
)
from headway.lab.sim.workload import (
    TRACE_KINDS,
    WORKLOADS,
    Turn,
    builtin,
    from_file,
    labelled,
    mixed,
)
from headway.lab.traces import ClientRate

CLIENTS = (
    ClientRate(0, 0.0, 6.0, 1.0, "Gamma", 1.0, 1.0),
    ClientRate(1, 0.0, 2.0, 3.0, "Gamma", 1.0, 1.0),
    ClientRate(2, 0.0, 0.0, 0.0, "", 0.0, 0.0),
    ClientRate(0, 600.0, 1.0, 1.0, "Gamma", 1.0, 1.0),
)


def until(arrivals: Arrivals, rate: float, end: float, seed: int = 1) -> list[float]:
    times = itertools.takewhile(lambda at: at < end, arrivals(random.Random(seed), rate))
    return list(times)


@pytest.mark.parametrize(
    "arrivals",
    [
        pytest.param(poisson_times, id="poisson"),
        pytest.param(GammaTimes(2.0), id="gamma"),
        pytest.param(DiurnalTimes(period_s=100.0), id="diurnal"),
        pytest.param(servegen_times(CLIENTS), id="servegen"),
    ],
)
def test_every_process_keeps_the_mean_rate_and_the_order(arrivals: Arrivals) -> None:
    times = until(arrivals, 20.0, 1000.0)
    assert times == sorted(times)
    assert len(times) / 1000.0 == pytest.approx(20.0, rel=0.1)


def test_gamma_gaps_are_as_uneven_as_they_say() -> None:
    times = until(GammaTimes(3.0), 20.0, 2000.0)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(3.0, rel=0.1)


def test_steps_multiply_the_rate_from_their_instant_on() -> None:
    times = until(SteppedTimes(((100.0, 2.0), (200.0, 0.5))), 20.0, 300.0)
    per = [sum(lo <= t < lo + 100 for t in times) / 100 for lo in (0, 100, 200)]
    assert per == pytest.approx([20.0, 40.0, 10.0], rel=0.1)


def test_a_day_swings_around_its_mean() -> None:
    times = until(DiurnalTimes(period_s=400.0, depth=0.6), 20.0, 400.0)
    peak = sum(50 <= t < 150 for t in times)
    trough = sum(250 <= t < 350 for t in times)
    assert peak > 2.5 * trough


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_builtin_workload_comes_at_its_rate_and_the_same_for_the_same_seed(name: str) -> None:
    def head() -> list[tuple[float, tuple[Turn, ...]]]:
        visits = builtin(name).visits(random.Random(5), 4.0)
        return [(at, visit.turns) for at, visit in itertools.islice(visits, 400)]

    first = head()
    assert first[-1][0] == pytest.approx(100.0, rel=0.35)
    assert all(t.prompt_tokens > 0 and t.output_tokens > 0 for _, turns in first for t in turns)
    if name != "agents":  # sessions are numbered through, so that no two share a block
        assert head() == first


def test_a_session_sends_its_prefix_again() -> None:
    visits = [builtin("agents").body(random.Random(i)) for i in range(30)]
    seen: set[int] = set()
    for visit in visits:
        own: set[int] = set()
        for turn in visit.turns:
            known = turn.blocks[: turn.known_blocks]
            assert set(known) <= own
            assert len(turn.blocks) == turn.prompt_tokens // 64
            own |= set(turn.blocks)
        assert not own & seen
        seen |= own
    turns = [t for v in visits for t in v.turns[1:]]
    assert sum(t.known_blocks for t in turns) > 0.8 * sum(len(t.blocks) for t in turns)


def test_mixed_visits_keep_their_labels() -> None:
    body = builtin("chat").body
    both = mixed((1.0, labelled(body, "now", 10)), (3.0, labelled(body, "later", -1)))
    rng = random.Random(1)
    visits = [both(rng) for _ in range(2000)]
    assert {(v.traffic_class, v.priority) for v in visits} == {("now", 10), ("later", -1)}
    assert sum(v.priority == 10 for v in visits) / 2000 == pytest.approx(0.25, abs=0.04)


FILES = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2023-11-16 18:15:{i:02}.6805900,{100 + i},10\n" for i in range(60)),
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    + "".join(f"{i},ChatGPT,{100 + i},20,120,API log\n" for i in range(60)),
    "mooncake": "".join(
        f'{{"timestamp": {3000 * i}, "input_length": 1100, "output_length": 5, '
        f'"hash_ids": [0, {i + 1}]}}\n'
        for i in range(60)
    ),
    "sharegpt": "arrival_s,input_toks,output_toks,shared_prefix_toks\n"
    + "".join(f"{i},{100 + i},20,0\n" for i in range(60)),
    "llmservingsim": "".join(
        f'{{"arrival_time_ns": {i * 10**9}, "input_toks": 100, "output_toks": 20}}\n'
        for i in range(60)
    ),
    "vidur": "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n200,20,220,10\n",
    "weka": '{"id": "s", "models": ["m"], "block_size": 64, "requests": '
    '[[0, 640, 10, 10, 0, 1.0, null, "tool_use"], [5, 700, 10, 10, 10, 1.0, 2.0, "end_turn"]]}\n',
    "servegen": "client,window_start_s,rate_rps,cv,family,param1,param2\n0,0,2.0,1.5,Gamma,1,1\n",
    "tracelab": '{"session_id": "s", "round_index": 0, "model": "m", "input_tokens_total": 300, '
    '"prefix_tokens": 0, "output_tokens": 20, "tools": []}\n',
}


@pytest.mark.parametrize("kind", TRACE_KINDS)
def test_a_public_trace_becomes_a_workload_at_the_rate_asked_for(kind: str, tmp_path) -> None:
    path = tmp_path / f"some_{kind}.txt"
    path.write_text(FILES[kind])
    workload = from_file(path, kind)
    visits = list(itertools.islice(workload.visits(random.Random(2), 5.0), 600))
    assert visits[-1][0] == pytest.approx(120.0, rel=0.3)
    assert [at for at, _ in visits] == sorted(at for at, _ in visits)


def test_a_replayed_trace_keeps_its_shared_prefixes(tmp_path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(FILES["mooncake"])
    visits = itertools.islice(from_file(path, "mooncake").visits(random.Random(2), 1.0), 50)
    blocks = [visit.turns[0].blocks for _, visit in visits]
    assert all(b[:8] == tuple(range(8)) for b in blocks)  # block 0 of 512 tokens: eight of 64
    assert all(len(b) == 16 for b in blocks)


def test_an_unknown_name_is_told_what_there_is(tmp_path) -> None:
    with pytest.raises(ValueError, match="there are chat"):
        builtin("nonsense")
    with pytest.raises(ValueError, match="there are azure"):
        from_file(tmp_path / "x", "nonsense")
