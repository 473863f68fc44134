"""Replies that are right in themselves, and must neither leak nor be bought twice."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.servers import OK, R, completion, error
from tests.transport.hosts import Host, policy

BODY = json.dumps(completion()).encode()


def test_a_cookie_of_one_host_is_not_sent_to_another(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(503, error("down")), OK)
    b = serve(R(200, completion(), {"set-cookie": "session=of-b; Path=/"}))
    elsewhere = b.url.replace("127.0.0.1", "localhost")
    client = caller(a.url, Host(policy({"a": a.url, "b": elsewhere})))

    client.chat()
    client.chat()

    assert [seen.headers.get("cookie") for seen in (*a.hits, *b.hits)] == [None] * 3
    assert len(a.hits) == 2


def test_a_cookie_of_its_own_host_is_kept(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a = serve(R(200, completion(), {"set-cookie": "session=of-a; Path=/"}))
    client = caller(a.url, Host(policy({"a": a.url})))

    client.chat()
    client.chat()

    assert a.hits[1].headers["cookie"] == "session=of-a"


def test_keys_in_the_query_stay_with_their_host(
    serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(503, error("down"))), serve(OK)
    secrets = {"key": "s1", "subscription-key": "s2", "sig": "s3", "x": "sk-live-s4"}
    client = caller(
        a.url, Host(policy({"a": a.url, "b": b.url})), default_query={**secrets, "trace": "on"}
    )

    client.chat(extra_query={"code": "s5"})

    assert all(f"s{n}" in a.hits[0].line for n in range(1, 6))
    assert b.hits[0].path == "/v1/chat/completions?trace=on"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("GZIP", gzip.compress(BODY)),
        ("gzip, gzip", gzip.compress(gzip.compress(BODY))),
        ("unheard-of", BODY),
    ],
)
def test_a_reply_in_an_unusual_encoding_is_not_bought_again(
    encoding: str, body: bytes, serve: Callable[..., Any], caller: Callable[..., Any]
) -> None:
    a, b = serve(R(200, body, {"content-encoding": encoding})), serve(OK)
    client = caller(a.url, Host(policy({"a": a.url, "b": b.url})))

    assert client.chat().choices[0].message.content == "hello"
    assert (len(a.hits), len(b.hits)) == (1, 0)
