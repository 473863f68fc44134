"""What inference engines cost per scheduler step: calibrated presets for `engine_model`."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """What an engine costs per step, and what it holds. Times in seconds, sizes in tokens."""

    name: str
    floor_s: float
    """A step that reads all weights for a handful of tokens: memory-bound."""
    slope_s: float
    """Per token once compute-bound."""
    context_coef_s: float
    """Per token of context read by attention, for every decoding sequence."""
    kv_tokens: int
    sequence_s: float = 4e-6
    overhead_s: float = 1.5e-3
    api_overhead_s: float = 15.6e-3
    """Tokenising, scheduling and HTTP before a request reaches the queue."""
    step_tokens: int = 2048
    sequences_max: int = 256
    reserves_output: bool = False
    """Whether room for the whole output is held from the start (TensorRT-LLM's default); without,
    sequences grow and the newest is preempted when the space is full (vLLM, SGLang)."""
    cache_blocks: int | None = None
    """Prefix cache in blocks; None: all of the KV space that running sequences leave free."""


def _profile(
    name: str, floor_ms: float, slope_us: float, context_ns: float, kv_tokens: int
) -> EngineProfile:
    return EngineProfile(
        name=name,
        floor_s=floor_ms * 1e-3,
        slope_s=slope_us * 1e-6,
        context_coef_s=context_ns * 1e-9,
        kv_tokens=kv_tokens,
    )


# Floors and slopes: Vidur's kernel medians (H100-8B is its Llama-2-7B, scaled by 1.08). Context: KV
# bytes per token (131,072 and 327,680) over the memory bandwidth.
PROFILES: dict[str, EngineProfile] = {
    p.name: p
    for p in (
        _profile("8b-h100", 6.05, 21.6, 40, 404_000),
        _profile("8b-a100", 9.7, 70, 65, 404_000),
        _profile("70b-h100x4", 14.3, 55, 25, 411_000),
        _profile("70b-a100x4", 24.9, 165, 40, 411_000),
    )
}


def scaled(profile: EngineProfile, factor: float, *, name: str | None = None) -> EngineProfile:
    """The same engine with every step `factor` times as long (a slower GPU, a busy neighbour)."""
    return replace(
        profile,
        name=name or f"{profile.name}x{factor:g}",
        floor_s=profile.floor_s * factor,
        slope_s=profile.slope_s * factor,
        context_coef_s=profile.context_coef_s * factor,
        sequence_s=profile.sequence_s * factor,
        overhead_s=profile.overhead_s * factor,
    )
