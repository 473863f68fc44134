"""What the demo is about: its fleet, its faults, its policies and its prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from headway.lab.agents import MODEL, Workload
from headway.lab.endpoint import LedgerRow
from headway.lab.engine_profile import PROFILES
from headway.lab.faults import Fault, FaultKind
from headway.lab.fleet import EndpointSpec
from headway.lab.report_svg import Band, Mark

FLEET: Mapping[str, EndpointSpec] = {
    "alpha": EndpointSpec(profile="8b-h100"),
    "bravo": EndpointSpec(profile="8b-a100"),
    "charlie": EndpointSpec(profile="8b-a100"),
    "delta": EndpointSpec(profile="8b-a100"),
}

PRICE_PER_MTOK: Mapping[str, Decimal] = {
    "input": Decimal("0.20"),
    "cached_input": Decimal("0.02"),
    "output": Decimal("0.80"),
}
"""USD, the same at every endpoint: what hosted 8B models cost, cached input at a tenth."""

FLEET_CAPACITY = {"alpha": 3, "bravo": 1, "charlie": 1, "delta": 1}
"""What version 2 of the policy knows: the H100 serves about three times an A100's traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One run's plan; both clients live through the same one."""

    workload: Workload
    faults: tuple[Fault, ...]
    publish_at_s: float
    seed: int

    def bands(self) -> list[Band]:
        """The faults, for charts."""
        return [Band(f.start_s, f.end_s, _fault_words(f)) for f in self.faults]

    def marks(self) -> list[Mark]:
        """The policy's publication, for charts."""
        return [Mark(self.publish_at_s, "policy v2")]


def _fault_words(fault: Fault) -> str:
    words = {
        FaultKind.DIE: "is dead",
        FaultKind.SLOW: f"is {fault.factor:g}x slower",
        FaultKind.THROTTLE: "answers 429",
    }
    return f"{fault.endpoint} {words.get(fault.kind, fault.kind.value)}"


def make_story(*, duration_s: float, seed: int) -> Story:
    """The demo's timeline, stretched to `duration_s`."""
    unit = duration_s / 32.0

    def fault(endpoint: str, kind: FaultKind, start: float, end: float) -> Fault:
        return Fault(
            endpoint=endpoint,
            kind=kind,
            start_s=start * unit,
            end_s=end * unit,
            factor=10.0,
            retry_after_s=2.0,
        )

    return Story(
        workload=Workload(duration_s=duration_s, sessions=round(70 + 70 * unit)),
        faults=(
            # A breaker is open for 5 s at least: its first probe finds the endpoint back.
            fault("bravo", FaultKind.DIE, 4, 9),
            fault("charlie", FaultKind.SLOW, 11, 17),
            fault("delta", FaultKind.THROTTLE, 18, 24),
        ),
        publish_at_s=21 * unit,
        seed=seed,
    )


def policy_document(base_urls: Mapping[str, str], version: int, time_scale: float) -> object:
    """The policy an operator would publish: equal weights first, then by measured capacity."""
    return {
        "schema_version": "1.0",
        "policy_id": "demo",
        "version": version,
        "profiles": {name: _profile(name, time_scale) for name in ("8b-h100", "8b-a100")},
        "endpoints": {
            name: {
                "base_url": url,
                "profile": FLEET[name].profile,
                "price": {f"{kind}_per_mtok": str(usd) for kind, usd in PRICE_PER_MTOK.items()},
                "prefix_cache": {
                    "block_tokens": 64,
                    "blocks": PROFILES[FLEET[name].profile].kv_tokens // 64,
                },
            }
            for name, url in base_urls.items()
        },
        "routes": [
            {
                "match": {"model": MODEL},
                "weights": dict.fromkeys(base_urls, 1) if version == 1 else dict(FLEET_CAPACITY),
                "deadline": {"idle_ms": 5000},
            }
        ],
    }


_CURVES = {
    # Mean TTFT and TPOT (ms) by utilisation, from the engine model on Azure's conversation lengths.
    "8b-h100": ((0.05, 0.3, 0.5, 0.7, 0.9), (45, 53, 67, 84, 150), (7.8, 9.5, 12.3, 16.0, 27.0)),
    "8b-a100": ((0.05, 0.3, 0.5, 0.7, 0.9), (107, 130, 165, 215, 340), (11.8, 14.7, 19, 26.5, 43)),
}


def _profile(name: str, time_scale: float) -> object:
    load, ttft, tpot = _CURVES[name]
    # The engines run faster than life; over the network's own time, which is not scaled.
    overhead_ms = 4.0
    return {
        "load": "utilization",
        "ttft_ms": {
            "x": list(load),
            "mean": [round(t / time_scale + overhead_ms, 3) for t in ttft],
            # Prompts vary far more here than in that trace, and all agents share one event loop.
            "p99": [round(8 * t / time_scale + 100 * overhead_ms, 3) for t in ttft],
        },
        "tpot_ms": {"x": list(load), "mean": [round(t / time_scale, 4) for t in tpot]},
        "prefill_us_per_token": round(PROFILES[name].slope_s * 1e6 / time_scale, 3),
        "ttft_ref_uncached_tokens": 1155,
    }


def cost_of(row: LedgerRow) -> Decimal:
    """What the endpoint bills for one request, in USD."""
    uncached = row.prompt_tokens - row.cached_tokens
    return (
        uncached * PRICE_PER_MTOK["input"]
        + row.cached_tokens * PRICE_PER_MTOK["cached_input"]
        + row.output_tokens * PRICE_PER_MTOK["output"]
    ) / 1_000_000
