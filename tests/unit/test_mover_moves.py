"""Promotion, demotion, hysteresis, suspension: two real tiers, a clock that is told the time."""

import errno
import logging
import os

import pytest
import trio

from tiercache.config import MoveConfig
from tiercache.testing.tiers import Cache, FaultySystem, body, file
from tiercache.transfer.mover import Mover
from tiercache.types import MIB

QUIET = {"bandwidth": 0, "backoff": "never", "interval_s": 1.0}


def two_tiers(tmp_path, nvme=8, hdd=64, policy="lru", **keywords):
    cache = Cache(tmp_path, (1, 1), policy=policy, **keywords)
    cache.set_capacities(nvme * MIB, hdd * MIB)
    return cache


def mover_of(cache, **settings):
    return Mover(cache.store.exchange, MoveConfig(**{**QUIET, **settings}), activity=lambda: 0)


def level(cache, obj):
    """The tier that *obj* is in; None: none."""
    item = cache.store._table.get(obj)
    return None if item.tier is None else item.tier.level


def used_later(cache, obj, seconds=1.0):
    cache.clock.now += seconds
    cache.store.touch(obj)


async def test_above_high_water_victims_go_down_until_low_water(tmp_path):
    cache = two_tiers(tmp_path, nvme=20)
    objects = [file(ino, MIB) for ino in range(7, 26)]
    for obj in objects:
        cache.put(obj)
        used_later(cache, obj)
    assert {level(cache, obj) for obj in objects} == {0}
    await mover_of(cache).round()
    nvme, hdd = cache.store.status()
    assert nvme["used"] <= 0.9 * nvme["capacity"]
    assert nvme["demotions"] == hdd["objects"] == 19 - nvme["objects"] > 0
    assert nvme["evictions"] == 0
    levels = [level(cache, obj) for obj in objects]
    assert levels == sorted(levels, reverse=True), "the least recently used went down"
    for obj in objects:
        assert await cache.get(obj)
        assert cache.backing_matches(obj)
    assert cache.on_disk() <= cache.used
    cache.restart()
    assert [level(cache, obj) for obj in objects] == levels
    assert all([await cache.get(obj) for obj in objects])
    cache.store.close()


async def test_victims_nobody_wants_are_dropped(tmp_path):
    cache = two_tiers(tmp_path, nvme=20, hdd=1)
    objects = [file(ino, MIB) for ino in range(7, 26)]
    for obj in objects:
        cache.put(obj)
    await mover_of(cache).round()
    nvme, hdd = cache.store.status()
    assert nvme["used"] <= 0.9 * nvme["capacity"]
    assert nvme["evictions"] == 19 - nvme["objects"] > 0
    assert hdd["objects"] == 0
    cache.store.close()


async def put_below(cache, obj):
    """Have *obj* in the lower tier."""
    cache.store.tiers[0].health.writable = False
    assert cache.put(obj)
    cache.store.tiers[0].health.writable = True
    assert level(cache, obj) == 1


async def test_object_used_in_the_lower_tier_goes_up_where_there_is_room(tmp_path):
    cache = two_tiers(tmp_path)
    obj, idle = file(7, 3 * MIB + 5), file(8, MIB)
    await put_below(cache, obj)
    await put_below(cache, idle)
    used_later(cache, obj)
    await mover_of(cache).round()
    assert (level(cache, obj), level(cache, idle)) == (0, 1)
    assert cache.backing_matches(obj), "it can be passed through at once"
    assert cache.get_now(obj)
    assert cache.store.status()[1]["promotions"] == 1
    assert len(cache.files()) == 2
    cache.restart()
    assert cache.backing_matches(obj)
    cache.store.close()


async def test_what_moved_can_be_a_victim_where_it_is_now(tmp_path):
    cache = two_tiers(tmp_path)
    up, stays = file(7, MIB), file(8, MIB)
    await put_below(cache, up)
    await put_below(cache, stays)
    used_later(cache, up)
    await mover_of(cache).round()
    nvme, hdd = cache.store.tiers
    assert nvme.policy.victim(cache.clock.now) == up.ino
    assert hdd.policy.victim(cache.clock.now) == stays.ino
    cache.store.close()


async def test_what_went_down_leaves_a_full_lower_tier_in_its_turn(tmp_path):
    cache = two_tiers(tmp_path, nvme=20, hdd=4)
    objects = [file(ino, MIB) for ino in range(7, 37)]
    mover = mover_of(cache, residence_s=0.0)
    for obj in objects:
        assert cache.put(obj), "a full chain of tiers makes room"
        used_later(cache, obj)
        await mover.round()
    nvme, hdd = cache.store.status()
    assert nvme["demotions"] > 4 >= hdd["objects"]
    assert level(cache, objects[0]) is None
    cache.store.close()


async def test_incomplete_objects_are_not_promoted(tmp_path):
    cache = two_tiers(tmp_path)
    obj = file(7, 3 * MIB)
    cache.store.tiers[0].health.writable = False
    cache.put(obj, 0, 2)
    cache.store.tiers[0].health.writable = True
    used_later(cache, obj)
    await mover_of(cache).round()
    assert level(cache, obj) == 1
    cache.store.close()


async def full_with_one_below(tmp_path):
    cache = two_tiers(tmp_path, nvme=8)
    residents = [file(ino, MIB) for ino in range(7, 14)]
    for obj in residents:
        cache.put(obj)
        used_later(cache, obj)
    newcomer = file(20, MIB)
    await put_below(cache, newcomer)
    cache.clock.now += 1000  # longer than the residence
    return cache, residents, newcomer


async def test_hotter_object_displaces_the_coldest(tmp_path):
    cache, residents, newcomer = await full_with_one_below(tmp_path)
    for _ in range(4):
        used_later(cache, newcomer)
    await mover_of(cache).round()
    assert level(cache, newcomer) == 0
    assert [level(cache, obj) for obj in residents] == [1, 0, 0, 0, 0, 0, 0]
    cache.store.close()


async def test_one_read_displaces_nobody(tmp_path):
    cache, residents, newcomer = await full_with_one_below(tmp_path)
    used_later(cache, newcomer)
    await mover_of(cache).round()
    assert level(cache, newcomer) == 1
    assert {level(cache, obj) for obj in residents} == {0}
    cache.store.close()


@pytest.mark.parametrize(
    ("period_s", "shift"),
    [(1000.0, 0), (21600.0, 0), (200000.0, 0), (1000.0, 1), (21600.0, 1)],
)
async def test_f18_equally_hot_objects_do_not_bounce(tmp_path, period_s, shift):
    """Whatever the half-life when the order repeats; up to one half-life when it changes."""
    cache, residents, newcomer = await full_with_one_below(tmp_path)
    objects = [*residents, newcomer]
    mover = mover_of(cache)
    for epoch in range(6):
        for n in range(8):
            used_later(cache, objects[(n * 3 + shift * epoch) % 8], period_s / 8)
            await mover.round()
    nvme, hdd = cache.store.status()
    assert nvme["demotions"] + hdd["promotions"] == 0
    cache.store.close()


async def test_f18_what_just_came_stays_for_a_while(tmp_path):
    cache, residents, newcomer = await full_with_one_below(tmp_path)
    for _ in range(4):
        used_later(cache, newcomer)
    mover = mover_of(cache)
    await mover.round()
    (displaced,) = [obj for obj in residents if level(cache, obj) == 1]
    for _ in range(50):
        used_later(cache, displaced, 0.1)
    await mover.round()
    assert level(cache, displaced) == 1
    for _ in range(50):
        used_later(cache, displaced, 10)
    await mover.round()
    assert level(cache, displaced) == 0
    cache.store.close()


async def test_dry_run_only_says_what_it_would_do(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    cache = two_tiers(tmp_path)
    obj = file(7, MIB)
    await put_below(cache, obj)
    used_later(cache, obj)
    await mover_of(cache, dry_run=True).round()
    assert level(cache, obj) == 1
    assert "would move" in caplog.text
    assert "tier1 to tier tier0" in caplog.text
    cache.store.close()


async def test_file_the_kernel_holds_is_unlinked_and_stays_whole(tmp_path):
    cache = two_tiers(tmp_path)
    obj = file(7, 3 * MIB)
    await put_below(cache, obj)
    fd = cache.store.backing_fd(obj)
    cache.store.kept(obj.ino)
    used_later(cache, obj)
    await mover_of(cache).round()
    assert level(cache, obj) == 0
    assert cache.evicted == [obj.ino], "the driver lets go when it can"
    assert os.pread(fd, MIB, 2 * MIB) == bytes(body(obj, 2))
    assert os.fstat(fd).st_nlink == 0
    assert cache.store.status()[1]["used"] >= 3 * MIB, "still counted"
    os.close(fd)
    cache.store.gone(obj.ino)
    assert cache.store.status()[1]["used"] == 0
    cache.store.close()


async def test_corrupt_block_is_dropped_not_moved(tmp_path):
    cache = two_tiers(tmp_path)
    obj = file(7, 3 * MIB)
    await put_below(cache, obj)
    (mirror,) = cache.files()
    with mirror.open("r+b") as damaged:
        damaged.seek(MIB + 17)
        damaged.write(b"damage")
    used_later(cache, obj)
    await mover_of(cache).round()
    assert level(cache, obj) == 1
    assert cache.store.missing(obj, 0, 3) == [(1, 2)]
    assert len(cache.files()) == 1
    cache.store.close()


async def test_moves_are_suspended_when_they_fail_and_resumed_by_a_probe(tmp_path, autojump_clock):
    system = FaultySystem(error=errno.EIO)
    cache = two_tiers(tmp_path, nvme=64, system=system)
    objects = [file(ino, MIB) for ino in range(7, 17)]
    for obj in objects:
        await put_below(cache, obj)
    system.broken = {"preadv"}
    mover = mover_of(cache, suspend_error_min=4, concurrency=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiercache.transfer.mover.log.warning", lambda *_: None)
        for obj in objects:
            used_later(cache, obj)
        await mover.round()
    assert mover.suspended
    assert mover.failures == 4, "no more were tried"
    assert {level(cache, obj) for obj in objects} == {1}
    assert len(cache.files()) == len(objects)
    system.broken = set()
    await trio.sleep(1)
    for obj in objects:
        used_later(cache, obj)
    await mover.round()
    assert not mover.suspended
    assert {level(cache, obj) for obj in objects} == {0}
    cache.store.close()


async def test_bandwidth_is_kept(tmp_path, autojump_clock):
    cache = two_tiers(tmp_path, nvme=64)
    objects = [file(ino, 4 * MIB) for ino in range(7, 12)]
    for obj in objects:
        await put_below(cache, obj)
        used_later(cache, obj)
    began = trio.current_time()
    await mover_of(cache, bandwidth=2 * MIB).round()
    assert {level(cache, obj) for obj in objects} == {0}
    assert trio.current_time() - began == pytest.approx(10, rel=0.05)
    cache.store.close()
