"""One thread per process, only when it is needed, gone without a trace."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from headway.core.snapshot import Snapshot
from headway.policy.refresh import LOOK_NAME, THREAD_NAME, Refresher, refresher
from headway.policy.sources import NotModified, PolicySource, Reply
from headway.policy.supply import PolicySupply
from tests.policy.samples import CREDENTIALS, document, encoded, put

PATIENCE_S = 10.0


def refresh_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == THREAD_NAME]


def eventually(true: Callable[[], bool]) -> None:
    """For what another thread does; polls, so that a busy machine is only slower."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up_at
        time.sleep(0.001)


class Quick(PolicySource):
    """A local source that rises by one version at each look."""

    label = "quick"
    fetched = False
    interval_s = 0.001

    def __init__(self) -> None:
        self.version = 0

    def read(self, etag: str | None) -> Reply | NotModified:
        self.version += 1
        return Reply([encoded(document(version=self.version))])


def supply_of(source: PolicySource, **options: Any) -> PolicySupply:
    return PolicySupply(source, credentials=None, **options)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    for ref in tuple(refresher._members):  # other tests' routers, which nobody closed
        if (supply := ref()) is not None:
            cast("PolicySupply", supply).close()
    gc.collect()
    refresher.notice()
    eventually(lambda: not refresh_threads())
    yield
    gc.collect()
    refresher.notice()
    eventually(lambda: not refresh_threads())


def test_no_thread_before_the_first_use() -> None:
    supply = supply_of(Quick())
    supply.initial()
    supply.refresh_once()
    supply.status()

    assert refresh_threads() == []


def test_a_static_policy_never_needs_a_thread() -> None:
    supply = PolicySupply(document(), credentials=None)
    supply.initial()
    supply.ensure_started()

    assert refresh_threads() == []


def test_snapshots_arrive_from_one_daemon_thread() -> None:
    seen: list[tuple[Snapshot, threading.Thread]] = []
    supply = supply_of(Quick(), on_snapshot=lambda s: seen.append((s, threading.current_thread())))
    supply.initial()
    supply.ensure_started()
    supply.ensure_started()
    eventually(lambda: len(seen) > 3)
    supply.close()

    [thread] = {t for _, t in seen}
    assert thread.name == THREAD_NAME
    assert thread.daemon
    versions = [s.version for s, _ in seen]
    assert versions == sorted(set(versions))


def test_a_hundred_supplies_share_one_thread() -> None:
    supplies = [supply_of(Quick()) for _ in range(100)]
    for supply in supplies:
        supply.initial()
        supply.ensure_started()
    eventually(lambda: all(s.status().version > 2 for s in supplies))

    assert len(refresh_threads()) == 1
    for supply in supplies:
        supply.close()


def test_a_forgotten_supply_is_collected_and_the_thread_ends() -> None:
    source = Quick()
    supply = supply_of(source)
    supply.initial()
    supply.ensure_started()
    eventually(lambda: source.version > 3)
    gone = weakref.ref(supply)
    del supply

    def collected() -> bool:
        gc.collect()
        return gone() is None

    eventually(collected)


def test_the_thread_comes_back_when_it_is_needed_again() -> None:
    for _ in range(3):
        source = Quick()
        supply = supply_of(source)
        supply.initial()
        supply.ensure_started()
        eventually(lambda source=source: source.version > 2)
        supply.close()
        eventually(lambda: not refresh_threads())


class Hanging(Quick):
    """Comes over a network, and hangs at every look after the first until it is let go."""

    fetched = True
    from_loopback = True

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def read(self, etag: str | None) -> Reply | NotModified:
        if self.version:
            assert self.go_on.wait(PATIENCE_S)
        return super().read(etag)


def look_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == LOOK_NAME]


def hanging_supply(source: Hanging) -> PolicySupply:
    return PolicySupply(
        source, credentials=CREDENTIALS, allowed_hosts=[f"{name}.example" for name in "abc"]
    )


def test_a_source_that_hangs_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.policy.refresh.PATIENCE_S", 0.01)
    stuck, quick = Hanging(), Quick()
    supplies = [hanging_supply(stuck), supply_of(quick)]
    for supply in supplies:
        supply.initial()
        supply.ensure_started()
    eventually(lambda: quick.version > 20 and len(look_threads()) == 1)
    assert stuck.version == 1
    assert len(refresh_threads()) == 1

    stuck.go_on.set()
    eventually(lambda: stuck.version > 3)
    for supply in supplies:
        supply.close()
    eventually(lambda: not look_threads())


def test_so_many_hang_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.policy.refresh.PATIENCE_S", 0.01)
    monkeypatch.setattr("headway.policy.refresh.LOOKS_MAX", 2)
    sources = [Hanging() for _ in range(5)]
    supplies = [hanging_supply(source) for source in sources]
    for supply in supplies:
        supply.initial()
        supply.ensure_started()
    eventually(lambda: len(look_threads()) == 3)
    for source in sources:
        source.go_on.set()
    eventually(lambda: all(source.version > 2 for source in sources))
    for supply in supplies:
        supply.close()
    eventually(lambda: not look_threads())


def test_the_thread_may_end_while_a_look_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.policy.refresh.PATIENCE_S", 0.01)
    stuck = Hanging()
    supply = hanging_supply(stuck)
    supply.initial()
    supply.ensure_started()
    eventually(lambda: len(look_threads()) == 1)
    supply.close()
    eventually(lambda: not refresh_threads())
    assert in_child(lambda: refresher._looks == {})
    stuck.go_on.set()
    eventually(lambda: not look_threads())


@pytest.mark.parametrize("hangs", [False, True])
def test_a_step_that_raises_does_not_end_the_thread(
    hangs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        stepped = 0
        on = True

        def is_active(self) -> bool:
            return self.on

        def due_in_s(self) -> float:
            return 0.0 if self.stepped == 0 else 60.0

        def may_hang(self) -> bool:
            return hangs

        def step(self) -> None:
            self.stepped += 1
            raise ZeroDivisionError

        def after_fork(self) -> None:
            pass

    broken, mine = Broken(), Refresher()
    mine.adopt(broken)
    mine.wake()
    eventually(lambda: broken.stepped == 1 and "refreshing the policy failed" in caplog.text)
    assert mine.is_running()
    broken.on = False
    mine.notice()
    eventually(lambda: not mine.is_running())


def in_child(check: Callable[[], bool]) -> bool:
    """Fork; whether `check` held in the child."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if check() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_starts_its_own_thread_at_its_first_use() -> None:
    source = Quick()
    supply = supply_of(source)
    supply.initial()
    supply.ensure_started()
    eventually(lambda: source.version > 3)

    def child() -> bool:
        if refresh_threads() or refresher.is_running() or supply.is_active():
            return False
        before = source.version
        supply.ensure_started()
        eventually(lambda: source.version > before + 3)
        return len(refresh_threads()) == 1

    assert in_child(child)
    supply.close()


def test_a_fork_in_the_middle_of_a_fetch_leaves_no_lock_behind() -> None:
    class Slow(Quick):
        def read(self, etag: str | None) -> Reply | NotModified:
            if self.version >= 1 and threading.current_thread() is not threading.main_thread():
                inside.set()
                go_on.wait(PATIENCE_S)
            return super().read(etag)

    inside, go_on = threading.Event(), threading.Event()
    source = Slow()
    supply = supply_of(source)
    supply.initial()
    supply.ensure_started()
    assert inside.wait(PATIENCE_S)

    # The refresher holds the supply's lock now; in the child nobody would ever release it.
    assert in_child(lambda: supply.refresh_once())
    go_on.set()
    supply.close()


def test_children_do_not_jitter_alike() -> None:
    source = Quick()
    source.interval_s = 1000.0
    supply = supply_of(source, clock=lambda: 0.0)
    supply.initial()

    def spread() -> int:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, str(int(supply.due_in_s() * 1000)).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            return int(pipe.read())

    assert len({spread() for _ in range(5)}) > 1


SCRIPT = """
import os, sys, time
from headway.policy.sources import PolicySource, Reply
from headway.policy.supply import PolicySupply

class Slow(PolicySource):
    label = "slow"
    fetched = False
    interval_s = 0.001
    reads = 0
    def read(self, etag):
        self.reads += 1
        if self.reads > 3:
            os.write(1, b"hanging ")
            time.sleep(60)
        return Reply([open(sys.argv[1], "rb").read()])

source = Slow()
supply = PolicySupply(source, credentials=None)
supply.initial()
supply.ensure_started()
while source.reads <= 3:
    time.sleep(0.001)
import atexit
atexit.register(lambda: os.write(1, b"exit "))
"""


def test_the_process_ends_without_waiting_for_a_fetch(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_bytes(encoded(document(put("endpoints.b", {"base_url": "https://b.example"}))))

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        capture_output=True,
        text=True,
        timeout=30,  # the fetch would take 60
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["hanging", "exit"]
    assert done.stderr == ""


def test_importing_and_building_a_supply_imports_no_extra(tmp_path: Path) -> None:
    probe = """
import sys
from headway.policy.supply import PolicySupply
PolicySupply("https://config.example/policy.json", allow_unsigned=True)
print([m for m in ("yaml", "fsspec", "cryptography", "tenacity", "httpx2", "opentelemetry.sdk") if m in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", probe],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    # openai itself may bring its http stack; the rest stays out.
    assert set(eval(done.stdout)) <= {"httpx2"}
