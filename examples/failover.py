"""One endpoint is dead, and nobody notices.

You learn: how to route a model over two endpoints, and how to see where calls went.
Runs offline: the endpoints are scripted.
"""

from __future__ import annotations

from collections import Counter

from headway.testing import ScriptedEndpoints, refuse


def main() -> None:
    with ScriptedEndpoints({"east": refuse(), "west": "hello from the west"}) as fleet:
        client = fleet.wrap()
        answers: Counter[str | None] = Counter()
        for _ in range(50):
            reply = client.chat.completions.create(
                model="scripted-model", messages=[{"role": "user", "content": "Where are you?"}]
            )
            answers[reply.choices[0].message.content] += 1

        print(f"answers:  {dict(answers)}")
        print(f"attempts: {dict(Counter(fleet.sends))}")
        for row in fleet.router.status().endpoints:
            print(f"{row.endpoint_id}: {[breaker.state for breaker in row.breakers]}")
        assert answers["hello from the west"] == 50


if __name__ == "__main__":
    main()
