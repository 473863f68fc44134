"""One process of a fleet: a wrapped client that calls as fast as it may, and says what it saw.

    python caller.py '{"server": ..., "redis": ..., ...}'

Says `ready` once it could call, begins at the instant (system-wide monotonic seconds) that comes as a
line, and ends with one line of JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import openai

from headway import Router
from headway.core.model import FleetStoreChanged
from headway.policy.models import Policy


class SkewedClock:
    """A day ahead, and a twentieth too fast."""

    def __init__(self, is_skewed: bool) -> None:
        self._ahead_s = 86_400.0 if is_skewed else 0.0
        self._rate = 1.05 if is_skewed else 1.0
        self._from = time.monotonic()
        self._wall = time.time

    def _passed(self) -> float:
        return (time.monotonic() - self._from) * self._rate + self._ahead_s

    def __call__(self) -> float:
        return self._from + self._passed()

    def wall(self) -> float:
        return self._wall() + self._ahead_s


def document(asked: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema_version": "1.0",
        "version": 1,
        "endpoints": {
            "limited": {
                "base_url": asked["server"],
                "capacity": {"rpm": asked["rpm"], "tpm": asked["tpm"]},
            }
        },
        "routes": [{"weights": {"limited": 1}, "expected_tokens": {"output": asked["output"]}}],
        "shares": {"client_count": asked["processes"]},
    }


def main() -> None:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    clock = SkewedClock(asked["is_skewed"])
    if asked["is_skewed"]:
        time.time = clock.wall
    rng = random.Random(asked["seed"])
    heard: list[bool] = []

    def hear(event: Any) -> None:
        if isinstance(event, FleetStoreChanged):
            heard.append(event.is_reachable)

    router = Router(
        Policy.load(document(asked)),
        shared_state=asked["redis"],
        clock=clock,
        allow_unsigned=True,
        on_event=hear,
    )
    client = router.wrap(openai.OpenAI(base_url=asked["server"], api_key="k", timeout=30.0))
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    time.sleep(max(0.0, begin - time.monotonic()))
    until = begin + asked["seconds"]
    calls, failures = 0, list[str]()
    while time.monotonic() < until:
        words = "word " * rng.randint(*asked["words"])
        try:
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": words}], max_tokens=400
            )
            calls += 1
        except Exception as problem:
            failures.append(f"{type(problem).__name__}: {problem}")
    status = router.status().fleet
    router.close()
    said = {
        "calls": calls,
        "failures": failures[:5],
        "failed": len(failures),
        "heard": heard,
        "is_reachable": None if status is None else status.is_reachable,
    }
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
