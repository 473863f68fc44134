"""A version for a part of the processes: the same ones each time, the others stay where they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from headway.core.model import PolicyLoaded
from headway.policy.decide import takes_part
from headway.policy.sources import StaticSource
from tests.policy.bench import Bench, Remote
from tests.policy.samples import compiled, document, encoded

INSTANCES = [f"pod-{i}" for i in range(1000)]


def chosen(share: float, seed: str | None = None, policy_id: str = "prod-eu") -> set[str]:
    rollout: dict[str, Any] = {"share": share} | ({} if seed is None else {"seed": seed})
    snapshot = compiled(document(rollout=rollout, policy_id=policy_id))
    return {name for name in INSTANCES if takes_part(snapshot, name)}


def fleet(remote: Remote, count: int = 40, **options: Any) -> list[Bench]:
    made = [Bench(remote, instance=f"pod-{i}", **options) for i in range(count)]
    for bench in made:
        bench.supply.initial()
    return made


def test_the_share_is_met_and_larger_shares_take_smaller_ones_in() -> None:
    sizes = {share: len(chosen(share)) for share in (0.0, 0.05, 0.5, 1.0)}
    assert sizes[0.0] == 0
    assert 30 <= sizes[0.05] <= 70
    assert 440 <= sizes[0.5] <= 560
    assert sizes[1.0] == 1000
    assert chosen(0.05) < chosen(0.2) < chosen(0.5)


def test_the_choice_is_the_same_for_every_version_until_the_seed_changes() -> None:
    assert chosen(0.1) == chosen(0.1)
    assert chosen(0.1, "a") != chosen(0.1, "b")
    assert chosen(0.1) != chosen(0.1, policy_id="other")


def test_the_others_keep_the_version_before_and_say_which_one_they_wait_for() -> None:
    remote = Remote()
    benches = fleet(remote)
    remote.content = encoded(document(version=8, rollout={"share": 0.25}))
    for bench in benches:
        bench.later(30)
        bench.later(30)
    canaries = {bench for bench in benches if bench.version == 8}
    held = [bench for bench in benches if bench not in canaries]

    assert 3 <= len(canaries) <= 18
    for bench in held:
        status = bench.supply.status()
        assert (status.version, status.held) == (7, (0, 8))
        assert status.last_error is None  # nothing is wrong
        assert bench.reasons() == []
    assert all(bench.supply.status().held is None for bench in canaries)

    remote.content = encoded(document(version=9, rollout={"share": 0.75}))
    for bench in benches:
        bench.later(30)
    assert canaries < {bench for bench in benches if bench.version == 9}
    remote.content = encoded(document(version=10))  # the rest
    for bench in benches:
        assert bench.later(30)
        assert bench.supply.status().held is None


def test_a_canary_is_taken_back_by_the_next_version() -> None:
    remote = Remote()
    benches = fleet(remote)
    remote.content = encoded(document(version=8, rollout={"share": 0.5}))
    for bench in benches:
        bench.later(30)
    remote.content = encoded(document(version=9))
    for bench in benches:
        bench.later(30)

    assert {bench.version for bench in benches} == {9}
    seen = {tuple(e.version for e in b.events if isinstance(e, PolicyLoaded)) for b in benches}
    assert seen == {(7, 9), (7, 8, 9)}


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    """Processes of one host share the cache: the canary's version must not leak from there."""
    remote = Remote()
    for bench in fleet(remote, cache_dir=tmp_path):
        bench.later(30)
    remote.content = encoded(document(version=8, rollout={"share": 0.25}))
    before = fleet(remote, cache_dir=tmp_path)
    for bench in before:
        bench.later(30)
    remote.content = OSError("down")
    after = fleet(remote, cache_dir=tmp_path)

    assert {b.version for b in before} == {7, 8}
    assert [b.version for b in before] == [b.version for b in after]


def test_who_has_nothing_else_uses_it_and_says_so() -> None:
    remote = Remote()
    remote.content = encoded(document(version=8, rollout={"share": 0.0}))
    bench = Bench(remote)
    assert bench.supply.initial().version == 8
    [warning] = [w for w in bench.supply.status().warnings if "rolled out" in w]
    assert "cache_dir" in warning

    remote.bootstrap = StaticSource(document(version=3))
    other = Bench(remote)
    assert other.supply.initial().version == 3
    other.later(0)
    assert (other.version, other.supply.status().held) == (3, (0, 8))


def test_nobody_waits_once_the_old_one_has_expired() -> None:
    remote = Remote()
    remote.content = encoded(document(expires_at="2026-11-30T12:00:00Z"))
    bench = Bench(remote)
    bench.supply.initial()
    remote.content = encoded(document(version=8, rollout={"share": 0.0}))
    assert not bench.later(30)
    assert not bench.later(30)
    assert bench.later(3600)

    assert bench.version == 8
    assert [s.version for s in bench.snapshots] == [8]


def test_the_default_instance_is_the_host(monkeypatch: Any) -> None:
    import socket

    monkeypatch.setattr(socket, "gethostname", lambda: "pod-3")
    snapshot = compiled(document(rollout={"share": 0.5}))
    for name in ("pod-3", "pod-4", "pod-5"):
        remote = Remote()
        bench = Bench(remote, instance=None if name == "pod-3" else name)
        bench.supply.initial()
        remote.content = encoded(document(version=8, rollout={"share": 0.5}))
        assert bench.later(30) is takes_part(dataclasses.replace(snapshot), name)
