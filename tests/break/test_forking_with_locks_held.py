"""A process that forks while other threads make calls: whatever they held is free in the child."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

# Every lock that modules of headway, or the objects that they keep for the whole process, hold.
SCRIPT = """
import importlib, os, pkgutil, sys, threading
import headway, headway.client, headway.testing
from headway.task.left_open import _open

for found in pkgutil.walk_packages(headway.__path__, "headway."):
    if not found.name.startswith(("headway.lab", "headway.cli", "headway.__main__")):
        importlib.import_module(found.name)
fleet = headway.testing.ScriptedEndpoints({"a": "hi"})
client = fleet.wrap()
KINDS = (type(threading.Lock()), type(threading.RLock()))

def held_by(owner, name, deep):
    for key in [*getattr(owner, "__dict__", ()), *getattr(type(owner), "__slots__", ())]:
        value = getattr(owner, key, None)
        if isinstance(value, KINDS):
            yield f"{name}.{key}", value
        elif deep and type(value).__module__.startswith("headway."):
            yield from held_by(value, f"{name}.{key}", deep - 1)

def locks():
    for name, module in sorted(sys.modules.items()):
        if name.startswith("headway."):
            yield from held_by(module, name, 1)
    yield from held_by(fleet.router, "router", 2)
    for task in _open:
        yield "task", task._ledger.lock

with headway.task("work", max_calls=10) as task:
    ready, done = threading.Event(), threading.Event()

    def hold():
        for _, lock in locks():
            lock.acquire(blocking=False)
        ready.set()
        done.wait()

    threading.Thread(target=hold, daemon=True).start()
    ready.wait()
    if os.fork() == 0:
        for _ in range(4):  # so that no new thread is taken for the one that held them
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        print(sorted({name for name, lock in locks() if not lock.acquire(blocking=False)
                      or lock.release()}), flush=True)
        os._exit(0)
    os.wait()
    os._exit(0)
"""


def test_no_lock_is_held_in_a_child_by_a_thread_of_its_parent() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )

    assert ran.stdout.strip() == "[]", ran.stderr
