"""What did a finished task cost, waste included?

You learn: how to open tasks, say how they ended, and read cost per successful task.
Runs offline: the endpoint is scripted, and the policy states its price.
"""

from __future__ import annotations

from decimal import Decimal

import headway
from headway.testing import ScriptedEndpoints, document, ok

PRICE = {"input_per_mtok": "2.50", "output_per_mtok": "10.00"}


def main() -> None:
    policy = document(["a"], endpoint={"price": PRICE})
    answer = ok("a useful answer", input_tokens=1000, output_tokens=100)
    total, succeeded = Decimal(0), 0
    with ScriptedEndpoints({"a": answer}, policy=policy) as fleet:
        client = fleet.wrap()
        for number in range(1, 5):
            with headway.task("answer-ticket") as task:
                for _ in range(2):
                    client.chat.completions.create(
                        model="scripted-model", messages=[{"role": "user", "content": "help"}]
                    )
                if number == 4:
                    task.fail("the customer was not helped")
                else:
                    task.succeed()
            print(f"task {number}: {task.outcome}, {task.cost} USD ({task.cost_source})")
            total += task.cost or 0
            succeeded += task.outcome == "success"

    print(f"cost per successful task: {total / succeeded:.5f} USD")
    assert total == Decimal("0.028")


if __name__ == "__main__":
    main()
