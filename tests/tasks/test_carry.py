"""Tasks across processes."""

from __future__ import annotations

import logging
import re
from decimal import Decimal
from importlib import import_module

import pytest

from headway.errors import TaskLimitExceeded
from headway.task import continue_task, task
from tests.tasks.conftest import Clock
from tests.telemetry.play import Player, Try, tokens

tasks = import_module("headway.task")  # as an attribute of `headway` it is the function


def test_a_part_has_the_tasks_name_id_and_what_is_left(play: Player, clock: Clock) -> None:
    with task(
        "triage – тест", deadline=30, max_cost="0.01", priority="interactive", session="s;1=é",
        clock=clock,
    ) as t:  # fmt: skip
        play(Try("us-1", usage=tokens(1000, 100)))
        clock.now += 10
        headers = t.headers()

    assert set(headers) == {"headway-task"}
    assert re.fullmatch(r"[\x21-\x7e ]+", headers["headway-task"])
    with continue_task({"Headway-Task": headers["headway-task"]}) as part:
        assert part.part_of == ""
        assert (part.id, part.name) == (t.id, t.name)
        assert 19 < part.remaining_s <= 20
        options = tasks.current_scope().options
        assert (options.traffic_class, options.session) == ("interactive", "s;1=é")
        assert part._ledger.caps.cost == Decimal("0.0065")
        play(Try("us-1", usage=tokens(1000, 400)))
        with pytest.raises(TaskLimitExceeded):
            play(Try("us-1", usage=tokens(1000, 100)))


def test_a_deadline_that_has_passed_stops_the_parts_first_call(play: Player, clock: Clock) -> None:
    with task("t", deadline=1, clock=clock) as t:
        clock.now += 5
        headers = t.headers()
    assert "deadline-ms=0" in headers["headway-task"]
    with continue_task(headers) as part:
        assert part.remaining_s < 0.001


@pytest.mark.parametrize(
    "value",
    [
        "",
        "nonsense",
        "v=2; id=a; name=b",
        "v=1; id=a",
        "v=1; name=b",
        "v=1; id=a; name=",
        "v=1; id=a; id=b; name=c",
        "v=1; id=a; name=%ff",
        "v=1; id=a; name=%0aX-Evil%3a1",
        "v=1; id=a; name=b; deadline-ms=soon",
        "v=1; id=a; name=b; deadline-ms=99999999999999",
        "v=1; id=a; name=b; deadline-ms=-5",
        "v=1; id=a; name=b; cost-left=1e999",
        "v=1; id=a; name=b; cost-left=.",
        "v=1; id=a; name=b; priority=1.5",
        "v=1; id=" + "a" * 200 + "; name=b",
        "v=1; id=a; name=b" + ";" * 5000,
        "v=1; id=a; name=b\r\nX-Evil: 1",
        "v=1; id=a; name=b; deadline-ms=٣",
    ],
)
def test_a_malformed_header_is_ignored_with_a_word_that_does_not_repeat_it(
    value: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headway"):
        with continue_task({"headway-task": value}, name="fallback") as part:
            pass
    assert part.name == "fallback"
    assert part.part_of is None
    assert "ignored a malformed headway-task header" in caplog.text
    assert "Evil" not in caplog.text


def test_without_a_header_a_task_begins(caplog: pytest.LogCaptureFixture) -> None:
    with continue_task({"accept": "*/*"}, name="handler") as t:
        t.succeed()
    assert (t.name, t.outcome, t.depth) == ("handler", "success", 0)
    assert not caplog.records


def test_only_a_wellformed_traceparent_is_kept() -> None:
    value = "v=1; id=a; name=b"
    good = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    for traceparent, kept in ((good, good), ("00-xyz", ""), (good + "\n", "")):
        part = continue_task({"headway-task": value, "Traceparent": traceparent})
        assert part.part_of == kept


def test_what_an_outer_task_says_is_carried_too() -> None:
    with task("outer", priority=7, session="s-1"), task("inner") as inner:
        headers = inner.headers()
    with continue_task(headers) as part:
        assert (part.options.priority, part.options.session) == (7, "s-1")

    with task("outer", priority=7, session="s-1"), task("inner", priority="batch") as inner:
        headers = inner.headers()
    with continue_task(headers) as part:
        assert part.options.priority is None
        assert (part.options.traffic_class, part.options.session) == ("batch", "s-1")
