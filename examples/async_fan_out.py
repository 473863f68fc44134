"""Twenty calls at once, for one task, with an endpoint that pushes back.

You learn: that the async client works the same, that a task follows its coroutines, and that an
endpoint which asks for quiet is left alone while others carry on.
Runs offline: the endpoints are scripted.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import headway
from headway.testing import ScriptedEndpoints, error, ok


async def main() -> None:
    fleet = ScriptedEndpoints({"full": error(429, retry_after_s=30), "free": ok("done")})
    client = fleet.wrap_async()

    async def one(number: int) -> str | None:
        reply = await client.chat.completions.create(
            model="scripted-model", messages=[{"role": "user", "content": f"part {number}"}]
        )
        return reply.choices[0].message.content

    async with headway.task("fan-out", deadline=30) as task:
        answers = await asyncio.gather(*(one(number) for number in range(20)))
        task.succeed()

    print(f"{Counter(answers)} from {task.calls} calls in {task.attempts} attempts")
    print(f"sent to: {dict(Counter(fleet.sends))}")
    assert answers == ["done"] * 20
    fleet.close()


if __name__ == "__main__":
    asyncio.run(main())
