"""429s: a spent account, hints in every form, waits longer than patience, none at all."""

from __future__ import annotations

import threading
import time

import openai
import pytest

import headway
from headway.core.snapshot import AdmissionPolicy, Capacity, RetryPolicy
from tests.faults.bench import Bench, Fault, Seen, fault, play, plays_of
from tests.faults.streams import ALL, HELLO, script
from tests.servers import OK, R, Step, completion, error

SECTION = "A. Throttled"
DEFAULT = RetryPolicy()
SLOW_DOWN = error("slow down", "requests", "rate_limit_exceeded")


def throttled(body: object = SLOW_DOWN, status: int = 429, **headers: str) -> R:
    return R(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def moves(name: str, title: str, step: Step, *, asked_again: bool = False) -> None:
    """The call goes elsewhere at once, and so do the next: the first is left alone."""

    @fault(name, title)
    def moved(bench: Bench) -> None:
        a, b = bench.serve(step), bench.serve(OK)
        client = bench.client(a, b)
        bench.call(client.chat)
        bench.observed()
        for _ in range(5):
            bench.call(client.chat)
        assert {seen.text for seen in bench.calls} == {"hello"}
        assert bench.hits == (1, 6)


def waits(name: str, title: str, step: Step, seconds: float) -> None:
    """Alone, the endpoint is asked again when it said, and not before."""

    @fault(name, title)
    def waited(bench: Bench) -> None:
        a = bench.serve(step, OK)
        seen = bench.call(bench.client(a).chat)
        (gap,) = bench.gaps(a)
        bench.observed(
            f"{seen.words}; asked again {'when told' if gap >= seconds else 'too early'}"
        )
        assert (seen.text, bench.hits) == ("hello", (2,))
        assert seconds <= gap < seconds + 5


def gives_up(name: str, title: str, step: Step) -> None:
    """Nobody waits that long: the error is the caller's at once, and the endpoint is left alone."""

    @fault(name, title)
    def gave_up(bench: Bench) -> None:
        a = bench.serve(step)
        client = bench.client(a)
        first = bench.call(client.chat)
        bench.observed()
        second = bench.call(client.chat)
        assert bench.hits == (1,)
        assert isinstance(first.error, openai.RateLimitError)
        assert isinstance(second.error, openai.RateLimitError)
        assert max(first.took_s, second.took_s) < 20


# --------------------------------------------------------------------------- quota

QUOTA = error("You exceeded your current quota", "insufficient_quota", "insufficient_quota")
moves("C01", "an account without quota, told as a rate limit", throttled(QUOTA, retry_after_ms="9"))
moves("C01a", "the same, by its type alone", throttled(error("quota", "insufficient_quota", None)))
moves(
    "C01b",
    "the same, by its text alone",
    throttled(error("Your credit balance is too low to access the API", "invalid_request", None)),
)
moves("C01c", "the same, as 402", throttled(error("Payment required", "billing", None), 402))
moves(
    "C01d", "the same, as 403", throttled(error("You have reached your spend cap", "x", None), 403)
)
moves(
    "C01e",
    "a billing limit, as 400",
    throttled(
        error("Billing hard limit", "invalid_request_error", "billing_hard_limit_reached"), 400
    ),
)


@fault("C01f", "an account without quota, and no other endpoint")
def quota_alone(bench: Bench) -> None:
    a = bench.serve(throttled(QUOTA))
    client = bench.client(a)
    first = bench.call(client.chat)
    bench.observed()
    second = bench.call(client.chat)
    assert bench.hits == (1,)
    assert isinstance(first.error, openai.RateLimitError)
    assert first.error.code == "insufficient_quota"
    assert isinstance(second.error, openai.RateLimitError)


# --------------------------------------------------------------------------- hints

waits(
    "C02",
    "a wait in milliseconds beside another in seconds",
    throttled(retry_after_ms="250", retry_after="9"),
    0.25,
)
moves("C02a", "the same, beside a free endpoint", throttled(retry_after_ms="9000", retry_after="9"))
gives_up("C04", "a wait of five minutes", throttled(retry_after="300"))
moves("C04a", "the same, beside a free endpoint", throttled(retry_after="300"))
gives_up("C04b", "a wait until next year", throttled(retry_after="Fri, 31 Dec 2100 23:59:59 GMT"))
gives_up("C04c", "a wait of 30,000 years", throttled(retry_after="999999999999"))


def hot(name: str, title: str, **headers: str) -> None:
    """Neither a wait nor none: a short one, and no more attempts than usual."""

    @fault(name, title)
    def kept_cool(bench: Bench) -> None:
        a = bench.serve(throttled(**headers))
        seen = bench.call(bench.client(a).chat)
        bench.observed()
        assert isinstance(seen.error, openai.RateLimitError)
        assert bench.hits == (3,)
        assert all(gap >= 0.009 for gap in bench.gaps(a))  # half of 20 ms and more


hot("C05", "a wait of zero", retry_after="0")
hot("C05a", "a negative wait", retry_after="-5")
hot("C05b", "a wait that is no number", retry_after="soon")
hot("C05c", "a wait that is not finite", retry_after_ms="inf", retry_after="nan")
hot("C05d", "no wait at all")

RESETS = {
    "x_ratelimit_remaining_requests": "0",
    "x_ratelimit_reset_requests": "8h12m3.5s",
    "x_ratelimit_remaining_tokens": "149984",
    "x_ratelimit_reset_tokens": "6m0s",
}
gives_up("C07", "the wait only in the reset of the empty bucket", throttled(**RESETS))
moves("C07a", "the same, beside a free endpoint", throttled(**RESETS))
waits(
    "C07b",
    "the same, short",
    throttled(**{**RESETS, "x_ratelimit_reset_requests": "250ms"}),
    0.25,
)
waits(
    "C07c",
    "two resets, neither bucket said to be empty",
    throttled(x_ratelimit_reset_requests="0.1s", x_ratelimit_reset_tokens="PT0.25S"),
    0.25,
)
LAST = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}


@fault("C07d", "an answer that says it was the last for now")
def last_answer(bench: Bench) -> None:
    a, b = bench.serve(R(200, completion("a"), LAST)), bench.serve(OK)
    client = bench.client(a, b)
    for _ in range(4):
        bench.call(client.chat)
    bench.observed()
    assert [seen.text for seen in bench.calls] == ["a", "hello", "hello", "hello"]


@fault("C07e", "the same at the head of a stream", ways=ALL)
def last_stream(bench: Bench) -> None:
    a = bench.serve(script(bench.way, *HELLO, headers=LAST))
    b = bench.serve(script(bench.way, *HELLO))
    client = bench.client(a, b)
    for _ in range(3):
        bench.stream(client)
    bench.observed()
    assert [seen.text for seen in bench.calls] == ["hello"] * 3
    assert bench.hits == (1, 2)


@fault("C07f", "the same from the only endpoint, soon over")
def last_alone(bench: Bench) -> None:
    soon = {**LAST, "x-ratelimit-reset-requests": "250ms"}
    a = bench.serve(R(200, completion(), soon), OK)
    client = bench.client(a)
    bench.call(client.chat)
    bench.call(client.chat)
    bench.observed(f"asked again {'when told' if bench.gaps(a)[0] >= 0.25 else 'at once'}")
    assert bench.gaps(a)[0] >= 0.25


def azure(wait: str) -> R:
    text = f"Requests to the ChatCompletions_Create Operation have exceeded the rate limit. {wait}"
    return throttled({"error": {"code": "429", "message": text}})


waits("C08", "the wait only in the text", azure("Please retry after 1 second."), 1.0)
waits("C08a", "the same, in milliseconds", azure("Please try again in 250ms."), 0.25)
gives_up("C08b", "the same, of a day", azure("Please retry after 86400 seconds."))
moves("C08c", "the same, beside a free endpoint", azure("Please retry after 3 seconds."))

# --------------------------------------------------------------------------- everyone


@fault("C10", "the only endpoint asks for quiet")
def only_one(bench: Bench) -> None:
    a = bench.serve(throttled(retry_after_ms="300"), OK)
    client = bench.client(a)
    first = bench.call(client.chat)
    bench.observed()
    assert (first.text, bench.hits) == ("hello", (2,))
    assert bench.gaps(a)[0] >= 0.3


@fault("C10a", "every endpoint asks for quiet, one for longer")
def everyone(bench: Bench) -> None:
    a = bench.serve(throttled(retry_after_ms="700"), OK)
    b = bench.serve(throttled(retry_after_ms="250"), R(200, completion("b")))
    seen = bench.call(bench.client(a, b).chat)
    bench.observed()
    assert (seen.text, bench.hits) == ("b", (1, 2))


@fault("C10b", "every endpoint asks for quiet, for longer than the deadline")
def everyone_for_long(bench: Bench) -> None:
    a = bench.serve(throttled(retry_after="20"))
    b = bench.serve(throttled(retry_after="40"))
    client = bench.client(a, b)
    with headway.options(deadline=15.0):
        first = bench.call(client.chat)
        second = Seen() if bench.is_plain else bench.call(client.chat)
    bench.observed()
    assert bench.hits == (1, 1)
    assert isinstance(first.error, openai.RateLimitError)
    assert isinstance(second.error, openai.RateLimitError)
    assert isinstance(second.error, headway.Rejected)
    assert 15 < (second.error.retry_after_s or 0) <= 26
    assert max(first.took_s, second.took_s) < 10


class Crowded:
    """Serves four at a time, and refuses the fifth without a word about when."""

    def __init__(self, room: int = 4, takes_s: float = 0.1) -> None:
        self.room, self.takes_s = room, takes_s
        self._until: list[float] = []
        self._lock = threading.Lock()

    def __call__(self, _seen: object) -> Step:
        with self._lock:
            now = time.monotonic()
            self._until = [until for until in self._until if until > now]
            if len(self._until) >= self.room:
                return R(429, error("too many concurrent requests", "rate_limit_error", None))
            self._until.append(now + self.takes_s)
        return R(200, completion(), delay=self.takes_s)


def crowd(name: str, title: str, capacity: Capacity, attempts: int) -> None:
    @fault(name, title)
    def crowded(bench: Bench) -> None:
        a = bench.serve(Crowded())
        patient = AdmissionPolicy(queue_timeout_s=60.0)  # a busy machine answers slowly
        described = {"a": {"capacity": capacity}}
        client = bench.client(a, endpoints=described, retry=DEFAULT, admission=patient)
        calls = bench.crowd(client, 40)
        answered = sum(seen.text == "hello" for seen in calls)
        bench.observed(f"{answered} of 40 calls answered, {len(a.hits)} requests")
        assert answered == 40
        assert len(a.hits) <= attempts


crowd("C11", "a limit on calls at once, found by 40 of them", Capacity(), 59)
crowd("C11a", "the same, where the policy says 16", Capacity(concurrency=16), 59)


@fault("C11b", "the same, and no policy")
def crowded_without_a_policy(bench: Bench) -> None:
    a = bench.serve(Crowded())
    calls = bench.crowd(bench.unwatched(a), 40)
    answered = sum(seen.text == "hello" for seen in calls)
    bench.observed(f"{answered} of 40 calls answered, {len(a.hits)} requests")
    assert answered == 40
    assert len(a.hits) <= 90


@pytest.mark.parametrize(("found", "colour", "way"), plays_of(SECTION))
def test_fault(found: Fault, colour: str, way: str) -> None:
    play(found, colour, way)
