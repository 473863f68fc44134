"""Wrong use of the public API: a clear error at the call that was wrong."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import openai
import pytest

import headway
from tests.e2e.fleet import Fleet, asay, say
from tests.e2e.replies import answer


@pytest.mark.parametrize(
    "thing", [object(), None, "client", openai.OpenAI], ids=["object", "none", "text", "class"]
)
def test_what_is_no_client_can_not_be_wrapped(thing: Any) -> None:
    with pytest.raises(headway.WrapError, match="takes an OpenAI or AsyncOpenAI client") as caught:
        headway.wrap(thing)

    assert isinstance(caught.value, TypeError)


def test_wrapping_twice_is_an_error_also_through_copies(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    client = fleet({"a": serve(answer()).url}).client()

    for again in (client, client.with_options(timeout=1), client.copy()):
        with pytest.raises(headway.WrapError, match="wrapped already"):
            headway.wrap(again)
    assert say(client) == "Hello"


async def test_a_closed_client_says_so(
    serve: Callable[..., Any], fleet: Callable[..., Fleet], plain: Callable[..., openai.OpenAI]
) -> None:
    server = serve(answer())
    made = fleet({"a": server.url})
    closed = plain(server.url)
    closed.close()
    with pytest.raises(headway.WrapError, match="closed"):
        headway.wrap(closed)

    client, asynchronous = made.client(), made.async_client()
    client.close()
    await asynchronous.close()
    for gone in (closed, client):  # word for word as ever
        with pytest.raises(RuntimeError, match="the client has been closed"):
            say(gone)
    with pytest.raises(RuntimeError, match="the client has been closed"):
        await asay(asynchronous)
    assert not server.hits


def test_a_task_left_open_is_settled_as_unknown_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def forget() -> None:
        headway.task("forgotten").__enter__()

    with caplog.at_level(logging.WARNING, "headway"):
        headway.task("never entered")
        thread = threading.Thread(target=forget)
        thread.start()
        thread.join()
        gc.collect()
        with headway.task("next"):
            pass

    said = [r.getMessage() for r in caplog.records]
    [left] = [s for s in said if "forgotten" in s]
    assert "was never ended" in left
    assert "unknown" in left
    assert not [s for s in said if "never entered" in s]


def test_a_second_verdict_is_an_error_at_the_second_call() -> None:
    with headway.task("t") as task:
        task.succeed()
        with pytest.raises(RuntimeError, match="success"):
            task.succeed()
        with pytest.raises(RuntimeError, match="success"):
            task.fail("no")
    assert task.outcome == "success"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"deadline": -1}, "deadline"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": timedelta(seconds=-5)}, "deadline"),
        ({"deadline": "soon"}, "deadline"),
        ({"deadline": float("nan")}, "deadline"),
        ({"max_cost": "abc"}, "max_cost"),
        ({"max_cost": "-1"}, "max_cost"),
        ({"max_cost": "NaN"}, "max_cost"),
        ({"max_calls": -1}, "max_calls"),
        ({"max_calls": 1.5}, "max_calls"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"priority": 1.5}, "priority"),
        ({"session": ""}, "session"),
        ({"verdict": "maybe"}, "verdict"),
        ({"attributes": {"a": {1, 2}}}, "attribute"),
    ],
    ids=str,
)
def test_a_wrong_argument_of_a_task_is_named_with_its_value(
    arguments: dict[str, Any], named: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=named) as caught:
        headway.task("t", **arguments)

    [value] = arguments.values()
    if isinstance(value, str | int | float) and value != "":
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize("arguments", [{"deadline": -1}, {"hedge": "yes"}, {"route": ""}], ids=str)
def test_a_wrong_option_is_named(arguments: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(arguments))):
        headway.options(**arguments)


def test_wrong_arguments_of_a_router_are_named(serve: Callable[..., Any]) -> None:
    from tests.e2e.fleet import document

    made = document({"a": serve(answer()).url})
    with pytest.raises(headway.HeadwayError, match=r"mode.*'obsreve'"):
        headway.Router(made, mode="obsreve")
    with pytest.raises(headway.FetchError, match="absent"):
        headway.Router("/absent/policy.json")
    with pytest.raises((TypeError, headway.HeadwayError), match="int"):
        headway.Router(7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="host"):
        headway.Credential(value="k", hosts=[])
    with pytest.raises(headway.WrapError, match="mode"):
        headway.wrap(openai.OpenAI(api_key="k"), headway.Router(made), mode="observe")


def test_a_route_that_is_not_there_passes_by_or_is_named(
    serve: Callable[..., Any], fleet: Callable[..., Fleet]
) -> None:
    server = serve(answer())
    made = fleet({"a": server.url})

    assert say(made.client(), model="unheard-of") == "Hello"
    assert made.router.explain(model="unheard-of").route is None
