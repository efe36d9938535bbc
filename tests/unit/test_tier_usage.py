"""Heat over restarts, bounded in memory and in the catalog."""

import pytest

from tiercache.config import HeatConfig
from tiercache.testing.tiers import MemoryKeyValues
from tiercache.tier.usage import Usage

HOUR = HeatConfig(half_life_s=3600.0)
START = 1.8e9


def test_heat_survives_a_restart_and_decays_meanwhile():
    kv = MemoryKeyValues()
    usage = Usage(HOUR, kv, 10, START)
    usage.use(7, 1, START)
    usage.use(8, 1, START)
    usage.flush()
    again = Usage(HOUR, kv, 10, START)
    assert again.count(7, START + 3600) == pytest.approx(0.5)
    assert again.group_count(1, START + 3600) == pytest.approx(1.0)


def test_what_is_forgotten_leaves_the_catalog():
    kv = MemoryKeyValues()
    usage = Usage(HOUR, kv, 3, START)
    for ino in range(100):
        usage.use(ino, ino, START + ino)
        usage.flush()
    assert len(kv.pairs) == 6 + 1  # and the half-life
    assert usage.count(99, START + 99) == 1.0
    assert usage.count(0, START + 99) == 0.0


def test_damaged_scores_are_ignored():
    usage = Usage(HOUR, MemoryKeyValues({b"Uo" + bytes(8): b"short"}), 10, START)
    assert usage.count(0, START) == 0.0


def test_group_is_the_directory_to_the_configured_depth():
    usage = Usage(HeatConfig(group_depth=1), MemoryKeyValues(), 10, START)
    assert usage.group_of(b"a/b/c") == usage.group_of(b"a/x")
    assert usage.group_of(b"a/b/c") != usage.group_of(b"b/b/c")
    for n in range(10_000):
        assert usage.group_of(b"a/%d/f" % n) == usage.group_of(b"a/x")


@pytest.mark.parametrize("half_life_s", [60.0, 36_000.0])
def test_another_half_life_keeps_what_counts_now(half_life_s):
    kv = MemoryKeyValues()
    usage = Usage(HOUR, kv, 10, START)
    for _ in range(4):
        usage.use(7, 1, START)
    usage.reconfigure(HeatConfig(half_life_s=half_life_s), START)
    assert usage.count(7, START) == pytest.approx(4)
    assert usage.count(7, START + half_life_s) == pytest.approx(2)
    again = Usage(HeatConfig(half_life_s=half_life_s), kv, 10, START)
    assert again.group_count(1, START + half_life_s) == pytest.approx(2)


def test_a_restart_with_another_half_life_keeps_what_counts_then():
    kv = MemoryKeyValues()
    usage = Usage(HOUR, kv, 10, START)
    usage.use(7, 1, START)
    usage.flush()
    again = Usage(HeatConfig(half_life_s=1.0), kv, 10, START + 3600)
    assert again.count(7, START + 3600) == pytest.approx(0.5)
    assert again.count(7, START + 3601) == pytest.approx(0.25)
