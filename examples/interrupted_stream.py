"""A stream breaks after the user has seen half of it.

You learn: what `StreamInterrupted` carries, and why nothing is spliced behind your back.
Runs offline: the endpoints are scripted.
"""

from __future__ import annotations

import headway
from headway.testing import ScriptedEndpoints, stream


def main() -> None:
    broken = stream("The ", "capital ", "of ", "France ", cut_after=3)
    with ScriptedEndpoints({"a": broken}) as fleet:
        client = fleet.wrap()
        seen = ""
        try:
            for chunk in client.chat.completions.create(
                model="scripted-model",
                messages=[{"role": "user", "content": "Capital of France?"}],
                stream=True,
            ):
                seen += chunk.choices[0].delta.content or ""
        except headway.StreamInterrupted as broke:
            print(f"{broke.endpoint} broke off after {broke.partial.text!r}")
            print(f"the caller saw {seen!r}")


if __name__ == "__main__":
    main()
