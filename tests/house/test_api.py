"""The public API is what `tests/api.txt` says."""

from __future__ import annotations

import difflib
import re
from importlib import import_module
from types import ModuleType

import pytest

import headway
from tests.house import reference
from tests.house.api import MODULES, listing, public_names
from tests.house.paths import ROOT

ENTRIES = re.findall(r"<!-- api: ([\w.]+) -->", reference.PAGE.read_text())


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


def test_every_public_name_is_in_the_reference() -> None:
    """By an entry of its own, under whichever of its names, or by a row of its module's."""
    shown: set[int] = set()
    for entry in ENTRIES:
        value = reference.found(entry)
        rows = public_names(value) if isinstance(value, ModuleType) else []
        shown |= {id(value), *(id(getattr(value, name)) for name in rows)}
    listed = {
        f"{module}.{name}": getattr(import_module(module), name)
        for module in MODULES
        for name in public_names(import_module(module))
    }
    missing = [
        name
        for name, value in listed.items()
        if id(value) not in shown and not isinstance(value, ModuleType)
    ]

    assert missing == ["headway.__version__"]


def test_entries_of_the_reference_say_what_each_thing_is() -> None:
    api = listing()
    for entry in ENTRIES:
        text, value = reference.entry(entry), reference.found(entry)

        assert not re.search(r"\| (-|) ?\|$", text, re.MULTILINE), entry
        listed = re.findall(rf"^{re.escape(entry)}\.(\w+)", api, re.MULTILINE)
        public = {name for name in listed if not name.startswith("_")} - reference.NOT_TOLD
        told = set(re.findall(r"^\| `(\w+)", text, re.MULTILINE))
        assert isinstance(value, ModuleType) or public <= told, entry
