"""An inference engine at the level of its scheduler's iterations: continuous batching in a model.

    submit ──overhead──▶ waiting ──admit──▶ prefilling ──last chunk──▶ decoding ──last token──▶ done
                         (FCFS)   (KV free)  (chunks)     first token

Each iteration ("step") has a budget of tokens: one for every decoding sequence first, the rest for
chunks of prompts in arrival order. Its length is

    max(floor, slope * (prefill + batch)) + context_coef * sum(context)
        + sequence_s * batch + overhead

so a large chunk stretches every running decode, which is the interference that matters to a client.
A prefix hit shortens the prefill; the KV space is held all the same. Reproduces the table of
engines it was calibrated against (8B and 70B on A100 and H100, Azure conversation lengths), from
floors and slopes summed over the linear operators of Vidur's published kernel profiles (MIT).

Pure: reads no clock, does no I/O. Instants are seconds, passed in, and may not go backwards.
Decode-only stretches are advanced in closed form, so the cost is per event, not per token.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from headway.lab.engine_profile import EngineProfile

BLOCK_TOKENS = 64
"""Granularity of the prefix cache, as in the agent traces; vLLM's is 16, SGLang's is 1."""

NEVER = float("inf")


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
    _first_index: int = 0
    _held: int = 0
    _admitted: bool = False


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


class PrefixCache:
    """Least-recently-used set of block identities."""

    def __init__(self, blocks: int) -> None:
        self.limit = blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def hit(self, blocks: Sequence[int]) -> int:
        """Number of leading blocks that are cached; they become the most recently used."""
        known = self._blocks
        n = 0
        for block in blocks:
            if block not in known:
                break
            known.move_to_end(block)
            n += 1
        return n

    def peek(self, blocks: Sequence[int]) -> int:
        """`hit`, but nothing is used by looking."""
        known = self._blocks
        n = 0
        for block in blocks:
            if block not in known:
                break
            n += 1
        return n

    def insert(self, blocks: Sequence[int], limit: int | None = None) -> None:
        """Remember `blocks`, evicting the least recently used beyond the limit."""
        known = self._blocks
        # Deepest first: eviction must take the tail of a prompt before its head.
        for block in reversed(blocks):
            known[block] = None
            known.move_to_end(block)
        bound = self.limit if limit is None else min(self.limit, limit)
        while len(known) > max(bound, 0):
            known.popitem(last=False)

    def clear(self) -> None:
        """Forget everything, as a restart does."""
        self._blocks.clear()


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
        self._waiting: deque[EngineRequest] = deque()
        self._prefilling: deque[EngineRequest] = deque()
        self._decoding: list[tuple[int, int, EngineRequest]] = []  # (last index, tie, request)
        self._batch = 0
        self._context = 0  # tokens read by attention per decode step, all sequences
        self._index = 0  # decode steps taken so far
        self._tie = 0
        self._reserved = 0
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
        """Share of the KV space that is reserved."""
        return self._reserved / self.profile.kv_tokens

    @property
    def decoding(self) -> int:
        """Sequences that produce a token in every step."""
        return self._batch

    @property
    def prefill_backlog(self) -> int:
        """Prompt tokens still to compute, of admitted and of waiting requests (hits unknown)."""
        return sum(r.prefill_left for r in self._prefilling) + sum(
            r.prompt_tokens for r in self._waiting
        )

    def busy_until(self, now: float) -> float:
        """When the step under way ends."""
        return now if self._step is None else max(now, self._step.ends_at)

    def step_s(self, prefill: int, *, more: int = 0, more_context: int = 0) -> float:
        """Length of a step with `prefill` prompt tokens, were `more` sequences decoding too."""
        p, batch = self.profile, self._batch + more
        return self.slowdown * (
            max(p.floor_s, p.slope_s * (prefill + batch))
            + p.context_coef_s * (self._context + more_context)
            + p.sequence_s * batch
            + p.overhead_s
        )

    def emitted(self, request: EngineRequest) -> int:
        """Tokens of `request` produced by the last completed step."""
        if request.finished_at is not None:
            return request.output_tokens
        if request.first_token_at is None:
            return 0
        return self._index - request._first_index + 1

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
        if not request._admitted:
            self._waiting.remove(request)
            return
        if request.first_token_at is None:
            self._prefilling.remove(request)
        else:
            self._decoding = [entry for entry in self._decoding if entry[2] is not request]
            heapq.heapify(self._decoding)
            self._batch -= 1
            self._context -= request.prompt_tokens + self.emitted(request)
        self._release(request)

    def advance(self, now: float) -> list[EngineEvent]:
        """Run all steps that end by `now`; return what happened in them, in order."""
        events: list[EngineEvent] = []
        while True:
            step = self._step
            if step is None:
                step = self._plan(now, events)
                if step is None:
                    break
                self._step = step
            if step.ends_at > now:
                break
            self._complete(step, events)
            self._step = None
        return events

    def next_event_at(self) -> float:
        """When `advance` may next report something if nothing is submitted (a lower bound)."""
        step = self._step
        if step is not None:
            if step.chunks or self._prefilling or not self._decoding:
                return step.ends_at
            # Decode only: nothing happens until the first sequence ends or the next one joins.
            n = self._decoding[0][0] - self._index
            growth = self.slowdown * self.profile.context_coef_s * self._batch
            ends_at = self._now + n * (step.ends_at - self._now) + growth * n * (n - 1) / 2
            if self._waiting and self._waiting[0].ready_at < ends_at:
                return max(step.ends_at, self._waiting[0].ready_at)
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
            self._admit()
            if self._prefilling:
                return self._plan_mixed()
            if not self._run_decode(now, events):
                return _Step(self._now + self.step_s(0))

    def _admit(self) -> None:
        p = self.profile
        waiting = self._waiting
        while waiting and waiting[0].ready_at <= self._now:
            request = waiting[0]
            need = request.prompt_tokens + request.output_tokens
            if self.running >= p.sequences_max or self._reserved + need > p.kv_tokens:
                return
            waiting.popleft()
            request._admitted = True
            self._reserved += need
            hit = self.cache.hit(request.blocks) * BLOCK_TOKENS
            # The last token is always computed: its logits are the first output.
            request.cached_tokens = min(hit, request.prompt_tokens - 1)
            request.prefill_left = request.prompt_tokens - request.cached_tokens
            self._prefilling.append(request)

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
        if self._waiting and self._waiting[0].ready_at > self._now:
            until = min(until, self._waiting[0].ready_at)
        first = self.step_s(0)
        growth = self.slowdown * self.profile.context_coef_s * self._batch
        span = until - self._now
        if first > span:
            return False
        # n steps take n*first + growth*n*(n-1)/2: the largest n that fits in `span`.
        if growth > 0:
            b = first - growth / 2
            n = int((sqrt(b * b + 2 * growth * span) - b) / growth)
        else:
            n = int(span / first)
        n = min(max(n, 1), self._decoding[0][0] - self._index)
        spent = n * first + growth * n * (n - 1) / 2
        self._now += spent
        self._decoded(n)
        self.busy_s += spent
        self.steps += n
        self._end_decoded(events)
        return True

    def _decoded(self, steps: int) -> None:
        self._index += steps
        self._context += steps * self._batch

    def _complete(self, step: _Step, events: list[EngineEvent]) -> None:
        self.busy_s += step.ends_at - self._now
        self.steps += 1
        self._now = step.ends_at
        self._decoded(1)
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
        request.first_token_at = self._now
        request._first_index = self._index
        events.append(EngineEvent("first_token", request, self._now))
        if request.blocks:
            request._held = len(request.blocks)
            self._own_blocks += request._held
            idle = self._blocks - self._reserved // BLOCK_TOKENS + self._own_blocks
            self.cache.insert(request.blocks, idle)
        if request.output_tokens == 1:
            self._finish(request, events)
            return
        self._batch += 1
        self._context += request.prompt_tokens + 1
        self._tie += 1
        last = self._index + request.output_tokens - 1
        heapq.heappush(self._decoding, (last, self._tie, request))

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
        self._reserved -= request.prompt_tokens + request.output_tokens
        self._own_blocks -= request._held
        request._held = 0
