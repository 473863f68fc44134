"""The `gen_ai.client.*` metrics of a call whose span is ours: never beside another
instrumentation's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.telemetry import attributes as a
from headway.telemetry import names as n
from headway.telemetry.metrics import Attributes, Instruments

if TYPE_CHECKING:
    from headway.record import CallRecord
    from headway.telemetry.telemetry import Telemetry

_USAGE = "gen_ai.client.inference.usage."
_PER_OPERATION = "gen_ai.client.inference.operation."


def count_call(
    record: CallRecord, instruments: Instruments, telemetry: Telemetry, model: str
) -> None:
    """Record duration, time to first chunk and tokens of a settled call."""
    winner = record.winner
    operation = a.operation(record.facts.surface)
    shown: Attributes = {
        n.OPERATION: operation,
        n.PROVIDER: a.provider_of(None if winner is None else winner.endpoint),
        n.REQUEST_MODEL: model,
    }
    if winner is not None:
        for key, value in a.server(winner).items():
            if isinstance(value, str | int):
                shown[key] = value
        if winner.response_model is not None:
            shown[n.RESPONSE_MODEL] = telemetry.metering.model(winner.response_model)
    failure = a.call_error(record)
    if failure is not None:
        shown[n.ERROR_TYPE] = telemetry.metering.error(failure)
    semconv = telemetry.semconv
    inferred = operation in n.INFERENCE
    duration = semconv.inference_duration if inferred else "gen_ai.client.operation.duration"
    if record.ended_at is not None:
        instruments.record(duration, record.ended_at - record.started_at, shown)
    if winner is not None and winner.ttft_s is not None and record.facts.stream:
        waited_s = winner.attempt.started_at - record.started_at
        instruments.record(semconv.inference_ttfc, waited_s + winner.ttft_s, shown)
    _count_tokens(record, instruments, semconv, shown)


def _count_tokens(
    record: CallRecord, instruments: Instruments, semconv: n.Semconv, shown: Attributes
) -> None:
    winner = record.winner
    usage = None if winner is None else winner.usage
    if usage is not None and usage.estimated:
        usage = None
    given = 0 if usage is None else usage.input_tokens or 0
    made = 0 if usage is None else usage.output_tokens or 0
    if not semconv.token_counters:
        if usage is not None:
            instruments.record("gen_ai.client.token.usage", given, shown | {n.TOKEN_TYPE: "input"})
            if usage.output_tokens is not None:
                instruments.record(
                    "gen_ai.client.token.usage", made, shown | {n.TOKEN_TYPE: "output"}
                )
        return
    # The usage says nothing of modalities, and a prompt may hold pictures.
    counted = shown | {n.TOKEN_MODALITY: "unknown"}
    instruments.add(_USAGE + "input_tokens", given, counted)
    instruments.add(_USAGE + "output_tokens", made, counted)
    if usage is None:
        return
    for name, count in (
        ("cache_read.input_tokens", usage.cached_input_tokens),
        ("cache_write.input_tokens", usage.cache_write_tokens),
        ("reasoning.output_tokens", usage.reasoning_tokens),
    ):
        if count is not None:
            instruments.add(_USAGE + name, count, counted)
    instruments.record(_PER_OPERATION + "input_tokens", given, shown)
    instruments.record(_PER_OPERATION + "output_tokens", made, shown)
