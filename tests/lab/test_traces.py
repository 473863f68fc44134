"""Trace loaders: every format by a few rows of its own, and the excerpt that ships."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest

from headway.lab import traces

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
MOONCAKE = '{"timestamp": 3000, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n'
WEKA = (
    '{"id":"t","models":["m"],"block_size":64,"tool_tokens":10,"system_tokens":5,"requests":'
    '[[0.0,100,9,1,0,2.5,0.0,"tool_use"],[9.0,200,9,3,1,null,null,"end_turn"],[20,300,1,4,3,1,2,""]],'
    '"subagents":[{"after":1,"t":3.0,"duration_ms":1500,"requests":[[0,50,1,0,0,1.0,0.0,"end_turn"]]}]}\n'
)
TRACELAB = (
    '{"session_id":"s","round_index":0,"model":"m","input_tokens_total":32272,"prefix_tokens":27217,'
    '"claude_cache_creation_input_tokens":null,"output_tokens":931,'
    '"tools":[{"tool_name":"Bash","tool_wall_latency_ms":860,"is_error":false}]}\n'
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text, encoding="utf-8")
    return path


def test_azure_times_start_at_zero(tmp_path: Path) -> None:
    calls = traces.load_azure(written(tmp_path, AZURE))
    assert [(c.input_tokens, c.output_tokens) for c in calls] == [(374, 44), (396, 109)]
    assert calls[0].arrival_s == 0.0
    assert calls[1].arrival_s == pytest.approx(4.314579)


def test_mooncake_spreads_its_grid_and_keeps_prefixes(tmp_path: Path) -> None:
    path = written(tmp_path, MOONCAKE * 50)
    calls = traces.load_mooncake(path)
    assert calls == traces.load_mooncake(path)
    assert 2.0 < calls[-1].arrival_s < 3.0
    assert calls[0].prefix == (0, 1)
    assert {c.arrival_s for c in traces.load_mooncake(path, jitter_s=0)} == {0.0}


def test_weka_sessions_split_into_turns(tmp_path: Path) -> None:
    (session,) = traces.load_weka(written(tmp_path, WEKA))
    assert [len(turn) for turn in session.turns()] == [2, 1]
    assert session.calls[1].api_s is None
    assert session.subagents[0].duration_s == 1.5
    assert (session.tool_tokens, session.system_tokens) == (10, 5)


def test_the_other_formats(tmp_path: Path) -> None:
    path = tmp_path / "t"

    def load(loader: Callable[[Path], list[object]], text: str) -> object:
        path.write_text(text)
        return loader(path)[-1]

    assert load(traces.load_vidur, "num_prefill_tokens,num_decode_tokens\n3,5\n") == (3, 5)
    assert load(
        traces.load_servegen,
        "client,window_start_s,rate_rps,cv,family,param1,param2\n4,600,1.5,2,Gamma,0.1,0.2\n",
    ) == (4, 600.0, 1.5, 2.0, "Gamma", 0.1, 0.2)
    assert load(
        traces.load_sharegpt, "arrival_s,input_toks,output_toks,shared_prefix_toks\n1,7,8,2\n"
    ) == (0.0, 7, 8, (), 2)
    assert load(
        traces.load_llmservingsim, '{"input_toks":9,"output_toks":1,"arrival_time_ns":2000}\n'
    ) == (0.0, 9, 1, (), 0)
    assert load(
        traces.load_burstgpt, "Timestamp,Request tokens,Response tokens\n5,472,18\n8,1,2\n"
    ) == (3.0, 1, 2, (), 0)
    round_ = load(traces.load_tracelab, TRACELAB)
    assert isinstance(round_, traces.AgentRound)
    assert round_.tools == (traces.ToolUse("Bash", 0.86, False),)


@pytest.mark.parametrize(
    "text", ["", "{}\n", "[1]\n", "nonsense\n", MOONCAKE + '{"timestamp": "x"}\n']
)
def test_an_unreadable_row_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(traces.TraceError, match=r"trace: (row \d|no rows)"):
        traces.load_mooncake(written(tmp_path, text))


def test_the_excerpt_ships_small_with_its_licence() -> None:
    sessions = traces.excerpt_sessions()
    assert len(sessions) == 164
    assert sum(len(s.calls) for s in sessions) == 3705
    assert all(8 <= len(s.calls) <= 24 and s.calls[0].input_tokens <= 40_000 for s in sessions)
    shipped = resources.files("headway.lab").joinpath("excerpt")
    assert sum(len(f.read_bytes()) for f in shipped.iterdir()) <= 320 * 1024
    assert "Copyright 2024 Callan Fox" in shipped.joinpath("LICENSE").read_text()
    assert "94f6046" in shipped.joinpath("ATTRIBUTION.md").read_text()
