"""See every decision as it happens.

You learn: how to receive events, which are facts and never need to be answered.
Runs offline: the endpoints are scripted.
"""

from __future__ import annotations

from headway.events import AttemptEnded, BreakerChanged, Event
from headway.testing import ScriptedEndpoints


def show(event: Event) -> None:
    match event:
        case AttemptEnded(attempt=attempt, outcome=outcome):
            print(f"attempt {attempt.number} at {attempt.endpoint_id}: {outcome.kind.value}")
        case BreakerChanged(endpoint_id=endpoint, old=old, new=new):
            print(f"breaker of {endpoint}: {old} -> {new}")
        case _:
            pass


def main() -> None:
    with ScriptedEndpoints({"good": "hi", "bad": 500}) as fleet:
        client = fleet.new_router(on_event=show).wrap(fleet.client())
        for _ in range(20):
            client.chat.completions.create(
                model="scripted-model", messages=[{"role": "user", "content": "hello"}]
            )
        assert fleet.sends_to("bad") <= 5


if __name__ == "__main__":
    main()
