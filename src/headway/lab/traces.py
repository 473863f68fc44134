"""Loaders for public request traces: files in, small values out.

None of these files carries prompt text. Where to get them, their licences and their columns are in
the lab's documentation; a short excerpt of real agent sessions ships with the package
(`excerpt_sessions`), so that demos run from an installed wheel.

Every loader raises `TraceError` naming the file and the row it could not read.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

T = TypeVar("T")
Row = Mapping[str, object]


class TraceError(ValueError):
    """A trace file does not hold what its format says."""


class TraceCall(NamedTuple):
    """One call of an open-loop trace."""

    arrival_s: float
    """Since the trace's first call."""
    input_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    """Global identities of the prompt's leading blocks; equal leading ones are reusable."""
    shared_prefix_tokens: int = 0
    """Longest prefix in common with any earlier call, where the trace states just that."""


class Lengths(NamedTuple):
    """Token counts of one call, without a time."""

    input_tokens: int
    output_tokens: int


class SessionCall(NamedTuple):
    """One call of an agent session."""

    at_s: float
    """Since the session's start."""
    input_tokens: int
    output_tokens: int
    blocks: int
    hit_blocks: int
    """Leading 64-token blocks already sent earlier in the session."""
    api_s: float | None
    """How long the provider took."""
    think_s: float | None
    """Between the end of the call before and this one: a tool or a person."""
    stop: str
    """tool_use: the agent goes on by itself. end_turn: back to the person. Empty: not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One agent session: its calls in order, and the sessions of its sub-agents."""

    id: str
    models: tuple[str, ...] = ()
    tool_tokens: int = 0
    system_tokens: int = 0
    calls: tuple[SessionCall, ...]
    subagents: tuple[SubagentRun, ...] = ()

    def turns(self) -> tuple[tuple[SessionCall, ...], ...]:
        """The calls grouped by what a person asked for: each group ends where the agent stops."""
        turns: list[tuple[SessionCall, ...]] = []
        current: list[SessionCall] = []
        for call in self.calls:
            current.append(call)
            if call.stop != "tool_use":
                turns.append(tuple(current))
                current = []
        if current:
            turns.append(tuple(current))
        return tuple(turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentRun:
    """A sub-agent that a session started."""

    after: int
    """How many of the session's own calls came before."""
    at_s: float
    duration_s: float | None
    calls: tuple[SessionCall, ...]


class ClientRate(NamedTuple):
    """One client's arrivals in one window: a renewal process."""

    client: int
    window_start_s: float
    rate_rps: float
    cv: float
    """Coefficient of variation of the gaps."""
    family: str
    """Gamma, Weibull, ...; empty where the client was silent."""
    param1: float
    param2: float


class ToolUse(NamedTuple):
    name: str
    wall_s: float | None
    is_error: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRound:
    """One round of a coding agent, with cache counts and the tools it called."""

    session: str
    index: int
    model: str
    input_tokens: int
    prefix_tokens: int
    cache_write_tokens: int | None
    output_tokens: int
    tools: tuple[ToolUse, ...]


# --------------------------------------------------------------------------- reading rows


def _csv_rows(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8") as lines:
        yield from cast("Iterable[Row]", csv.DictReader(lines))


def _json_rows(lines: Iterable[str]) -> Iterator[Row]:
    for line in lines:
        if line.strip():
            row = cast("object", json.loads(line))
            if not isinstance(row, dict):
                raise TypeError("expected an object")
            yield cast("Row", row)


def _jsonl_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as lines:
        yield from _json_rows(lines)


def _parsed(path: str | Path, rows: Iterator[Row], parse: Callable[[Row], T]) -> list[T]:
    out: list[T] = []
    try:
        out.extend(map(parse, rows))
    except (KeyError, TypeError, ValueError, IndexError) as exc:
        msg = f"{path}: row {len(out) + 1}: {type(exc).__name__}: {exc}"
        raise TraceError(msg) from exc
    if not out:
        msg = f"{path}: no rows"
        raise TraceError(msg)
    return out


def _int(value: object) -> int:
    return int(cast("str", value))


def _float(value: object) -> float:
    return float(cast("str", value))


def _float_or_none(value: object) -> float | None:
    return None if value is None else _float(value)


def _ms(value: object) -> float | None:
    return None if value is None else _float(value) / 1e3


def _from_zero(calls: list[TraceCall]) -> list[TraceCall]:
    calls.sort(key=lambda call: call.arrival_s)
    first = calls[0].arrival_s
    return [call._replace(arrival_s=call.arrival_s - first) for call in calls]


# --------------------------------------------------------------------------- formats


def load_azure(path: Path) -> list[TraceCall]:
    """Azure's LLM inference traces (CSV: TIMESTAMP, ContextTokens, GeneratedTokens)."""

    def parse(row: Row) -> TraceCall:
        stamp = str(row["TIMESTAMP"]).replace("Z", "").split("+")[0]
        whole, _, fraction = stamp.partition(".")
        at = datetime.fromisoformat(f"{whole}.{fraction[:6].ljust(6, '0')}+00:00")
        prompt, output = _int(row["ContextTokens"]), _int(row["GeneratedTokens"])
        return TraceCall(at.timestamp(), prompt, output)

    return _from_zero(_parsed(path, _csv_rows(path), parse))


def load_mooncake(path: Path, *, jitter_s: float = 3.0, seed: int = 0) -> list[TraceCall]:
    """Mooncake's FAST'25 traces (JSONL; `hash_ids` are global ids of 512-token blocks).

    The conversation trace stands on a 3 s grid; calls are spread uniformly over `jitter_s` after
    their stamp, or the replay would be a drum beat.
    """
    rng = random.Random(seed)

    def parse(row: Row) -> TraceCall:
        at = _float(row["timestamp"]) / 1e3 + rng.random() * jitter_s
        prefix = tuple(cast("list[int]", row["hash_ids"]))
        return TraceCall(at, _int(row["input_length"]), _int(row["output_length"]), prefix)

    return _from_zero(_parsed(path, _jsonl_rows(path), parse))


def load_burstgpt(path: Path) -> list[TraceCall]:
    """BurstGPT (CSV: Timestamp in seconds, Request tokens, Response tokens; failures have 0)."""

    def parse(row: Row) -> TraceCall:
        tokens = _int(row["Request tokens"]), _int(row["Response tokens"])
        return TraceCall(_float(row["Timestamp"]), *tokens)

    return _from_zero(_parsed(path, _csv_rows(path), parse))


def load_sharegpt(path: Path) -> list[TraceCall]:
    """Lengths of a ShareGPT sample (CSV: arrival_s, input_toks, output_toks, ...)."""

    def parse(row: Row) -> TraceCall:
        return TraceCall(
            _float(row["arrival_s"]),
            _int(row["input_toks"]),
            _int(row["output_toks"]),
            shared_prefix_tokens=_int(row["shared_prefix_toks"]),
        )

    return _from_zero(_parsed(path, _csv_rows(path), parse))


def load_llmservingsim(path: Path) -> list[TraceCall]:
    """LLMServingSim workloads (JSONL: arrival_time_ns, input_toks, output_toks)."""

    def parse(row: Row) -> TraceCall:
        at = _float(row["arrival_time_ns"]) / 1e9
        return TraceCall(at, _int(row["input_toks"]), _int(row["output_toks"]))

    return _from_zero(_parsed(path, _jsonl_rows(path), parse))


def load_vidur(path: Path) -> list[Lengths]:
    """Vidur's processed traces (CSV: num_prefill_tokens, num_decode_tokens): lengths only."""

    def parse(row: Row) -> Lengths:
        return Lengths(_int(row["num_prefill_tokens"]), _int(row["num_decode_tokens"]))

    return _parsed(path, _csv_rows(path), parse)


def load_servegen(path: Path) -> list[ClientRate]:
    """ServeGen's per-client arrival processes in 10-minute windows (CSV)."""

    def parse(row: Row) -> ClientRate:
        return ClientRate(
            _int(row["client"]),
            _float(row["window_start_s"]),
            _float(row["rate_rps"]),
            _float(row["cv"]),
            str(row["family"]),
            _float(row["param1"]),
            _float(row["param2"]),
        )

    return _parsed(path, _csv_rows(path), parse)


def load_tracelab(path: Path) -> list[AgentRound]:
    """TraceLab's rounds of coding agents (JSONL), with wall times of the tools they called."""

    def tool(row: Row) -> ToolUse:
        wall_s = _ms(row.get("tool_wall_latency_ms"))
        return ToolUse(str(row.get("tool_name", "")), wall_s, row.get("is_error") is True)

    def parse(row: Row) -> AgentRound:
        written = row.get("claude_cache_creation_input_tokens")
        return AgentRound(
            session=str(row["session_id"]),
            index=_int(row["round_index"]),
            model=str(row["model"]),
            input_tokens=_int(row["input_tokens_total"]),
            prefix_tokens=_int(row["prefix_tokens"]),
            cache_write_tokens=None if written is None else _int(written),
            output_tokens=_int(row["output_tokens"]),
            tools=tuple(map(tool, cast("list[Row]", row["tools"]))),
        )

    return _parsed(path, _jsonl_rows(path), parse)


def _session_calls(rows: object) -> tuple[SessionCall, ...]:
    calls: list[SessionCall] = []
    for at, prompt, output, blocks, hits, api, think, stop in cast("list[list[object]]", rows):
        calls.append(
            SessionCall(
                _float(at),
                _int(prompt),
                _int(output),
                _int(blocks),
                _int(hits),
                _float_or_none(api),
                _float_or_none(think),
                str(stop or ""),
            )
        )
    return tuple(calls)


def _session(row: Row) -> Session:
    subagents = [
        SubagentRun(
            after=_int(sub["after"]),
            at_s=_float(sub["t"]),
            duration_s=_ms(sub["duration_ms"]),
            calls=_session_calls(sub["requests"]),
        )
        for sub in cast("list[Row]", row.get("subagents", []))
    ]
    return Session(
        id=str(row["id"]),
        models=tuple(cast("list[str]", row.get("models", []))),
        tool_tokens=_int(row.get("tool_tokens", 0)),
        system_tokens=_int(row.get("system_tokens", 0)),
        calls=_session_calls(row["requests"]),
        subagents=tuple(subagents),
    )


def load_weka(path: Path) -> list[Session]:
    """Weka's coding-agent sessions in the compact form (JSONL, one session a line)."""
    return _parsed(path, _jsonl_rows(path), _session)


EXCERPT = "weka_agentic_sessions.jsonl"


def excerpt_sessions() -> list[Session]:
    """The sessions shipped with the package; `excerpt/ATTRIBUTION.md` says what was cut."""
    text = resources.files("headway.lab").joinpath("excerpt", EXCERPT).read_text("utf-8")
    return _parsed(EXCERPT, _json_rows(text.splitlines()), _session)
