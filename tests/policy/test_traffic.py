"""What changes for which traffic, and why a call goes where, from documents alone."""

from __future__ import annotations

from typing import Any

import pytest

from headway.policy.traffic import Setting, Traffic, diff, explain
from tests.policy.samples import Document, compiled, document, put


def changed(change: Any = None, zone: str | None = None, **top: Any) -> Any:
    return diff(compiled(document()), compiled(document(change, **top)), zone=zone)


def test_nothing_changes_but_the_version() -> None:
    found = changed(version=8)

    assert found.is_empty
    assert found.head == (Setting("version", "7", "8"),)
    assert (found.traffic, found.endpoints_changed) == ((), {})


def test_moved_weights_say_how_much_of_which_traffic_moves() -> None:
    [change] = changed(put("routes.0.weights", {"a": 1, "b": 1})).traffic

    assert change.traffic == Traffic(model="chat-large")
    assert str(change.traffic) == "model chat-large"
    assert change.moved == pytest.approx(0.25)
    assert change.before == pytest.approx({"a": 0.75, "b": 0.25})
    assert change.after == pytest.approx({"a": 0.5, "b": 0.5})
    assert change.settings == ()


def test_the_same_weights_on_another_scale_move_nothing() -> None:
    assert changed(put("routes.0.weights", {"a": 300, "b": 100})).is_empty


def test_a_route_put_before_another_takes_its_traffic() -> None:
    """No line of the old route changed: what changed is who gets there first."""

    def before(made: Document) -> None:
        made["routes"].insert(
            0, {"match": {"model": ["chat-large"], "task": "triage"}, "weights": {"c": 1}}
        )

    [change] = changed(before).traffic
    assert change.traffic == Traffic(model="chat-large", task="triage")
    assert (change.route_before, change.route_after) == ("chat-large", "chat-large|task=triage")
    assert change.moved == 1.0
    assert change.before == pytest.approx({"a": 0.75, "b": 0.25})
    assert change.after == {"c": 1.0}


def test_a_route_that_never_matches_changes_nothing() -> None:
    def after(made: Document) -> None:
        made["routes"].append(
            {"name": "shadowed", "match": {"model": "chat-large"}, "weights": {"c": 1}}
        )

    assert changed(after).is_empty


def test_traffic_that_gains_or_loses_its_route_is_told() -> None:
    def catch_all(made: Document) -> None:
        made["routes"].append({"weights": {"c": 1}})

    found = changed(catch_all)
    assert [(str(c.traffic), c.route_before, c.route_after) for c in found.traffic] == [
        ("any other call", None, "*")
    ]
    back = diff(compiled(document(catch_all)), compiled(document()))
    assert [(c.route_before, c.route_after, c.moved) for c in back.traffic] == [("*", None, 1.0)]


def test_weights_by_size_are_compared_where_they_differ_most() -> None:
    sizes = [{"max_prompt_tokens": 4000, "weights": {"a": 3, "b": 1}}, {"weights": {"b": 1}}]
    [change] = changed(put("routes.0.weights", sizes)).traffic

    assert change.prompt_tokens > 4000
    assert change.after == {"b": 1.0}
    assert change.moved == pytest.approx(0.75)


def test_weights_by_zone_are_the_callers() -> None:
    zones = {"eu": {"a": 3, "b": 1}, "*": {"c": 1}}
    assert changed(put("routes.0.weights", zones), zone="eu").is_empty
    assert len(changed(put("routes.0.weights", zones), zone="us").traffic) == 1


def test_handling_and_fallbacks_are_told_with_their_values() -> None:
    def change(made: Document) -> None:
        made["routes"][0]["deadline"] = {"total_ms": 5000}
        made["routes"][0]["retry"] = {"max_attempts": 2}
        made["routes"][0]["fallback"] = [{"endpoint": "c", "model": "tiny", "on": ["overloaded"]}]

    [found] = changed(change).traffic
    assert found.moved == 0.0
    assert set(found.settings) == {
        Setting("deadline.total_s", "none", "5"),
        Setting("retry.attempts_max", "unset", "2"),
    }
    assert (found.fallback_before, found.fallback_after) == (("c",), ("c as tiny on overloaded",))


def test_endpoints_come_go_and_change_and_secrets_are_not_said() -> None:
    def change(made: Document) -> None:
        del made["endpoints"]["c"]
        made["routes"][0]["fallback"] = []
        made["endpoints"]["d"] = {"base_url": "https://d.example"}
        made["endpoints"]["a"]["base_url"] = "https://a2.example/v1"
        made["endpoints"]["b"]["headers"] = {"x-gateway": "canary-value"}
        made["endpoints"]["b"]["state"] = "draining"

    found = changed(change)
    assert (found.endpoints_added, found.endpoints_removed) == (("d",), ("c",))
    assert found.endpoints_changed["a"] == (
        Setting("base_url", "https://a.example/v1", "https://a2.example/v1"),
    )
    assert {s.where for s in found.endpoints_changed["b"]} == {"headers", "state"}
    assert "canary" not in str(found)
    assert not found.is_empty


def test_ten_thousand_routes_are_compared_in_little_time() -> None:
    def many(count: int, version: int) -> Any:
        routes = [
            {"match": {"model": f"m{i}"}, "weights": {"a": 1, "b": version}} for i in range(count)
        ]
        return compiled(document(routes=routes, version=version))

    found = diff(many(2000, 1), many(2000, 2))
    assert len(found.traffic) == 2000
    assert found.kinds_left_out == 0


def test_an_explanation_names_candidates_and_what_speaks_for_them() -> None:
    policy = compiled(document(put("endpoints.b.state", "draining")))
    found = explain(policy, model="chat-large")

    assert found.route == "chat-large"
    rows = {row.endpoint_id: row for row in found.candidates}
    assert rows["a"].eligible
    assert (rows["b"].eligible, rows["b"].why_not) == (False, "draining")
    assert rows["c"].group == 1
    assert explain(policy, model="unheard-of").route is None


def test_what_a_class_is_worth_is_a_change_that_calls_notice() -> None:
    classes = {"batch": {"priority": -5}, "gone": {}}
    old = compiled(document(classes=classes))
    new = compiled(document(classes={"batch": {"priority": -5, "sheddable": False}, "new": {}}))

    found = diff(old, new)

    assert not found.is_empty
    assert found.head == (
        Setting("classes.batch.sheddable", "True", "False"),
        Setting("classes.gone", "given (TrafficClass)", "unset"),
        Setting("classes.new", "unset", "given (TrafficClass)"),
    )


def test_going_on_after_a_broken_stream_is_a_change_and_its_members_are_not_shown() -> None:
    on = {"enabled": True, "params": {"token": "sk-secret"}}
    [change] = changed(put("routes.0.continuation", on)).traffic

    assert change.settings == (
        Setting("continuation.enabled", "False", "True"),
        Setting("continuation.params", "not shown", "not shown either"),
    )
