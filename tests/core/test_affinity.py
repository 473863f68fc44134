from __future__ import annotations

import pytest

from headway.core import affinity
from headway.core.affinity import BLOCK_TOKENS, AffinityMap, Warm

KEYS = ("session", "prefix")


def find(
    warm: AffinityMap,
    session: str | None = None,
    prefix: tuple[int, ...] = (),
    *,
    now: float = 0.0,
    min_tokens: int = 256,
    keys: tuple[str, ...] = KEYS,
    model: str = "m",
) -> Warm | None:
    return warm.find(model, session, prefix, ttl_s=600.0, min_tokens=min_tokens, keys=keys, now=now)


def test_nothing_is_known_at_first() -> None:
    warm = AffinityMap()

    assert find(warm, "s", (1, 2)) is None
    assert len(warm) == 0


def test_a_session_stays_where_it_was_served_last() -> None:
    warm = AffinityMap()
    warm.remember("m", "s", (), 900, "a", 0.0)
    warm.remember("m", "s", (), 1200, "b", 1.0)

    assert find(warm, "s") == Warm("b", 1200, "session")
    assert find(warm, "other") is None
    assert find(warm, None) is None


def test_what_one_model_has_warm_says_nothing_of_another() -> None:
    warm = AffinityMap()
    warm.remember("m", "s", (11, 22), 600, "a", 0.0)
    warm.remember("embedder", "s", (11, 22), 600, "b", 1.0)

    assert find(warm, "s") == Warm("a", 600, "session")
    assert find(warm, "s", model="embedder") == Warm("b", 600, "session")
    assert find(warm, prefix=(11, 22)) == Warm("a", 2 * BLOCK_TOKENS, "prefix")
    assert find(warm, "s", (11,), model="third") is None


def test_the_longest_known_prefix_counts() -> None:
    warm = AffinityMap()
    warm.remember("m", None, (11, 22), 600, "a", 0.0)
    warm.remember("m", None, (11, 33, 44), 900, "b", 0.0)

    assert find(warm, prefix=(11, 22, 99)) == Warm("a", 2 * BLOCK_TOKENS, "prefix")
    assert find(warm, prefix=(11, 33, 44)) == Warm("b", 3 * BLOCK_TOKENS, "prefix")
    assert find(warm, prefix=(11, 77)) == Warm("b", BLOCK_TOKENS, "prefix")  # the latest to see it
    assert find(warm, prefix=(77,)) is None


def test_the_session_comes_before_the_prefix_unless_the_keys_say_otherwise() -> None:
    warm = AffinityMap()
    warm.remember("m", "s", (), 300, "a", 0.0)
    warm.remember("m", None, (1,), 300, "b", 0.0)

    assert find(warm, "s", (1,)) == Warm("a", 300, "session")
    assert find(warm, "s", (1,), keys=("prefix", "session")) == Warm("b", 256, "prefix")
    assert find(warm, "s", (1,), keys=("prefix",)) == Warm("b", 256, "prefix")
    assert find(warm, "s", (1,), keys=("session",)) == Warm("a", 300, "session")
    assert find(warm, "s", (1,), keys=()) is None


def test_an_unknown_session_falls_back_to_the_prefix() -> None:
    warm = AffinityMap()
    warm.remember("m", None, (1,), 300, "b", 0.0)

    assert find(warm, "new", (1,)) == Warm("b", 256, "prefix")


def test_a_prefix_shorter_than_the_minimum_is_not_worth_it() -> None:
    warm = AffinityMap()
    warm.remember("m", None, (1, 2), 600, "a", 0.0)

    assert find(warm, prefix=(1, 9), min_tokens=257) is None
    assert find(warm, prefix=(1, 2), min_tokens=512) == Warm("a", 512, "prefix")
    assert find(warm, prefix=(1, 9), min_tokens=256) == Warm("a", 256, "prefix")


def test_what_was_served_longer_ago_than_the_ttl_is_cold() -> None:
    warm = AffinityMap()
    warm.remember("m", "s", (1,), 300, "a", 1000.0)

    assert find(warm, "s", now=1600.0) is not None
    assert find(warm, "s", now=1600.1) is None
    assert find(warm, prefix=(1,), now=1600.0) is not None
    assert find(warm, prefix=(1,), now=1600.1) is None


def test_an_expired_block_does_not_hide_a_fresh_shorter_one() -> None:
    warm = AffinityMap()
    warm.remember("m", None, (1, 2), 600, "a", 0.0)
    warm.remember("m", None, (1,), 300, "b", 500.0)

    assert find(warm, prefix=(1, 2), now=700.0) == Warm("b", 256, "prefix")


def test_forgetting_an_endpoint_drops_its_sessions_and_blocks_only() -> None:
    warm = AffinityMap()
    warm.remember("m", "s", (1, 2), 600, "a", 0.0)
    warm.remember("m", "t", (3,), 600, "b", 0.0)

    warm.forget("a")

    assert len(warm) == 2
    assert find(warm, "s", (1, 2)) is None
    assert find(warm, "t") == Warm("b", 600, "session")
    assert find(warm, prefix=(3,)) == Warm("b", 256, "prefix")


def test_the_least_recent_sessions_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "SESSIONS_MAX", 3)
    warm = AffinityMap()
    for session in ("a", "b", "c", "a", "d"):  # b is the least recent at the end
        warm.remember("m", session, (), 300, "e", 0.0)

    assert [s for s in "abcd" if find(warm, s)] == ["a", "c", "d"]
    assert len(warm) == 3


def test_the_least_recent_blocks_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "PREFIXES_MAX", 3)
    warm = AffinityMap()
    warm.remember("m", None, (1, 2, 3), 800, "e", 0.0)
    warm.remember("m", None, (1, 4), 600, "e", 0.0)
    assert [b for b in (1, 2, 3, 4) if find(warm, prefix=(b,))] == [1, 3, 4]

    warm.remember("m", None, (5, 6, 7, 8), 1000, "e", 0.0)

    assert [b for b in range(1, 9) if find(warm, prefix=(b,))] == [6, 7, 8]
    assert len(warm) == 3


def test_both_maps_stay_bounded_by_their_stated_sizes() -> None:
    warm = AffinityMap()
    for i in range(affinity.SESSIONS_MAX + 100):
        warm.remember("m", f"s{i}", (), 300, "e", 0.0)
    warm.remember("m", None, tuple(range(affinity.PREFIXES_MAX + 100)), 300, "e", 0.0)

    assert len(warm) == 8_192 + 65_536
