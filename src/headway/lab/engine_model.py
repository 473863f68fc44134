# long: one scheduler, whose states are read together
"""An inference engine at the level of its scheduler's iterations: continuous batching in a model.

    submit ──overhead──▶ waiting ──admit──▶ prefilling ──last chunk──▶ decoding ──last token──▶ done
                         (FCFS)   (KV free)  (chunks)     first token
                            ▲                   │                          │
                            └───────────────────┴──── preempted (KV full) ─┘

Each iteration ("step") has a budget of tokens: one for every decoding sequence first, the rest for
chunks of prompts in arrival order. Its length is

    max(floor, slope * (prefill + batch)) + context_coef * sum(context)
        + sequence_s * batch + overhead

so a large chunk stretches every running decode, which is the interference that matters to a client.
A prefix hit shortens the prefill; the KV space is held all the same. A sequence holds its prompt
and what it has written; when the next step would not fit, the newest is preempted: it gives its
space back, waits at the head of the line, and computes prompt and written tokens anew, as vLLM
does. With `EngineProfile.reserves_output` room for the whole output is held from the start, as
TensorRT-LLM does by default, and nobody is preempted. `engine_table` compares the model with the
figures it was calibrated against: 8B and 70B on A100 and H100, Azure's conversation lengths, from
floors and slopes summed over the linear operators of Vidur's published kernel profiles (MIT).

Pure: reads no clock, does no I/O. Instants are seconds, passed in, and may not go backwards.
Decode-only stretches are advanced in closed form, so the cost is per event, not per token.
"""

from __future__ import annotations

import heapq
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from operator import itemgetter
from typing import NamedTuple

from headway.lab.engine_cache import PrefixCache
from headway.lab.engine_profile import EngineProfile

BLOCK_TOKENS = 64
"""Granularity of the prefix cache, as in the agent traces; vLLM's is 16, SGLang's is 1."""

NEVER = float("inf")

WAITING, PREFILLING, DECODING = range(3)


@dataclass(slots=True, eq=False)
class EngineRequest:
    """One sequence in the engine; the fields after `blocks` are the engine's to write."""

    prompt_tokens: int
    output_tokens: int
    submitted_at: float
    blocks: Sequence[int] = ()
    """Identities of the prompt's leading 64-token blocks, each chained over those before it."""
    ready_at: float = 0.0
    cached_tokens: int = 0
    prefill_left: int = 0
    first_token_at: float | None = None
    finished_at: float | None = None
    cancelled: bool = False
    preemptions: int = 0
    _first_index: int = 0
    _held: int = 0
    _written: int = 0
    """Tokens produced before it was preempted."""
    _stage: int = 0


class EngineEvent(NamedTuple):
    """A first token or an end; `at` is exact even when reported later."""

    kind: str
    """first_token | finished"""
    request: EngineRequest
    at: float


@dataclass(slots=True)
class _Step:
    ends_at: float
    chunks: Sequence[tuple[EngineRequest, int]] = ()


class EngineModel:
    """One engine replica. Submit, then advance; events come back in time order."""

    def __init__(self, profile: EngineProfile, *, slowdown: float = 1.0) -> None:
        self.profile = profile
        self.slowdown = slowdown
        """Factor on the length of every step that starts from now on (a fault to inject)."""
        blocks = profile.kv_tokens // BLOCK_TOKENS
        self.cache = PrefixCache(profile.cache_blocks or blocks)
        self.busy_s = 0.0
        self.steps = 0
        self._blocks = blocks
        self._now = 0.0
        self._step: _Step | None = None
        self._floor_s = profile.floor_s
        self._slope_s = profile.slope_s
        self._context_coef_s = profile.context_coef_s
        self._sequence_s = profile.sequence_s
        self._overhead_s = profile.overhead_s
        self._waiting: deque[EngineRequest] = deque()
        self._prefilling: deque[EngineRequest] = deque()
        self._decoding: list[tuple[int, int, EngineRequest]] = []  # (last index, tie, request)
        self._batch = 0
        self._context = 0  # tokens read by attention per decode step, all sequences
        self._index = 0  # decode steps taken so far
        self._tie = 0
        self._reserves = profile.reserves_output
        # KV tokens held: for all that run with what they will write, or, without reservation, by
        # those that prefill; what decodes then holds its context.
        self._held = 0
        self.preemptions = 0
        self._own_blocks = 0  # blocks in the cache that belong to running sequences

    # ------------------------------------------------------------------ what it looks like

    @property
    def waiting(self) -> int:
        """Requests not yet admitted."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests admitted and not ended."""
        return len(self._prefilling) + self._batch

    @property
    def kv_usage(self) -> float:
        """Share of the KV space that is held."""
        return self._kv_held / self.profile.kv_tokens

    @property
    def _kv_held(self) -> int:
        return self._held if self._reserves else self._held + self._context

    @property
    def decoding(self) -> int:
        """Sequences that produce a token in every step."""
        return self._batch

    @property
    def prefill_backlog(self) -> int:
        """Prompt tokens still to compute, of admitted and of waiting requests (hits unknown)."""
        return sum(r.prefill_left for r in self._prefilling) + sum(
            r.prompt_tokens + r._written for r in self._waiting
        )

    def busy_until(self, now: float) -> float:
        """When the step under way ends."""
        return now if self._step is None else max(now, self._step.ends_at)

    def step_s(self, prefill: int, *, more: int = 0, more_context: int = 0) -> float:
        """Length of a step with `prefill` prompt tokens, were `more` sequences decoding too."""
        batch = self._batch + more
        return self.slowdown * (
            max(self._floor_s, self._slope_s * (prefill + batch))
            + self._context_coef_s * (self._context + more_context)
            + self._sequence_s * batch
            + self._overhead_s
        )

    def emitted(self, request: EngineRequest) -> int:
        """Tokens of `request` produced by the last completed step."""
        if request.finished_at is not None:
            return request.output_tokens
        if request._stage == DECODING:
            return self._index - request._first_index + 1
        return request._written

    # ------------------------------------------------------------------ what happens to it

    def submit(
        self, now: float, prompt_tokens: int, output_tokens: int, blocks: Sequence[int] = ()
    ) -> EngineRequest:
        """Queue a request at `now`. Raises ValueError if it can never fit the KV space."""
        prompt_tokens, output_tokens = max(prompt_tokens, 1), max(output_tokens, 1)
        if prompt_tokens + output_tokens > self.profile.kv_tokens:
            msg = f"{prompt_tokens} + {output_tokens} tokens exceed {self.profile.kv_tokens}"
            raise ValueError(msg)
        request = EngineRequest(prompt_tokens, output_tokens, now, blocks)
        request.ready_at = now + self.profile.api_overhead_s * self.slowdown
        self._waiting.append(request)
        return request

    def cancel(self, request: EngineRequest) -> None:
        """The caller went away. The step under way keeps its length."""
        if request.finished_at is not None or request.cancelled:
            return
        request.cancelled = True
        if request._stage == WAITING:
            self._waiting.remove(request)
            return
        self._take_out(request)

    def advance(self, now: float) -> list[EngineEvent]:
        """Run all steps that end by `now`; return what happened in them, in order."""
        events: list[EngineEvent] = []
        while True:
            step = self._step
            if step is None:
                step = self._plan(now, events)
                if step is None:
                    break
            if step.ends_at > now:
                self._step = step
                break
            self._complete(step, events)
            self._step = None
        return events

    def next_event_at(self, *, reports_only: bool = False) -> float:
        """When `advance` may next report something if nothing is submitted (a lower bound).

        `reports_only`: not when a request is admitted, for whoever doesn't look at the queue.
        """
        step = self._step
        if step is not None:
            if step.chunks or self._prefilling or not self._decoding:
                return step.ends_at
            # Decode only: nothing happens until the first sequence ends, the next one joins, or
            # the KV space is full.
            n = self._decoding[0][0] - self._index
            if not self._reserves:
                n = min(n, self._steps_that_fit())
            growth = self.slowdown * self._context_coef_s * self._batch
            ends_at = self._now + n * (step.ends_at - self._now) + growth * n * (n - 1) / 2
            waiting = self._waiting
            if waiting and waiting[0].ready_at < ends_at and self._fits(waiting[0]):
                if reports_only and not waiting[0].blocks:
                    return self._first_chunk_ends_at(step, waiting[0], n)
                return max(step.ends_at, waiting[0].ready_at)
            return ends_at
        if self._batch or self._prefilling:
            return self._now
        if self._waiting:
            return max(self._now, self._waiting[0].ready_at)
        return NEVER

    # ------------------------------------------------------------------ inside

    def _plan(self, now: float, events: list[EngineEvent]) -> _Step | None:
        """The step that starts at `_now`, after skipping idle and decode-only stretches."""
        while True:
            if not self._batch and not self._prefilling:
                if not self._waiting:
                    return None
                self._now = max(self._now, self._waiting[0].ready_at)
                if self._now > now:
                    return None
            if not self._reserves:
                self._make_room()
            if self._waiting and self._waiting[0].ready_at <= self._now:
                self._admit()
            if self._prefilling:
                return self._plan_mixed()
            if not self._run_decode(now, events):
                return _Step(self._now + self.step_s(0))

    def _fits(self, request: EngineRequest) -> bool:
        """Whether the request could be admitted to the next step."""
        p = self.profile
        if self.running >= p.sequences_max:
            return False
        if self._reserves:
            return self._held + request.prompt_tokens + request.output_tokens <= p.kv_tokens
        # All that decode write a token in the next step: who was preempted for their sake must not
        # come back in it.
        need = request.prompt_tokens + request._written + 1
        return self._held + self._context + self._batch + need <= p.kv_tokens

    def _first_chunk_ends_at(self, step: _Step, joins: EngineRequest, free: int) -> float:
        """When the step ends that first computes something of the request, which will join what
        decodes; not more than `free` steps are nothing but decoding."""
        batch, steps, admitted_at = self._batch, 1, step.ends_at
        if admitted_at < joins.ready_at:
            growth = self.slowdown * self._context_coef_s * batch
            first = self.step_s(0, more_context=batch)
            n = _steps_within(joins.ready_at - admitted_at, first, growth)
            admitted_at += n * first + growth * n * (n - 1) / 2
            if admitted_at < joins.ready_at:
                admitted_at += first + growth * n
                n += 1
            steps += n
        if steps >= free:
            return max(step.ends_at, joins.ready_at)
        chunk = min(joins.prompt_tokens + joins._written, self.profile.step_tokens - batch)
        return admitted_at + self.step_s(max(chunk, 1), more_context=steps * batch)

    def _admit(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].ready_at <= self._now and self._fits(waiting[0]):
            request = waiting.popleft()
            request._stage = PREFILLING
            tokens = request.prompt_tokens + request._written
            self._held += self._holds(request)
            hit = self.cache.hit(request.blocks) * BLOCK_TOKENS
            # The last token is always computed: its logits are the first output.
            hit = min(hit, tokens - 1)
            if not request.preemptions:
                request.cached_tokens = min(hit, request.prompt_tokens - 1)
            request.prefill_left = tokens - hit
            self._prefilling.append(request)

    def _holds(self, request: EngineRequest) -> int:
        """KV tokens that `_held` counts for the request while it prefills."""
        if self._reserves:
            return request.prompt_tokens + request.output_tokens
        return request.prompt_tokens + request._written + 1

    def _steps_that_fit(self) -> int:
        """Decode steps until the KV space is full."""
        if self._reserves or not self._batch:
            return sys.maxsize
        return max(1, (self.profile.kv_tokens - self._held - self._context) // self._batch)

    def _make_room(self) -> None:
        """Preempt the newest until the next step's tokens fit."""
        limit = self.profile.kv_tokens
        while self._held + self._context + self._batch > limit and self.running > 1:
            if self._prefilling:  # admitted in turn, and after all that decode
                request = self._prefilling[-1]
            else:
                request = max(self._decoding, key=itemgetter(1))[2]
            written = self.emitted(request)
            self._take_out(request)
            request._written = written
            request._stage = WAITING
            request.preemptions += 1
            self.preemptions += 1
            self._waiting.appendleft(request)

    def _take_out(self, request: EngineRequest) -> None:
        """Of what runs; the step under way keeps its length."""
        if request._stage == PREFILLING:
            self._prefilling.remove(request)
        else:
            self._decoding = [entry for entry in self._decoding if entry[2] is not request]
            heapq.heapify(self._decoding)
            self._batch -= 1
            self._context -= request.prompt_tokens + self.emitted(request)
        self._release(request)

    def _plan_mixed(self) -> _Step:
        budget = max(self.profile.step_tokens - self._batch, 1)
        chunks: list[tuple[EngineRequest, int]] = []
        prefill = 0
        for request in self._prefilling:
            chunk = min(request.prefill_left, budget - prefill)
            if chunk <= 0:
                break
            chunks.append((request, chunk))
            prefill += chunk
        return _Step(self._now + self.step_s(prefill), chunks)

    def _run_decode(self, now: float, events: list[EngineEvent]) -> bool:
        """Take all decode-only steps that end by `now` up to the next end or arrival at once.

        False: not even one more step fits.
        """
        until = now
        if self._waiting and self._now < self._waiting[0].ready_at < until:
            until = self._waiting[0].ready_at
        first = self.step_s(0)
        growth = self.slowdown * self._context_coef_s * self._batch
        span = until - self._now
        if first > span:
            return False
        n = _steps_within(span, first, growth)
        n = min(max(n, 1), self._decoding[0][0] - self._index)
        if not self._reserves:
            n = min(n, self._steps_that_fit())
        spent = n * first + growth * n * (n - 1) / 2
        self._now += spent
        self._index += n
        self._context += n * self._batch
        self.busy_s += spent
        self.steps += n
        if self._decoding[0][0] <= self._index:
            self._end_decoded(events)
        return True

    def _complete(self, step: _Step, events: list[EngineEvent]) -> None:
        self.busy_s += step.ends_at - self._now
        self.steps += 1
        self._now = step.ends_at
        self._index += 1
        self._context += self._batch
        self._end_decoded(events)
        for request, chunk in step.chunks:
            if request.cancelled:
                continue
            request.prefill_left -= chunk
            if request.prefill_left:
                continue
            self._prefilling.remove(request)  # nearly always the head: O(1)
            self._begin_decoding(request, events)

    def _begin_decoding(self, request: EngineRequest, events: list[EngineEvent]) -> None:
        if not request._written:
            request.first_token_at = self._now
            events.append(EngineEvent("first_token", request, self._now))
        written = request._written + 1
        if not self._reserves:
            self._held -= self._holds(request)
        request._stage = DECODING
        request._first_index = self._index - written + 1
        self._batch += 1
        self._context += request.prompt_tokens + written
        if request.blocks:
            request._held = len(request.blocks)
            self._own_blocks += request._held
            idle = self._blocks - self._kv_held // BLOCK_TOKENS + self._own_blocks
            self.cache.insert(request.blocks, idle)
        self._tie += 1
        last = self._index + request.output_tokens - written
        heapq.heappush(self._decoding, (last, self._tie, request))
        if last == self._index:
            self._end_decoded(events)

    def _end_decoded(self, events: list[EngineEvent]) -> None:
        decoding = self._decoding
        while decoding and decoding[0][0] <= self._index:
            request = heapq.heappop(decoding)[2]
            self._batch -= 1
            self._context -= request.prompt_tokens + request.output_tokens
            self._finish(request, events)

    def _finish(self, request: EngineRequest, events: list[EngineEvent]) -> None:
        request.finished_at = self._now
        self._release(request)
        events.append(EngineEvent("finished", request, self._now))

    def _release(self, request: EngineRequest) -> None:
        if self._reserves or request._stage == PREFILLING:
            self._held -= self._holds(request)
        self._own_blocks -= request._held
        request._held = 0


def _steps_within(span_s: float, first_s: float, growth_s: float) -> int:
    """How many steps fit, if each takes `growth_s` longer than the one before.

    n of them take n * first + growth * n * (n - 1) / 2.
    """
    if growth_s > 0:
        b = first_s - growth_s / 2
        return int((sqrt(b * b + 2 * growth_s * span_s) - b) / growth_s)
    return int(span_s / first_s)
