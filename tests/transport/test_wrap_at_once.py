"""Clients that are wrapped at the same time, in several threads, share what one after another do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import openai

import headway
from headway.policy.sources import PolicySource, Reply
from headway.testing import document
from headway.transport.sync import Transport


class Slow(PolicySource):
    """Nobody has the document before both have asked for it."""

    label = "slow"
    fetched = False

    def __init__(self) -> None:
        self._both = threading.Barrier(2, timeout=20)

    def read(self, etag: str | None) -> Reply:
        del etag
        self._both.wait()
        return Reply([headway.Policy.load(document(["a"])).dump()])


def test_two_threads_that_wrap_with_one_policy_share_one_router() -> None:
    policy, client = Slow(), openai.OpenAI(api_key="k", base_url="https://a.headway.test/v1")
    credentials = {"scripted": headway.Credential(value="k", hosts=["*.headway.test"])}

    def wrap() -> openai.OpenAI:
        return headway.wrap(client, policy, credentials=credentials)

    with ThreadPoolExecutor(2) as threads:
        wrapped = [made.result() for made in (threads.submit(wrap), threads.submit(wrap))]

    hosts = []
    for one in wrapped:
        seam = one._client._transport
        assert isinstance(seam, Transport)
        hosts.append(seam.host)
    assert hosts[0] is hosts[1]
