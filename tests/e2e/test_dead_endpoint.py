"""Two endpoints, one dead from the start: no caller notices, and the dead one is left alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import openai
import pytest

from headway.testing import FakeClock, ScriptedEndpoints, error, ok, refuse, timeout
from tests.e2e.fleet import Fleet, asay, at_once, in_threads, say, texts
from tests.e2e.replies import answer
from tests.servers import DONE, FIN, ROLE, SSE, Hang, R, Seen, chunk, completion
from tests.servers import error as error_body

CALLS = 100
AT_ONCE = 64
SENDS_MAX = 5


def patience(death: str, seconds: float) -> openai.Timeout:
    """Of the client, where nothing else ends a call that nobody answers. One processor serves all
    this: limits must be wide enough for the endpoint that is alive."""
    return openai.Timeout(20.0, read=seconds if death == "black hole" else 20.0)


DEATHS = ("refused", "black hole", "503", "429")
STEPS: dict[str, Any] = {
    "black hole": Hang(30),
    "503": R(503, error_body("down")),
    "429": R(429, error_body("slow down", "rate_limit_error")),
}


@pytest.fixture(params=DEATHS)
def death(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(
    death: str,
    serve: Callable[..., Any],
    fleet: Callable[..., Fleet],
    refused_url: str,
) -> Fleet:
    """Endpoints `dead` and `alive`, equal shares."""
    dead = refused_url if death == "refused" else serve(STEPS[death]).url
    alive = serve(_answer)
    route = {"deadline": {"ttft_ms": 2500}} if death == "black hole" else {}
    return fleet({"alive": alive.url, "dead": dead}, route=route)


def _answer(seen: Seen) -> Any:
    if seen.json.get("stream"):
        return SSE([ROLE, chunk("Hel"), chunk("lo"), FIN, DONE])
    return R(200, completion("Hello"))


def check(fleet: Fleet, answers: list[str]) -> None:
    assert len(answers) == CALLS
    assert texts(answers) == {"hello"}
    assert fleet.sends_to("dead") <= SENDS_MAX
    fleet.ended()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_one_after_another(stream: bool, death: str, pair: Fleet) -> None:
    client = pair.client(timeout=patience(death, 1.5))

    check(pair, [say(client, stream=stream) for _ in range(CALLS)])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_sixty_four_at_once(stream: bool, death: str, pair: Fleet) -> None:
    async with pair.async_client(timeout=patience(death, 3.5)) as client:
        check(pair, await at_once(lambda: asay(client, stream=stream), CALLS, AT_ONCE))


def test_sixty_four_threads_half_of_them_streaming(death: str, pair: Fleet) -> None:
    client = pair.client(timeout=patience(death, 3.5))

    check(pair, in_threads(lambda n: say(client, stream=bool(n % 2)), CALLS, AT_ONCE))


@pytest.mark.parametrize(
    "death",
    [refuse(), timeout(), error(503), error(429), error(429, retry_after_s=20.0)],
    ids=[*DEATHS, "429 with Retry-After"],
)
def test_the_whole_first_minute(death: Any) -> None:
    clock = FakeClock()
    with ScriptedEndpoints({"alive": ok("Hello"), "dead": death}, clock=clock) as scripted:
        router = scripted.new_router(rng=random.Random(1))
        client = router.wrap(scripted.client(timeout=0.2))
        began = clock()
        answers = []
        while clock() - began < 60.0:
            answers.append(say(client, stream=len(answers) % 2 == 0, model=scripted.model))
            clock.advance(0.6)

        assert len(answers) >= CALLS - 10
        assert texts(answers) == {"hello"}
        assert scripted.sends_to("dead") <= SENDS_MAX


def test_an_endpoint_that_lacks_a_path_still_serves_the_others(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    lacks = R(404, {"detail": "Not Found"})
    serving = answer()
    chat_only = serve(lambda seen: lacks if seen.path.endswith("/embeddings") else serving(seen))
    whole = serve(answer())
    route = {"weights": {"chat-only": 1}, "fallback": [{"endpoint": "whole"}]}
    made = fleet({"chat-only": chat_only.url, "whole": whole.url}, route=route)
    client = made.client()

    for _ in range(3):
        assert client.embeddings.create(model="m", input="hi").data[0].embedding == [0.5]
        assert say(client) == "Hello"

    assert [seen.path.rpartition("/")[2] for seen in chat_only.hits] == [
        "embeddings", "completions", "completions", "completions",
    ]  # fmt: skip
    assert len(whole.hits) == 3
