"""What goes wrong with an endpoint, and when: faults as values on a timeline."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass


class FaultKind(enum.StrEnum):
    """How an endpoint can fail."""

    DIE = "die"  # connections reset, new ones refused; what it held in memory is lost
    SLOW = "slow"  # every step `factor` times as long
    THROTTLE = "throttle"  # 429 with Retry-After: `retry_after_s`
    UNAVAILABLE = "unavailable"  # 503
    HANG = "hang"  # accepts, never answers
    CUT = "cut"  # the stream is reset after `after_tokens` tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one endpoint from `start_s` until `end_s`, in seconds after the run's start."""

    endpoint: str
    kind: FaultKind
    start_s: float
    end_s: float
    factor: float = 10.0
    retry_after_s: float = 1.0
    after_tokens: int = 20
    share: float = 1.0
    """Part of the requests it hits (DIE and SLOW: always all)."""

    def __post_init__(self) -> None:
        if not self.start_s < self.end_s:
            msg = f"fault {self.kind} of {self.endpoint}: start_s must be before end_s"
            raise ValueError(msg)

    def active(self, at_s: float) -> bool:
        """Is it on at this instant?"""
        return self.start_s <= at_s < self.end_s


def to_json(faults: Iterable[Fault]) -> list[dict[str, object]]:
    """Plain values for the wire."""
    return [asdict(fault) for fault in faults]


def from_json(rows: Sequence[Mapping[str, object]]) -> tuple[Fault, ...]:
    """The inverse of `to_json`. Raises TypeError, ValueError for anything else."""
    faults: list[Fault] = []
    for row in rows:
        fields = dict(row)
        kind = FaultKind(str(fields.pop("kind")))
        faults.append(Fault(kind=kind, **fields))  # type: ignore[arg-type]  # checked by dataclass use
    return tuple(faults)
