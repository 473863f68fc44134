"""What every policy test starts from."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def policy_log(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tools run in the same process (import-linter) configure logging and switch off our logger.
    monkeypatch.setattr(logging.getLogger("headway.policy"), "disabled", False)
