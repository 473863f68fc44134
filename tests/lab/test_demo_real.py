"""The demo on real engines: skipped in words here; run for real by `make demo-real`."""

from __future__ import annotations

import pytest

from headway.lab import demo_real, real_engine


def test_is_skipped_in_words_where_the_wheels_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real_engine, "find_spec", lambda name: None)
    assert demo_real.run_demo_real() == 0
    said = capsys.readouterr().out
    assert said.startswith("SKIPPED: no real engine here: xllamacpp")


@pytest.mark.real
def test_every_task_is_answered_while_a_server_is_killed() -> None:
    real_engine.find_model()
    assert demo_real.run_demo_real() == 0
