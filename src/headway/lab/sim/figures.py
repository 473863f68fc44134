"""What one run comes to: figures, and time lines for the page. Plain values that travel."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headway.core.model import FailureClass
from headway.core.snapshot import Price
from headway.lab.sim.workload import TurnFacts
from headway.lab.virtual_records import AttemptRecord, CallRecord

BINS = 60
NAN = math.nan


@dataclass(slots=True, kw_only=True)
class Figures:
    """One contender, one seed. Latencies in seconds, of calls that were answered."""

    contender: str
    seed: int
    calls: int = 0
    failed: float = 0.0
    """Part of the calls that got no answer; refusals included."""
    refused: float = 0.0
    """Part of the calls that the client itself refused."""
    amplification: float = 0.0
    """Attempts per call."""
    mean_s: float = NAN
    p50_s: float = NAN
    p99_s: float = NAN
    ttft_s: float = NAN
    ttft_p99_s: float = NAN
    hit_rate: float = NAN
    """Cached prompt tokens over those that an endless cache would have hit."""
    tasks: int = 0
    task_success: float = NAN
    """Part of the visits that were answered to the end, in time."""
    tasks_per_s: float = 0.0
    """Visits completed per second."""
    calls_per_s: float = 0.0
    """Calls answered per second of the counted time."""
    cost_usd: float = 0.0
    cost_per_task: float = NAN
    """Cost of all visits over visits that succeeded."""
    wasted: float = 0.0
    """Part of the cost that bought no answer, or an answer in a visit that failed."""
    share: Mapping[str, float] = field(default_factory=dict[str, float])
    """Each endpoint's part of the attempts."""
    late_share: Mapping[str, float] = field(default_factory=dict[str, float])
    """The same, of the last half of the counted time."""
    recovered_s: float = NAN
    """After the last fault's end: until 95 % of calls were answered for good."""
    by_class: Mapping[str, float] = field(default_factory=dict[str, float])
    """Part of the calls of each traffic class that were answered."""
    simulated_per_cpu_s: float = 0.0
    lines: Lines | None = None


@dataclass(slots=True, kw_only=True)
class Lines:
    """Time lines: one value per bin of `step_s`."""

    step_s: float
    sends: Mapping[str, Sequence[float]]
    inflight: Mapping[str, Sequence[float]]
    answered: Sequence[float]
    """Part of the calls begun in the bin."""
    latency_s: Sequence[float]
    ttft_s: Sequence[float]
    cost_per_call: Sequence[float]
    open_breakers: Mapping[str, Sequence[float]]
    """Part of the processes whose breaker for the endpoint isn't closed."""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else NAN


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else NAN


class Booking:
    """Adds up a run's calls and visits."""

    def __init__(
        self, ids: Sequence[str], *, warmup_s: float, duration_s: float, last_fault_s: float | None
    ) -> None:
        self._warmup_s, self._duration_s = warmup_s, duration_s
        self._last_fault_s = last_fault_s
        self._step_s = duration_s / BINS
        self.prices: dict[str, Price] = {}
        self._latency, self._ttft = array("d"), array("d")
        self._failed = self._refused = self._calls = self._attempts = 0
        self._cached = self._reusable = 0
        self._sends = {e: [0] * (BINS + 1) for e in ids}
        self._inflight = {e: [0.0] * (BINS + 1) for e in ids}
        self._open = {e: [0.0] * (BINS + 1) for e in ids}
        zeros = [0.0] * (BINS + 1)
        self._begun, self._good = list(zeros), list(zeros)
        self._bin_s, self._bin_ttft, self._bin_usd = list(zeros), list(zeros), list(zeros)
        self._fine = [0] * int(duration_s / FINE_S + 2)
        self._fine_good = [0] * int(duration_s / FINE_S + 2)
        self._tasks = self._tasks_ok = 0
        self._usd = self._wasted_usd = 0.0
        self._class: dict[str, list[int]] = {}
        self._rates: dict[str, tuple[Price, float, float, float]] = {}
        """Endpoint -> (price, and USD per million: input, cached input, output)."""

    def bin(self, at: float) -> int:
        """The time line's bin of an instant."""
        return min(BINS, int(at / self._step_s))

    def looked(self, now: float, inflight: Mapping[str, int], open_: Mapping[str, float]) -> None:
        """Note what stands at an instant."""
        at = self.bin(now)
        for endpoint, count in inflight.items():
            self._inflight[endpoint][at] = count
        for endpoint, part in open_.items():
            self._open[endpoint][at] = part

    def call(self, record: CallRecord) -> float:
        """Book a call; returns what it cost."""
        usd = 0.0
        facts = record.facts
        assert isinstance(facts, TurnFacts)
        is_counted = self._counts(record.arrived_at)
        for attempt in record.attempts:
            self._sends[attempt.endpoint_id][self.bin(attempt.started_at)] += 1
            part = self._cost(attempt, facts)
            usd += part
            if attempt.outcome.kind is not FailureClass.OK and is_counted:
                self._wasted_usd += part
        self._lines(record, usd)
        if not is_counted:
            return usd
        self._calls += 1
        self._attempts += len(record.attempts)
        seen = self._class.setdefault(facts.traffic_class or "", [0, 0])
        seen[0] += 1
        if record.ok:
            seen[1] += 1
            self._latency.append(record.duration_s)
            if record.first_token_at is not None:
                self._ttft.append(record.first_token_at - record.arrived_at)
            self._cached += record.outcome.cached_tokens or 0
            self._reusable += 64 * facts.turn.known_blocks
        else:
            self._failed += 1
            self._refused += record.rejection is not None
        return usd

    def _cost(self, attempt: AttemptRecord, facts: TurnFacts) -> float:
        """USD of one attempt. One that broke after it began is charged its prompt."""
        outcome = attempt.outcome
        if outcome.kind is FailureClass.OK:
            prompt, cached = outcome.input_tokens or 0, outcome.cached_tokens or 0
            output = outcome.output_tokens or 0
        elif attempt.first_token_at is not None:
            prompt, cached, output = facts.prompt_tokens, 0, 0
        else:
            return 0.0
        price = self.prices[attempt.endpoint_id]
        rates = self._rates.get(attempt.endpoint_id)
        if rates is None or rates[0] is not price:
            rates = self._rates[attempt.endpoint_id] = _rates(price)
        _, full, known, out = rates
        return ((prompt - cached) * full + cached * known + output * out) / 1e6

    def _counts(self, at: float) -> bool:
        return self._warmup_s <= at < self._duration_s

    def _lines(self, record: CallRecord, usd: float) -> None:
        at, fine = self.bin(record.arrived_at), int(record.arrived_at / FINE_S)
        self._begun[at] += 1
        self._bin_usd[at] += usd
        if fine < len(self._fine):
            self._fine[fine] += 1
            self._fine_good[fine] += record.ok
        if record.ok:
            self._good[at] += 1
            self._bin_s[at] += record.duration_s
            if record.first_token_at is not None:
                self._bin_ttft[at] += record.first_token_at - record.arrived_at

    def visit(self, began_at: float, usd: float, *, ok: bool) -> None:
        """Book the end of a visit."""
        if self._counts(began_at):
            self._tasks += 1
            self._tasks_ok += ok
            self._usd += usd
            self._wasted_usd += 0.0 if ok else usd

    def figures(self, contender: str, seed: int, *, lines: bool) -> Figures:
        """What it all comes to."""
        latency, ttft = sorted(self._latency), sorted(self._ttft)
        calls, span = max(1, self._calls), self._duration_s - self._warmup_s
        first, half = self.bin(self._warmup_s), self.bin((self._warmup_s + self._duration_s) / 2)
        return Figures(
            contender=contender,
            seed=seed,
            calls=self._calls,
            failed=self._failed / calls,
            refused=self._refused / calls,
            amplification=self._attempts / calls,
            mean_s=_mean(latency),
            p50_s=_quantile(latency, 0.5),
            p99_s=_quantile(latency, 0.99),
            ttft_s=_mean(ttft),
            ttft_p99_s=_quantile(ttft, 0.99),
            hit_rate=self._cached / self._reusable if self._reusable else NAN,
            tasks=self._tasks,
            task_success=self._tasks_ok / self._tasks if self._tasks else NAN,
            tasks_per_s=self._tasks_ok / span,
            calls_per_s=len(latency) / span,
            cost_usd=self._usd,
            cost_per_task=self._usd / self._tasks_ok if self._tasks_ok else NAN,
            wasted=min(1.0, self._wasted_usd / self._usd) if self._usd else 0.0,
            share=self._shares(first),
            late_share=self._shares(half),
            recovered_s=self._recovered(),
            by_class={name: good / n for name, (n, good) in self._class.items()},
            lines=self._time_lines() if lines else None,
        )

    def _shares(self, first: int) -> dict[str, float]:
        sums = {e: sum(row[first:BINS]) for e, row in self._sends.items()}
        total = sum(sums.values())
        return {e: n / total if total else 0.0 for e, n in sums.items()}

    def _recovered(self) -> float:
        """From the last fault's end to the first half minute from which on all have 95 %."""
        if self._last_fault_s is None:
            return NAN
        per = int(RECOVERY_S / FINE_S)
        last = int(self._duration_s / FINE_S) - per
        first = int(self._last_fault_s / FINE_S)
        good_from = math.inf
        for at in range(last, first - 1, -1):
            begun = sum(self._fine[at : at + per])
            if begun and sum(self._fine_good[at : at + per]) < 0.95 * begun:
                break
            good_from = at * FINE_S
        return good_from - self._last_fault_s if good_from != math.inf else math.inf

    def _time_lines(self) -> Lines:
        def per_good(row: Sequence[float]) -> list[float]:
            return [v / g if g else NAN for v, g in zip(row, self._good, strict=True)][:BINS]

        begun = self._begun
        return Lines(
            step_s=self._step_s,
            sends={e: row[:BINS] for e, row in self._sends.items()},
            inflight={e: row[:BINS] for e, row in self._inflight.items()},
            answered=[g / n if n else NAN for g, n in zip(self._good, begun, strict=True)][:BINS],
            latency_s=per_good(self._bin_s),
            ttft_s=per_good(self._bin_ttft),
            cost_per_call=[u / n if n else NAN for u, n in zip(self._bin_usd, begun, strict=True)][
                :BINS
            ],
            open_breakers={e: row[:BINS] for e, row in self._open.items()},
        )


FINE_S = 5.0
RECOVERY_S = 30.0


def _rates(price: Price) -> tuple[Price, float, float, float]:
    full = float(price.input_per_mtok or 0)
    known = float(price.cached_input_per_mtok or price.input_per_mtok or 0)
    return price, full, known, float(price.output_per_mtok or 0)
