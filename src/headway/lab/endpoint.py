"""One simulated endpoint: HTTP in front, an engine model behind, faults in between.

It keeps a ledger of every request it saw, in the provider's role: what ran, what was cached, what
it would bill. The demos compare what clients believe with what this ledger says.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, cast

from headway.lab.engine_model import BLOCK_TOKENS, EngineModel, EngineRequest
from headway.lab.engine_profile import EngineProfile
from headway.lab.faults import Fault, FaultKind
from headway.lab.http1 import Exchange, Listener
from headway.lab.surfaces import (
    CHARS_PER_TOKEN,
    SURFACES,
    BodyError,
    Json,
    Surface,
    TokenUsage,
)

LEDGER_ROWS_MAX = 200_000
"""A two-minute demo makes about 10,000; the oldest go first."""


class LedgerRow(NamedTuple):
    """One request as the endpoint saw it. Seconds are real ones since the run's start."""

    endpoint: str
    at_s: float
    outcome: str
    """ok | abandoned | died | cut | throttle | unavailable | hang | refused | bad_request"""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float | None
    total_s: float
    user: str = ""
    """The request's `user` field."""


@dataclass(slots=True, eq=False)
class _Job:
    exchange: Exchange
    surface: Surface
    started_at: float
    cut_after: int | None
    sent: int = 0
    sent_at: float = 0.0
    first_token_at: float | None = None


def prompt_blocks(text: str) -> list[int]:
    """Identities of the leading full blocks of a prompt; each depends on all text before it."""
    size = BLOCK_TOKENS * CHARS_PER_TOKEN
    blocks: list[int] = []
    chained = 0
    for start in range(0, len(text) - size + 1, size):
        chained = hash((chained, text[start : start + size]))
        blocks.append(chained)
    return blocks


class SimulatedEndpoint:
    """Serves OpenAI-compatible paths on one loopback port."""

    def __init__(
        self,
        name: str,
        profile: EngineProfile,
        *,
        clock: Callable[[], float],
        time_scale: float,
        chunk_interval_s: float,
        seed: int = 0,
    ) -> None:
        self.name = name
        self.profile = profile
        self.listener = Listener(self.handle)
        self.ledger: deque[LedgerRow] = deque(maxlen=LEDGER_ROWS_MAX)
        self.engine = EngineModel(profile)
        self._clock = clock
        self._scale = time_scale
        self._chunk_interval_s = chunk_interval_s
        self._rng = random.Random(f"{seed}/{name}")
        self._faults: tuple[Fault, ...] = ()
        self._jobs: dict[EngineRequest, _Job] = {}
        self._serial = 0
        self._dead = False
        self._totals = {"prompt": 0, "cached": 0, "output": 0, "ok": 0}

    # ------------------------------------------------------------------ control

    def set_faults(self, faults: Iterable[Fault]) -> None:
        """Replace the timeline; instants are on the endpoint's clock."""
        self._faults = tuple(f for f in faults if f.endpoint == self.name)

    def reset(self) -> None:
        """A fresh engine with cold caches and an empty ledger."""
        self._drop_jobs("died")
        self.engine = EngineModel(self.profile)
        self.ledger.clear()

    @property
    def busy(self) -> bool:
        """Does it have work that time moves forward?"""
        return bool(self._jobs)

    async def apply_faults(self, now: float) -> None:
        """Bring liveness and speed in line with the timeline."""
        dead, factor = False, 1.0
        for fault in self._faults:
            if fault.active(now):
                dead |= fault.kind is FaultKind.DIE
                if fault.kind is FaultKind.SLOW:
                    factor = max(factor, fault.factor)
        self.engine.slowdown = factor
        if dead and not self._dead:
            self._dead = True
            self._drop_jobs("died")
            self.engine = EngineModel(self.profile)  # a new process: its cache is cold
            self.listener.refuse()
        elif self._dead and not dead:
            self._dead = False  # first: a run's start and the ticker may both come here
            await self.listener.open()

    # ------------------------------------------------------------------ requests

    def handle(self, exchange: Exchange) -> None:
        """Answer one HTTP request."""
        request = exchange.request
        path = request.path.partition("?")[0]
        surface_type = SURFACES.get(path)
        if surface_type is not None and request.method == "POST":
            self._generate(exchange, surface_type)
        elif path == "/metrics":
            exchange.reply(200, self.metrics().encode(), content_type="text/plain; version=0.0.4")
        elif path == "/v1/models":
            model = {"id": self.profile.name, "object": "model", "created": 0, "owned_by": "lab"}
            exchange.reply(200, json.dumps({"object": "list", "data": [model]}).encode())
        elif path == "/health":
            exchange.reply(200, b"{}")
        else:
            exchange.reply(404, _error(f"no such path: {path}", "not_found_error"))

    def _generate(self, exchange: Exchange, surface_type: Callable[[Json, int], Surface]) -> None:
        now = self._clock()
        fault = self._fault_for_request(now)
        if fault is not None and self._refuse_by_fault(exchange, fault, now):
            return
        self._serial += 1
        try:
            body = cast("object", json.loads(exchange.request.body))
            if not isinstance(body, dict):
                raise BodyError("expected an object")
            surface = surface_type(cast("Json", body), self._serial)
            tokens = -(-len(surface.prompt) // CHARS_PER_TOKEN)
            engine_request = self.engine.submit(
                now * self._scale, tokens, surface.output_tokens, prompt_blocks(surface.prompt)
            )
        except ValueError as exc:  # JSON, shape, or a prompt beyond the context
            self._record_refusal("bad_request", now)
            exchange.reply(400, _error(str(exc), "invalid_request_error"))
            return
        cut_after = fault.after_tokens if fault and fault.kind is FaultKind.CUT else None
        self._jobs[engine_request] = _Job(exchange, surface, now, cut_after)
        exchange.on_close = lambda: self._abandon(engine_request)

    def _fault_for_request(self, now: float) -> Fault | None:
        for fault in self._faults:
            if (
                fault.active(now)
                and fault.kind not in {FaultKind.SLOW, FaultKind.DIE}
                and (fault.share >= 1.0 or self._rng.random() < fault.share)
            ):
                return fault
        return None

    def _refuse_by_fault(self, exchange: Exchange, fault: Fault, now: float) -> bool:
        if fault.kind is FaultKind.THROTTLE:
            self._record_refusal("throttle", now)
            hint = {"retry-after": f"{fault.retry_after_s:g}"}
            body = _error("Rate limit reached", "rate_limit_error", "rate_limit_exceeded")
            exchange.reply(429, body, headers=hint)
        elif fault.kind is FaultKind.UNAVAILABLE:
            self._record_refusal("unavailable", now)
            exchange.reply(503, _error("The server is overloaded", "server_error"))
        elif fault.kind is FaultKind.HANG:
            self._record_refusal("hang", now)  # no answer: the exchange stays open
        else:
            return False
        return True

    # ------------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Let the engine run to `now` and write what it produced."""
        if not self._jobs:
            return
        for event in self.engine.advance(now * self._scale):
            job = self._jobs.get(event.request)
            if job is None:
                continue
            if event.kind == "first_token":
                job.first_token_at = now
                if job.surface.stream:
                    job.exchange.start()
                    job.exchange.chunk(job.surface.opening())
                    self._deliver(event.request, job, now)
            else:
                self._finish(event.request, job, now)
        due = now - self._chunk_interval_s
        for request, job in list(self._jobs.items()):
            if job.exchange.started and job.sent_at <= due:
                self._deliver(request, job, now)

    def _deliver(self, request: EngineRequest, job: _Job, now: float) -> None:
        emitted = self.engine.emitted(request)
        if job.cut_after is not None and emitted >= job.cut_after:
            self.engine.cancel(request)
            self._end(request, job, "cut", emitted)
            job.exchange.cut()
        elif emitted > job.sent:
            job.exchange.chunk(job.surface.delta(job.sent, emitted))
            job.sent, job.sent_at = emitted, now

    def _finish(self, request: EngineRequest, job: _Job, now: float) -> None:
        usage = TokenUsage(request.prompt_tokens, request.cached_tokens, request.output_tokens)
        if not job.surface.stream:
            if job.cut_after is not None:
                self._end(request, job, "cut", request.output_tokens)
                job.exchange.cut()
                return
            self._end(request, job, "ok", request.output_tokens)
            job.exchange.reply(200, job.surface.whole(usage))
            return
        self._deliver(request, job, now)
        if job.exchange.closed:
            return
        self._end(request, job, "ok", request.output_tokens)
        job.exchange.chunk(job.surface.closing(usage))
        job.exchange.finish()

    def _abandon(self, request: EngineRequest) -> None:
        job = self._jobs.get(request)
        if job is not None:
            emitted = self.engine.emitted(request)
            self.engine.cancel(request)
            self._end(request, job, "abandoned", emitted)

    def _drop_jobs(self, outcome: str) -> None:
        for request, job in list(self._jobs.items()):
            self._end(request, job, outcome, self.engine.emitted(request))
            job.exchange.cut()

    # ------------------------------------------------------------------ books

    def _end(self, request: EngineRequest, job: _Job, outcome: str, output: int) -> None:
        del self._jobs[request]
        started = job.first_token_at is not None
        prompt = request.prompt_tokens if started else 0
        cached = request.cached_tokens if started else 0
        totals = self._totals
        totals["prompt"] += prompt
        totals["cached"] += cached
        totals["output"] += output
        totals["ok"] += outcome == "ok"
        self.ledger.append(
            LedgerRow(
                self.name,
                job.started_at,
                outcome,
                prompt,
                cached,
                output,
                None if job.first_token_at is None else job.first_token_at - job.started_at,
                self._clock() - job.started_at,
                job.surface.user,
            )
        )

    def _record_refusal(self, outcome: str, now: float) -> None:
        self.ledger.append(LedgerRow(self.name, now, outcome, 0, 0, 0, None, 0.0))

    def metrics(self) -> str:
        """Prometheus text, under the names vLLM uses."""
        engine, totals = self.engine, self._totals
        label = f'{{model_name="{self.profile.name}"}}'
        rows = (
            ("vllm:num_requests_running", "gauge", engine.running),
            ("vllm:num_requests_waiting", "gauge", engine.waiting),
            ("vllm:kv_cache_usage_perc", "gauge", engine.kv_usage),
            ("vllm:prompt_tokens_total", "counter", totals["prompt"]),
            ("vllm:prefix_cache_hits_total", "counter", totals["cached"]),
            ("vllm:generation_tokens_total", "counter", totals["output"]),
            ("vllm:request_success_total", "counter", totals["ok"]),
        )
        return "".join(f"# TYPE {name} {kind}\n{name}{label} {n:g}\n" for name, kind, n in rows)


def _error(message: str, kind: str, code: str | None = None) -> bytes:
    error = {"message": message, "type": kind, "param": None, "code": code}
    return json.dumps({"error": error}).encode()
