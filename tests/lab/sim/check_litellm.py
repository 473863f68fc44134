"""Our models of LiteLLM's strategies against the strategies themselves.

Run by `make simulate-litellm`, which installs LiteLLM into an environment of its own; it never runs
in the test suite. Both see the same calls begin and end; whatever the real one may choose, ours may,
and the other way round.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from headway.core.model import Attempt, AttemptKind, CallFacts, FailureClass, Outcome
from headway.lab.sim.rules import (
    LiteLLM,
    LiteLLMLatency,
    LiteLLMLeastBusy,
    LiteLLMShuffle,
    LiteLLMUsage,
    with_prices,
)

IDS = ("a", "b", "c", "d")
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 2.0}
PRICES = {"a": 3e-6, "b": 1e-6, "c": 1e-6, "d": 2e-6}
GROUP = "m"
STEPS = 150
SAMPLES = 400


def deployments() -> list[dict[str, Any]]:
    """The model list of a router, as its strategies get it."""
    return [
        {
            "model_name": GROUP,
            "weight": WEIGHTS[e],
            "litellm_params": {
                "model": "openai/m",
                "api_base": e,
                "weight": WEIGHTS[e],
                "input_cost_per_token": PRICES[e],
                "output_cost_per_token": PRICES[e],
            },
            "model_info": {"id": e},
        }
        for e in IDS
    ]


def ours(kind: type[LiteLLM], seed: int) -> LiteLLM:
    """Our rule for those deployments."""
    return kind(list(IDS), [WEIGHTS[e] for e in IDS], random.Random(seed), 0)


def kwargs_of(endpoint: str, **more: object) -> dict[str, Any]:
    """What LiteLLM's callbacks get of a call."""
    params = {"metadata": {"model_group": GROUP}, "model_info": {"id": endpoint}}
    return {"litellm_params": params, "call_type": "completion", **more}


class Real:
    """One of LiteLLM's strategies: what it may choose now, and what it is told."""

    def may(self, *, stream: bool) -> set[str]:
        """What it may choose, by asking often."""
        return {self.pick(stream=stream) for _ in range(60)}

    def pick(self, *, stream: bool) -> str:
        """One choice."""
        raise AssertionError

    def began(self, endpoint: str) -> None:
        """A call went out."""

    def ended(
        self, endpoint: str, seconds: float, ttft: float, tokens: int, *, stream: bool
    ) -> None:
        """A call was answered."""


class RealLeastBusy(Real):
    def __init__(self) -> None:
        from litellm.caching.caching import DualCache
        from litellm.router_strategy.least_busy import LeastBusyLoggingHandler

        self.real = LeastBusyLoggingHandler(router_cache=DualCache())

    def pick(self, *, stream: bool) -> str:
        chosen = self.real.get_available_deployments(GROUP, deployments())
        return chosen["model_info"]["id"]

    def began(self, endpoint: str) -> None:
        self.real.log_pre_api_call("m", [], kwargs_of(endpoint))

    def ended(
        self, endpoint: str, seconds: float, ttft: float, tokens: int, *, stream: bool
    ) -> None:
        self.real.log_success_event(kwargs_of(endpoint), None, None, None)


class RealLatency(Real):
    def __init__(self) -> None:
        from litellm.caching.caching import DualCache
        from litellm.router_strategy.lowest_latency import LowestLatencyLoggingHandler

        self.real = LowestLatencyLoggingHandler(router_cache=DualCache())

    def pick(self, *, stream: bool) -> str:
        asked = {"stream": stream, "metadata": {}}
        chosen = self.real.get_available_deployments(GROUP, deployments(), request_kwargs=asked)
        return chosen["model_info"]["id"]

    def ended(
        self, endpoint: str, seconds: float, ttft: float, tokens: int, *, stream: bool
    ) -> None:
        from litellm import ModelResponse, Usage

        start = datetime(2026, 1, 1, tzinfo=UTC)
        reply = ModelResponse(
            usage=Usage(prompt_tokens=10, completion_tokens=tokens, total_tokens=10 + tokens)
        )
        kwargs = kwargs_of(
            endpoint, stream=stream, completion_start_time=start + timedelta(seconds=ttft)
        )
        self.real.log_success_event(kwargs, reply, start, start + timedelta(seconds=seconds))


class RealUsage(Real):
    def __init__(self) -> None:
        from litellm.caching.caching import DualCache
        from litellm.router_strategy.lowest_tpm_rpm_v2 import LowestTPMLoggingHandler_v2

        self.real = LowestTPMLoggingHandler_v2(router_cache=DualCache())

    def pick(self, *, stream: bool) -> str:
        chosen = self.real.get_available_deployments(GROUP, deployments())
        return chosen["model_info"]["id"]

    def ended(
        self, endpoint: str, seconds: float, ttft: float, tokens: int, *, stream: bool
    ) -> None:
        logged = {
            "model_group": GROUP,
            "hidden_params": {"litellm_model_name": "openai/m"},
            "model_id": endpoint,
            "total_tokens": 10 + tokens,
        }
        self.real.log_success_event(
            kwargs_of(endpoint, standard_logging_object=logged), None, None, None
        )


class RealCost(Real):
    def __init__(self) -> None:
        from litellm.caching.caching import DualCache
        from litellm.router_strategy.lowest_cost import LowestCostLoggingHandler

        self.real = LowestCostLoggingHandler(router_cache=DualCache())

    def pick(self, *, stream: bool) -> str:
        chosen = asyncio.run(self.real.async_get_available_deployments(GROUP, deployments()))
        return chosen["model_info"]["id"]


def played(real: Real, rule: LiteLLM, *, stream: bool, seed: int = 1) -> int:
    """Both through one script; returns how often what they may choose differs."""
    rng, differ, under_way = random.Random(seed), 0, list[Attempt]()
    facts = CallFacts(GROUP, stream=stream)
    for step in range(STEPS):
        may = {rule.pick(facts, 1.0) for _ in range(60)}
        if may != real.may(stream=stream):
            differ += 1
            print(f"  step {step}: ours {sorted(map(str, may))}, theirs {real.may(stream=stream)}")
        endpoint = rng.choice(sorted(map(str, may)))
        rule.sent(endpoint, facts, 1.0)
        real.began(endpoint)
        attempt = Attempt(1, AttemptKind.INITIAL, endpoint, GROUP, 1.0, 1e9, 1e9, 1e9)
        under_way.append(attempt)
        while len(under_way) > rng.randrange(1, 8):
            done = under_way.pop(rng.randrange(len(under_way)))
            seconds, tokens = rng.choice((1.0, 2.0, 4.0)), rng.choice((50, 100))
            ttft = seconds / 4
            done.first_token_at = 1.0 + ttft if stream else None
            ok = Outcome(FailureClass.OK, input_tokens=10, output_tokens=tokens)
            rule.ended(done, facts, ok, 1.0 + seconds)
            real.ended(done.endpoint_id, seconds, ttft, tokens, stream=stream)
    return differ


def shuffled() -> int:
    """Whether both draw by the same weights: 0, or 1."""
    from litellm.router_strategy.simple_shuffle import simple_shuffle

    rule, facts = ours(LiteLLMShuffle, 1), CallFacts(GROUP)
    many = 20 * SAMPLES
    mine = Counter(rule.pick(facts, 1.0) for _ in range(many))
    theirs = Counter(
        simple_shuffle(lambda _: None, deployments(), GROUP, None)["model_info"]["id"]
        for _ in range(many)
    )
    return int(any(abs(mine[e] - theirs[e]) > 0.03 * many for e in IDS))


def main() -> int:
    """Every strategy; exit status 1 if one of our models is not like it."""
    import litellm

    print(f"litellm {getattr(litellm, '__version__', '')}")
    scripts: Mapping[str, Callable[[], int]] = {
        "simple-shuffle": shuffled,
        "least-busy": lambda: played(RealLeastBusy(), ours(LiteLLMLeastBusy, 1), stream=False),
        "latency-based-routing": lambda: played(
            RealLatency(), ours(LiteLLMLatency, 1), stream=False
        ),
        "latency-based-routing, streams": lambda: played(
            RealLatency(), ours(LiteLLMLatency, 1), stream=True
        ),
        "usage-based-routing-v2": lambda: played(RealUsage(), ours(LiteLLMUsage, 1), stream=False),
        "cost-based-routing": lambda: played(
            RealCost(), ours(with_prices({e: 2 * p for e, p in PRICES.items()}), 1), stream=False
        ),
    }
    wrong = {name: differ for name, script in scripts.items() if (differ := script())}
    for name in scripts:
        print(f"{name}: {'alike' if name not in wrong else f'differs in {wrong[name]} steps'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
