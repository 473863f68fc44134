"""What `headway doctor` finds."""

from __future__ import annotations

from typing import Final, NamedTuple

OK_: Final = "ok"
NOTE: Final = "note"
WRONG: Final = "wrong"
SKIPPED: Final = "not asked"


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    state: str
    """ok | note | wrong | not asked"""
    found: str
