"""`headway simulate`: lists, runs, judges, draws."""

from __future__ import annotations

import re
import sys

import pytest

from headway.cli import MISSING_EXTRA, NO, OK, USAGE, main
from headway.lab.sim.scenarios import SCENARIOS, altered, named


def test_the_list_names_every_scenario_and_contender(capsys) -> None:
    assert main(["simulate", "--list"]) == OK
    text = capsys.readouterr().out
    assert all(re.search(rf"^{re.escape(name)} ", text, re.MULTILINE) for name in SCENARIOS)
    assert "gateway_marginal" in text


def test_without_a_scenario_it_says_what_there_is(capsys) -> None:
    assert main(["simulate"]) == USAGE
    assert "equal-70" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "no scenario 'nonsense'"),
        (["equal-70", "--contenders", "nonsense"], "no contender 'nonsense'"),
        (["equal-70", "--trace", "azure:/no/such/file"], "/no/such/file"),
    ],
)
def test_what_is_not_there_is_named(arguments: list[str], said: str, capsys) -> None:
    assert main(["simulate", *arguments, "--seeds", "1", "--workers", "1"]) == USAGE
    assert said in capsys.readouterr().err


def test_without_ray_it_names_the_extra(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["simulate", "equal-70", "--ray", "--seeds", "1"]) == MISSING_EXTRA
    assert "pip install 'headway[ray]'" in capsys.readouterr().err


def test_a_run_prints_its_figures_and_writes_a_page_of_its_own(tmp_path, capsys) -> None:
    report = tmp_path / "page" / "report.html"
    arguments = ["simulate", "one-down", "--seconds", "60", "--seeds", "2", "--workers", "1"]
    status = main([*arguments, "--contenders", "headway,plain", "--report", str(report)])
    text, page = capsys.readouterr().out, report.read_text(encoding="utf-8")
    assert status in (OK, NO)
    assert "headway" in text
    assert "attempts" in text
    assert page.count("<svg") >= 6
    assert "F2: one of four dead" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_is_whole(name: str) -> None:
    scenario = named(name)
    assert scenario.name == name
    assert scenario.checks
    assert scenario.warmup_s < scenario.duration_s
    known = {"headway", *scenario.contenders}
    assert {c.of for c in scenario.checks} <= known
    assert {c.over for c in scenario.checks if c.over} <= known
    assert {f.endpoint for f in scenario.faults} <= {s.id for s in scenario.fleet}


def test_a_shorter_run_warms_up_shorter() -> None:
    shorter = altered(named("equal-70"), duration_s=100.0, load=None)
    assert (shorter.duration_s, shorter.warmup_s, shorter.load) == (100.0, 25.0, 0.7)
