"""Look before you leap: what would Headway have done?

You learn: how to run in observe mode, where nothing that is sent changes.
Runs offline: the endpoints are scripted.
"""

from __future__ import annotations

import openai

from headway.events import AttemptStarted
from headway.testing import ScriptedEndpoints


def main() -> None:
    with ScriptedEndpoints({"a": [503, "from a"], "b": "from b"}) as fleet:
        router = fleet.new_router(mode="observe")
        client = router.wrap(fleet.client(max_retries=0))
        try:
            client.chat.completions.create(
                model="scripted-model", messages=[{"role": "user", "content": "hello"}]
            )
        except openai.InternalServerError as error:
            print(f"as without Headway: {error.status_code}")
        assert fleet.sends == ["a"]  # the client's own endpoint, once, as it asked
        decided = [event.attempt.endpoint_id for event in fleet.events.of(AttemptStarted)]
        print(f"Headway would have begun with {decided[0]!r}")


if __name__ == "__main__":
    main()
