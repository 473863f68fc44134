"""A loop that would never end is stopped before its next call.

You learn: how to cap a task by calls, cost and time, and what the refusal looks like.
Runs offline: the endpoint is scripted, and its price is stated, as `max_cost` needs one.
"""

from __future__ import annotations

import headway
from headway.testing import ScriptedEndpoints, document, tool_call

PRICE = {"input_per_mtok": "2.50", "output_per_mtok": "10.00"}


def main() -> None:
    policy = document(["a"], endpoint={"price": PRICE})
    with ScriptedEndpoints({"a": tool_call("think_harder")}, policy=policy) as fleet:
        client = fleet.wrap()
        try:
            with headway.task("stuck-agent", max_calls=5, max_cost="1.00", deadline=60) as task:
                while True:
                    reply = client.chat.completions.create(
                        model="scripted-model", messages=[{"role": "user", "content": "go on"}]
                    )
                    if not reply.choices[0].message.tool_calls:
                        task.succeed()
                        break
        except headway.TaskLimitExceeded as refused:
            print(f"stopped by {refused.reason}: {refused}")
        assert len(fleet.requests) == 5


if __name__ == "__main__":
    main()
