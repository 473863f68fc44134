"""The public API is what `tests/api.txt` says."""

from __future__ import annotations

import difflib

import pytest

import headway
from tests.house.api import listing
from tests.house.paths import ROOT


def test_the_public_api_is_as_listed() -> None:
    listed = (ROOT / "tests" / "api.txt").read_text()
    found = listing()
    difference = "\n".join(
        difflib.unified_diff(listed.splitlines(), found.splitlines(), "listed", "found", n=0)
    )

    assert listed == found, f"{difference}\n(`make api` writes the listing anew)"


def test_all_is_sorted_complete_and_importable() -> None:
    assert headway.__all__ == sorted(headway.__all__)
    assert all(getattr(headway, name) is not None for name in headway.__all__)
    assert set(dir(headway)) == set(headway.__all__)


def test_every_error_is_at_the_root() -> None:
    from headway import errors

    raised = {
        name
        for name in errors.__all__
        if isinstance(cls := getattr(errors, name), type) and issubclass(cls, errors.HeadwayError)
    }
    assert raised <= set(headway.__all__)


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="warp"):
        _ = getattr(headway, "warp")  # noqa: B009 - checkers know that it isn't there
