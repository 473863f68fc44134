"""Selection rules to compare with, as a client could run them, and LiteLLM's.

One class per rule, one row in `RULES`. The LiteLLM rules are written from the behaviour of
`litellm.Router` 1.106 with its defaults, one router per process and no Redis;
`make simulate-litellm` checks them against the real strategies.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from headway.core.model import Attempt, CallFacts, FailureClass, Outcome
from headway.core.snapshot import Price
from headway.lab.engine_model import BLOCK_TOKENS
from headway.lab.sim.plain import Rules
from headway.lab.sim.workload import TurnFacts

BLOCKS_KNOWN_MAX = 131_072
"""Prompt blocks an LMetric client remembers per endpoint: 8 M tokens."""


class Fixed(Rules):
    """A plain client: one base URL, the same one for ever. Processes are spread by weight."""

    def __init__(
        self, ids: Sequence[str], weights: Sequence[float], rng: random.Random, process: int
    ) -> None:
        super().__init__(ids, weights, rng, process)
        self._mine = rng.choices(self.ids, self.weights)[0]

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """Always the same."""
        return self._mine


class Uniform(Rules):
    """At random, all alike."""

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """Any."""
        return self.rng.choice(self.ids)


class RoundRobin(Rules):
    """In turn, from a random one on."""

    def __init__(
        self, ids: Sequence[str], weights: Sequence[float], rng: random.Random, process: int
    ) -> None:
        super().__init__(ids, weights, rng, process)
        self._next = rng.randrange(len(self.ids))

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """The next."""
        self._next = (self._next + 1) % len(self.ids)
        return self.ids[self._next]


class WeightedRandom(Rules):
    """At random, by published weight."""

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """Any, by weight."""
        return self.rng.choices(self.ids, self.weights)[0]


class LeastInflight(Rules):
    """Fewest own outstanding per weight; ties at random by weight."""

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """The least loaded, as far as this process knows."""
        load = {e: self.inflight[e] / self.weight_of[e] for e in self.ids}
        low = min(load.values())
        ties = [e for e in self.ids if load[e] <= low]
        return self.rng.choices(ties, [self.weight_of[e] for e in ties])[0]


class TwoChoices(Rules):
    """Two draws by weight, the one with fewer own outstanding per weight."""

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """The better of two."""
        a, b = self.rng.choices(self.ids, self.weights, k=2)
        load_a = self.inflight[a] / self.weight_of[a]
        load_b = self.inflight[b] / self.weight_of[b]
        return b if load_b < load_a else a


class SessionHash(Rules):
    """Rendezvous hashing by session, weighted at random without one."""

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """The session's own."""
        session = facts.session
        if session is None:
            return self.rng.choices(self.ids, self.weights)[0]

        def score(endpoint: str) -> float:
            digest = blake2b(f"{session}/{endpoint}".encode(), digest_size=8).digest()
            u = (int.from_bytes(digest, "big") + 1) / 2.0**64
            return math.log(u) / self.weight_of[endpoint]

        return max(self.ids, key=score)


class LMetric(Rules):
    """(prompt tokens not known there) x (own outstanding + 1), the smallest; from own history."""

    def __init__(
        self, ids: Sequence[str], weights: Sequence[float], rng: random.Random, process: int
    ) -> None:
        super().__init__(ids, weights, rng, process)
        self._known: dict[str, OrderedDict[int, None]] = {e: OrderedDict() for e in ids}

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """The smallest product; ties at random."""
        blocks = facts.turn.blocks if isinstance(facts, TurnFacts) else ()
        costs: dict[str, float] = {}
        for endpoint in self.ids:
            known, hits = self._known[endpoint], 0
            for block in blocks:
                if block not in known:
                    break
                hits += 1
            uncached = max(1, facts.prompt_tokens - hits * BLOCK_TOKENS)
            load = self.inflight[endpoint] + 1
            costs[endpoint] = uncached * load / self.weight_of[endpoint]
        low = min(costs.values())
        return self.rng.choice([e for e in self.ids if costs[e] <= low])

    def ended(self, attempt: Attempt, facts: CallFacts, outcome: Outcome, now: float) -> None:
        """Remember what the endpoint has seen."""
        super().ended(attempt, facts, outcome, now)
        if outcome.kind is FailureClass.OK and isinstance(facts, TurnFacts):
            known = self._known[attempt.endpoint_id]
            for block in facts.turn.blocks:
                known[block] = None
                known.move_to_end(block)
            while len(known) > BLOCKS_KNOWN_MAX:
                known.popitem(last=False)


# --------------------------------------------------------------------------- LiteLLM

COOLDOWN_S = 5.0
FAILURES_SHARE, FAILURES_MIN = 0.5, 5
LATENCIES_KEPT = 10
LATE_PENALTY_S = 1000.0


class LiteLLM(Rules):
    """What its strategies share: 5 s of cool-down after a 429, or when most of a minute failed."""

    def __init__(
        self, ids: Sequence[str], weights: Sequence[float], rng: random.Random, process: int
    ) -> None:
        super().__init__(ids, weights, rng, process)
        self._cooling: dict[str, float] = {}
        self._minute: dict[tuple[str, int], list[int]] = {}

    def healthy(self, now: float) -> list[str]:
        """Those that are not cooling down."""
        if not self._cooling:
            return self.ids
        return [e for e in self.ids if self._cooling.get(e, 0.0) <= now]

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """Its strategy over the healthy ones; nobody healthy: an error at once."""
        healthy = self.healthy(now)
        return self.choose(healthy, facts, now) if healthy else None

    @abstractmethod
    def choose(self, healthy: list[str], facts: CallFacts, now: float) -> str | None:
        """The strategy."""

    def ended(self, attempt: Attempt, facts: CallFacts, outcome: Outcome, now: float) -> None:
        """Count the minute, and cool down what fails."""
        super().ended(attempt, facts, outcome, now)
        if outcome.kind is FailureClass.CANCELLED:
            return
        endpoint, minute = attempt.endpoint_id, int(now // 60)
        counts = self._minute.get((endpoint, minute))
        if counts is None:
            self._minute = {k: v for k, v in self._minute.items() if k[1] >= minute}
            counts = self._minute[endpoint, minute] = [0, 0]
        is_ok = outcome.kind is FailureClass.OK
        counts[0 if is_ok else 1] += 1
        if is_ok:
            return
        share = counts[1] / sum(counts)
        if outcome.kind is FailureClass.RATE_LIMITED or (
            share > FAILURES_SHARE and sum(counts) >= FAILURES_MIN
        ):
            self._cooling[endpoint] = now + COOLDOWN_S


class LiteLLMShuffle(LiteLLM):
    """`simple-shuffle`, the default: at random by the weight that the deployments state."""

    def choose(self, healthy: list[str], facts: CallFacts, now: float) -> str | None:
        """Any, by weight."""
        return self.rng.choices(healthy, [self.weight_of[e] for e in healthy])[0]


class LiteLLMLeastBusy(LiteLLM):
    """`least-busy`: fewest own outstanding; of equals the first in the list."""

    def choose(self, healthy: list[str], facts: CallFacts, now: float) -> str | None:
        """The first of the least busy."""
        return min(healthy, key=lambda e: self.inflight[e])


class LiteLLMLatency(LiteLLM):
    """`latency-based-routing`: lowest mean of the last ten; first tokens for streams, else seconds
    per output token. What was never used counts as 0 and so goes first."""

    def __init__(
        self, ids: Sequence[str], weights: Sequence[float], rng: random.Random, process: int
    ) -> None:
        super().__init__(ids, weights, rng, process)
        self.latency: dict[str, deque[float]] = {}
        self.ttft: dict[str, deque[float]] = {}
        self._has_map = False

    def choose(self, healthy: list[str], facts: CallFacts, now: float) -> str | None:
        """The fastest; ties at random."""
        means: dict[str, float] = {}
        for endpoint in healthy:
            if self._has_map and endpoint not in self.latency:
                # The router writes a zero into its own map, where it stays among the ten.
                self.latency[endpoint] = deque([0.0], LATENCIES_KEPT)
            seen = self.ttft.get(endpoint) if facts.stream else None
            values = seen or self.latency.get(endpoint) or (0.0,)
            means[endpoint] = sum(values) / len(values)
        low = min(means.values())
        return self.rng.choice([e for e in healthy if means[e] <= low])

    def ended(self, attempt: Attempt, facts: CallFacts, outcome: Outcome, now: float) -> None:
        """Note how long it took."""
        super().ended(attempt, facts, outcome, now)
        seconds = now - attempt.started_at
        if outcome.kind is FailureClass.OK:
            self._has_map = True
            self._note(self.latency, attempt, seconds / max(1, outcome.output_tokens or 0))
            if facts.stream:
                first = attempt.first_token_at
                ttft = seconds if first is None else first - attempt.started_at
                self._note(self.ttft, attempt, ttft)
        elif outcome.kind is FailureClass.TIMEOUT_BEFORE_FIRST_TOKEN:
            self._has_map = True
            self._note(self.latency, attempt, LATE_PENALTY_S)

    def _note(self, kept: dict[str, deque[float]], attempt: Attempt, value: float) -> None:
        kept.setdefault(attempt.endpoint_id, deque(maxlen=LATENCIES_KEPT)).append(value)


class LiteLLMUsage(LiteLLM):
    """`usage-based-routing-v2`: fewest tokens this minute, by what has finished; ties at random."""

    def __init__(
        self, ids: Sequence[str], weights: Sequence[float], rng: random.Random, process: int
    ) -> None:
        super().__init__(ids, weights, rng, process)
        self._at = -1
        self.tokens: dict[str, int] = {}

    def _turn_minute(self, now: float) -> None:
        if int(now // 60) != self._at:
            self._at = int(now // 60)
            self.tokens = {}

    def choose(self, healthy: list[str], facts: CallFacts, now: float) -> str | None:
        """The least used."""
        self._turn_minute(now)
        low = min(self.tokens.get(e, 0) for e in healthy)
        return self.rng.choice([e for e in healthy if self.tokens.get(e, 0) <= low])

    def ended(self, attempt: Attempt, facts: CallFacts, outcome: Outcome, now: float) -> None:
        """Count its tokens."""
        super().ended(attempt, facts, outcome, now)
        if outcome.kind is FailureClass.OK:
            self._turn_minute(now)
            used = (outcome.input_tokens or 0) + (outcome.output_tokens or 0)
            endpoint = attempt.endpoint_id
            self.tokens[endpoint] = self.tokens.get(endpoint, 0) + used


class LiteLLMCost(LiteLLM):
    """`cost-based-routing`: the cheapest per token; of equals the first in the list."""

    prices: dict[str, float] = {}  # noqa: RUF012 -- set per fleet by `with_prices`

    def choose(self, healthy: list[str], facts: CallFacts, now: float) -> str | None:
        """The cheapest."""
        return min(healthy, key=lambda e: self.prices.get(e, 10.0))


def with_prices(prices: dict[str, float]) -> type[LiteLLMCost]:
    """The cost strategy for a fleet with these prices per token."""
    return type("LiteLLMCost", (LiteLLMCost,), {"prices": prices})


class RandomShed(WeightedRandom):
    """Weighted random, and every call is refused with the same chance, whatever task it is of: the
    control of shedding by task. `shedding` sets the chance."""

    share = 0.0

    def pick(self, facts: CallFacts, now: float) -> str | None:
        """None: refused."""
        return None if self.rng.random() < self.share else super().pick(facts, now)


def shedding(load: float, turns: int) -> type[RandomShed]:
    """The rule with the chance at which tasks of so many turns, each over with its first refusal,
    offer exactly what the fleet carries."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2.0
        asked = (1.0 - (1.0 - middle) ** turns) / middle / turns
        low, high = (middle, high) if load * asked > 1.0 else (low, middle)
    return type("RandomShed", (RandomShed,), {"share": high if load > 1.0 else 0.0})


RULES: dict[str, type[Rules]] = {
    "plain": Fixed,
    "random": Uniform,
    "round_robin": RoundRobin,
    "weighted_random": WeightedRandom,
    "least_inflight": LeastInflight,
    "two_choices": TwoChoices,
    "session_hash": SessionHash,
    "lmetric": LMetric,
    "litellm_shuffle": LiteLLMShuffle,
    "litellm_least_busy": LiteLLMLeastBusy,
    "litellm_latency": LiteLLMLatency,
    "litellm_usage": LiteLLMUsage,
    "litellm_cost": LiteLLMCost,
    "random_shed": RandomShed,
}


def rule_for(name: str, prices: Mapping[str, Price], load: float, turns: int) -> type[Rules]:
    """The rule of a name, for a fleet with these prices and visits of so many turns."""
    if name == "litellm_cost":
        return with_prices({e: float(p.output_per_mtok or 0) for e, p in prices.items()})
    if name == "random_shed":
        return shedding(load, turns)
    return RULES[name]
