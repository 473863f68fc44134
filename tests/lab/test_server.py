"""The serving simulator over real HTTP, driven by the real openai client."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from headway.lab.endpoint import SimulatedEndpoint
from headway.lab.engine_profile import PROFILES
from headway.lab.faults import Fault, FaultKind
from headway.lab.fleet import EndpointSpec, FleetError, ServingFleet

PROMPT = [{"role": "user", "content": "say it again. " * 100}]


@pytest.fixture(scope="module")
def fleet() -> Iterator[ServingFleet]:
    specs = {"a": EndpointSpec(profile="8b-h100"), "b": EndpointSpec(profile="8b-a100")}
    with ServingFleet(specs, time_scale=50, chunk_interval_s=0.01) as running:
        yield running


@pytest.fixture
def client(fleet: ServingFleet) -> Iterator[OpenAI]:
    fleet.start_run()
    with OpenAI(base_url=fleet.base_url("a"), api_key="k", max_retries=0, timeout=20) as client:
        yield client


def chat(client: OpenAI, tokens: int = 24, **extra: object) -> object:
    return client.chat.completions.create(model="m", messages=PROMPT, max_tokens=tokens, **extra)


def test_chat_answers_with_the_asked_length_and_reports_the_cache(client: OpenAI) -> None:
    first, again = chat(client), chat(client)

    assert len(first.choices[0].message.content) == 24 * 4
    assert first.usage.completion_tokens == 24
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert again.usage.prompt_tokens == first.usage.prompt_tokens
    assert again.usage.prompt_tokens_details.cached_tokens == 320  # 5 whole blocks of 352 tokens


def test_a_stream_carries_the_same_text_and_usage_only_when_asked(client: OpenAI) -> None:
    chunks = list(chat(client, 200, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    bare = list(chat(client, 200, stream=True))

    assert text == chat(client, 200).choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 200
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.usage is None for c in bare)


def test_responses_completions_embeddings_and_models(client: OpenAI) -> None:
    with client.responses.stream(model="m", input="hi", max_output_tokens=30) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (
        final.output_text
        == client.responses.create(model="m", input="hi", max_output_tokens=30).output_text
    )
    assert final.usage is not None
    assert final.usage.output_tokens == 30
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"

    whole = client.completions.create(model="m", prompt="once", max_tokens=9)
    parts = client.completions.create(model="m", prompt="once", max_tokens=9, stream=True)
    assert whole.choices[0].text == "".join(p.choices[0].text for p in parts)

    vectors = client.embeddings.create(model="m", input=["x", "y"]).data
    assert [len(v.embedding) for v in vectors] == [16, 16]
    assert [m.id for m in client.models.list()] == ["8b-h100"]


def test_metrics_are_prometheus_text(fleet: ServingFleet, client: OpenAI) -> None:
    chat(client)
    url = fleet.base_url("a").removesuffix("/v1") + "/metrics"
    text = urllib.request.urlopen(url).read().decode()
    assert 'vllm:num_requests_running{model_name="8b-h100"} 0' in text
    assert "# TYPE vllm:generation_tokens_total counter" in text


def test_a_bad_body_is_a_400_and_an_unknown_path_a_404(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="m", messages="no")  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError):
        client.files.list()


def run_with(fleet: ServingFleet, kind: FaultKind, **fields: float) -> None:
    fleet.start_run([Fault(endpoint="a", kind=kind, start_s=0.0, end_s=60.0, **fields)])


def test_a_throttled_endpoint_says_when_to_come_back(fleet: ServingFleet, client: OpenAI) -> None:
    run_with(fleet, FaultKind.THROTTLE, retry_after_s=2)
    with pytest.raises(openai.RateLimitError) as caught:
        chat(client)
    assert caught.value.response.headers["retry-after"] == "2"


def test_a_dead_endpoint_refuses_and_comes_back_on_its_port(
    fleet: ServingFleet, client: OpenAI
) -> None:
    chat(client)  # leaves a kept-alive connection behind
    run_with(fleet, FaultKind.DIE)
    for _ in range(2):
        with pytest.raises(openai.APIConnectionError):
            chat(client)
    fleet.start_run()
    assert chat(client).usage.prompt_tokens_details.cached_tokens == 0  # its memory is lost


def test_it_comes_back_once_where_two_ask_for_it() -> None:
    """The start of a run and the ticker may both find the fault over."""
    faults = [Fault(endpoint="a", kind=FaultKind.DIE, start_s=0.0, end_s=1.0)]

    async def revive() -> int:
        endpoint = SimulatedEndpoint(
            "a", PROFILES["8b-a100"], clock=lambda: 0.0, time_scale=1.0, chunk_interval_s=1.0
        )
        await endpoint.listener.open()
        port = endpoint.listener.port
        endpoint.set_faults(faults)
        await endpoint.apply_faults(0.5)
        await asyncio.gather(endpoint.apply_faults(1.5), endpoint.apply_faults(1.5))
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()
        endpoint.listener.close()
        return endpoint.listener.port - port

    assert asyncio.run(revive()) == 0


def test_unavailable_hanging_and_cut(fleet: ServingFleet, client: OpenAI) -> None:
    run_with(fleet, FaultKind.UNAVAILABLE)
    with pytest.raises(openai.InternalServerError):
        chat(client)
    run_with(fleet, FaultKind.HANG)
    with pytest.raises(openai.APITimeoutError):
        chat(client, timeout=0.2)
    run_with(fleet, FaultKind.CUT, after_tokens=40)
    got: list[str] = []
    with pytest.raises(openai.APIConnectionError):
        got.extend(c.choices[0].delta.content or "" for c in chat(client, 900, stream=True))
    assert [row.outcome for row in fleet.ledger()] == ["cut"]


def test_a_slow_endpoint_takes_its_factor_longer(fleet: ServingFleet, client: OpenAI) -> None:
    def took() -> float:
        start = time.perf_counter()
        chat(client, 1000)
        return time.perf_counter() - start

    normal = took()
    run_with(fleet, FaultKind.SLOW, factor=6)
    assert took() > 3.5 * normal


def test_a_caller_who_leaves_stops_the_engine_and_is_still_billed(
    fleet: ServingFleet, client: OpenAI
) -> None:
    stream = chat(client, 4000, stream=True)
    for _, chunk in zip(range(4), stream, strict=False):
        assert chunk
    stream.close()
    deadline = time.monotonic() + 2
    while not fleet.ledger() and time.monotonic() < deadline:
        time.sleep(0.01)
    (row,) = fleet.ledger()
    assert row.outcome == "abandoned"
    assert 0 < row.output_tokens < 4000
    assert row.prompt_tokens > 300


def test_the_policy_is_served_with_an_etag_and_can_be_replaced(fleet: ServingFleet) -> None:
    etag = fleet.publish({"version": 1})
    with urllib.request.urlopen(fleet.policy_url) as reply:
        assert (reply.read(), reply.headers["etag"]) == (b'{"version": 1}', etag)
    conditional = urllib.request.Request(fleet.policy_url, headers={"If-None-Match": etag})
    with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(conditional):
        pass
    assert caught.value.code == 304
    caught.value.close()
    fleet.publish({"version": 2})
    with urllib.request.urlopen(conditional) as reply:
        assert reply.read() == b'{"version": 2}'


def test_commands_that_make_no_sense_are_refused_and_harm_nothing(fleet: ServingFleet) -> None:
    bad = Fault(endpoint="zz", kind=FaultKind.DIE, start_s=0, end_s=1)
    with pytest.raises(FleetError, match="zz"):
        fleet.start_run([bad])
    with pytest.raises(ValueError, match="before end_s"):
        Fault(endpoint="a", kind=FaultKind.DIE, start_s=2, end_s=1)
    fleet.start_run()


def test_leaves_with_its_parent() -> None:
    fleet = ServingFleet({"a": EndpointSpec()})
    with fleet:
        process = fleet._process
    assert process is not None
    assert process.returncode == 0
