"""The comparison of virtual time with HTTP: both sides make the same calls; what becomes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.lab import real_engine
from headway.lab.engine_model import EngineModel
from headway.lab.engine_profile import EngineProfile
from headway.lab.fleet import ServingFleet
from headway.lab.sim import validate, validate_real
from headway.lab.sim.validate import Seen, in_virtual_time, lines, over_http, serving_trial
from headway.lab.sim.validate_real import LONG, OUTPUT, SHORT, Probe, between, fitted, trial_of

CPU = EngineProfile(
    name="cpu",
    floor_s=0.0,
    slope_s=0.005,
    context_coef_s=1e-5,
    kv_tokens=6000,
    sequence_s=0.004,
    overhead_s=0.008,
    api_overhead_s=0.012,
    sequences_max=3,
    reserves_output=True,
)


def test_virtual_time_alone_is_the_same_for_the_same_seed() -> None:
    trial, _ = serving_trial(seconds=20.0)
    once, again = in_virtual_time(trial, 1), in_virtual_time(trial, 1)
    assert once == again
    assert once.failed == 0
    assert once.share > 0.6  # the second engine is three times slower


def test_the_same_calls_through_http_are_all_answered_and_book_as_many() -> None:
    trial, specs = serving_trial(seconds=10.0)
    calls = [c._replace(at_s=0.02 * i, output_tokens=3) for i, c in enumerate(trial.calls[:12])]
    trial = replace(trial, calls=tuple(calls))
    with ServingFleet(specs) as fleet:
        fleet.start_run()
        seen = over_http(trial, {e: fleet.base_url(e) for e in trial.engines})
        ledger = fleet.ledger()
    assert (seen.calls, seen.failed) == (12, 0)
    assert len(ledger) == 12
    assert seen.share == sum(row.endpoint == "a" for row in ledger) / 12
    assert 0.0 < seen.ttft_s <= seen.mean_s
    # What the serving simulator reads and writes is what virtual time is told.
    assert sorted(row.output_tokens for row in ledger) == [3] * 12
    told = sorted(c.prompt_tokens for c in trial.calls)
    for row, tokens in zip(sorted(ledger, key=lambda r: r.prompt_tokens), told, strict=True):
        assert row.prompt_tokens == pytest.approx(tokens, abs=8)


def test_errors_are_relative_and_those_of_shares_absolute() -> None:
    virtual = [Seen(9, 0, 1.0, 0.2, 0.7), Seen(9, 0, 1.2, 0.2, 0.8)]
    mean, ttft, share = lines(virtual, Seen(9, 0, 1.0, 0.25, 0.7))
    assert mean.error == pytest.approx(0.1)
    assert (mean.lowest, mean.highest) == (1.0, 1.2)
    assert ttft.error == pytest.approx(-0.2)
    assert share.error == pytest.approx(0.05)


def probe(prompt: int, together: int) -> Probe:
    """What a client sees of the model engine: as the probes of a real one."""
    engine = EngineModel(CPU)
    made = [engine.submit(0.0, prompt, OUTPUT) for _ in range(together)]
    engine.advance(1e6)
    one = made[-1]
    assert one.first_token_at is not None
    assert one.finished_at is not None
    return Probe(one.first_token_at, (one.finished_at - one.first_token_at) / (OUTPUT - 1))


def test_a_profile_is_found_again_from_its_own_probes() -> None:
    short, long = probe(SHORT, 1), probe(LONG, 1)
    found = fitted(short, long, probe(SHORT, 3).tpot_s, 3)
    for cost in ("slope_s", "sequence_s", "overhead_s", "api_overhead_s", "context_coef_s"):
        assert getattr(found, cost) == pytest.approx(getattr(CPU, cost), rel=0.12), cost
    assert found.sequences_max == 3
    assert between(found, replace(found, slope_s=3 * found.slope_s)).slope_s == 2 * found.slope_s


def test_a_trial_gives_each_server_what_it_can_carry() -> None:
    trial = trial_of({"north": CPU, "south": replace(CPU, sequences_max=1)}, seconds=60.0)
    assert trial.weights["north"] > 1.1 * trial.weights["south"]
    assert len(trial.calls) > 10
    assert in_virtual_time(trial, 1).failed == 0


def test_is_skipped_in_words_where_the_wheels_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real_engine, "find_spec", lambda name: None)
    validate.main(["--real"])
    assert capsys.readouterr().out.startswith("SKIPPED: no real engine here: xllamacpp")


@pytest.mark.real
def test_llama_cpp_answers_every_call() -> None:
    virtual, real = validate_real.against_llama(seconds=5.0)
    assert real.failed == 0
    assert {v.calls for v in virtual} == {real.calls}
