"""Locks that are free in a forked child.

A fork copies a lock as it is, and only the thread that forked: one that another thread held stays
locked in the child for ever. What is locked for microseconds in every call is often held somewhere
in a busy process.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar

L = TypeVar("L")


def free_in_children(lock: L) -> L:
    """The lock, of a module or of an object that lives as long as the process: forks renew it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: renew(lock))
    return lock


def renew(lock: object) -> None:
    """In a forked child: whoever held it is not here."""
    held: Any = lock
    held._at_fork_reinit()  # what the standard library's own locks do; there is no public name
