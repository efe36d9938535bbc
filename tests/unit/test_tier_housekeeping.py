"""What the tiers do in the background, and how they find their way after a loss."""

import os
from dataclasses import replace

import pytest
import trio

from tiercache.testing.tiers import Cache, FaultySystem, MemoryKeyValues, body, file
from tiercache.tier.sidecar import decode
from tiercache.tier.store import Limits
from tiercache.types import BLOCK_SIZE, MIB

QUICK = Limits(flush_interval_s=0.01, probe_min_s=0.01, usage_interval_s=0.02)


async def until(condition):
    """Let the background work until *condition* holds."""
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - the store announces nothing
            await trio.sleep(0.005)


async def run_until(cache, condition):
    """Run the background of the store until *condition* holds."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        await until(condition)
        nursery.cancel_scope.cancel()


@pytest.fixture
def cache(tmp_path):
    cache = Cache(tmp_path, limits=QUICK)
    yield cache
    cache.store.close()


async def fill(cache, objects):
    """Cache *objects* with their sidecars, as a running daemon does."""
    for obj in objects:
        assert cache.put(obj)
    await run_until(cache, lambda: len(cache.files(".meta")) == len(objects))


async def test_changes_reach_the_catalog_without_being_asked(cache):
    cache.put(file(7, MIB))
    assert not [key for key in cache.kv.pairs if key.startswith(b"Th")]
    await run_until(cache, lambda: any(key.startswith(b"Th") for key in cache.kv.pairs))


async def test_a_burst_is_one_batch(cache):
    batches = []
    write = cache.kv.put_many
    cache.kv.put_many = lambda items: batches.append(1) or write(items)
    for ino in range(7, 107):
        cache.put(file(ino, 1000))
    cache.store.flush()
    cache.store.flush()
    assert batches == [1]


async def test_complete_object_gets_a_sidecar(cache):
    whole, part = file(7, 2 * MIB), file(8, 2 * MIB)
    cache.put(part, 0, 1)
    await fill(cache, [whole])
    (path,) = cache.files(".meta")
    sidecar = decode(path.read_bytes())
    assert sidecar.describes(whole)
    assert cache.files(".tmp") == []


async def test_missing_sidecar_is_written_on_the_next_use(cache):
    obj = file(7, 2 * MIB)
    cache.put(obj)
    cache.restart()
    assert cache.store.complete(obj)
    await run_until(cache, lambda: cache.files(".meta"))
    cache.restart()
    assert cache.files(".meta")


async def test_lost_catalog_finds_the_cache_warm(cache):
    objects = [file(ino, size) for ino, size in ((7, 1000), (8, MIB), (9, 3 * MIB + 1))]
    await fill(cache, objects)
    cache.store.close()
    used = cache.used
    cache.kv = MemoryKeyValues()
    cache.open(adopt=True)
    assert used <= cache.used <= used + 256 * 4096
    again = [file(obj.ino + 100, obj.size, key=obj.key) for obj in objects]
    for obj in again:
        assert cache.store.adopt(obj)
        assert cache.store.complete(obj)
        assert not cache.get_now(obj, 0, 1), "nothing is trusted before it is verified"
        out = memoryview(bytearray(obj.size))
        assert await cache.store.read(obj, 0, out)
        original = objects[again.index(obj)]
        assert b"".join(body(original, b) for b in range(obj.blocks)) == out
    await run_until(cache, lambda: cache.store.status()[0]["objects"] == 3)
    cache.restart()
    assert all(cache.store.complete(obj) for obj in again)


@pytest.mark.parametrize("wrong", ["etag", "size", "torn", "flipped", "no-data", "short-data"])
async def test_sidecar_that_does_not_fit_is_not_believed(cache, wrong):
    obj = file(7, 2 * MIB)
    await fill(cache, [obj])
    cache.store.close()
    (meta,), (data,) = cache.files(".meta"), cache.files()
    content = meta.read_bytes()
    if wrong == "torn":
        meta.write_bytes(content[:-20])
    elif wrong == "flipped":
        meta.write_bytes(content[:30] + bytes([content[30] ^ 4]) + content[31:])
    elif wrong == "no-data":
        data.unlink()
    elif wrong == "short-data":
        os.truncate(data, MIB)
    asked = file(
        7, obj.size + (wrong == "size"), key=obj.key, etag="v2" if wrong == "etag" else "v1"
    )
    cache.kv = MemoryKeyValues()
    cache.open(adopt=True)
    assert not cache.store.adopt(asked)
    assert cache.store.missing(asked, 0, 2) == [(0, 2)]
    assert cache.put(asked)
    assert await cache.get(asked)


async def test_adoption_is_not_tried_while_the_catalog_is_good(tmp_path):
    system = FaultySystem()
    cache = Cache(tmp_path, system=system)
    cache.restart()
    before = system.calls
    assert not cache.store.has(file(7, 1000), 0)
    assert system.calls == before
    cache.store.close()


async def test_orphans_are_swept_after_an_unclean_stop(cache):
    kept, orphan = file(7, 2 * MIB), file(8, 2 * MIB)
    cache.put(kept)
    cache.store.flush()
    cache.put(orphan)
    (trash := cache.files()[0].parents[1] / "trash-1-1").write_bytes(b"x" * 5000)
    cache.crash()
    late = file(9, MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        cache.put(late)
        await until(lambda: len(cache.files()) == 2 and not trash.exists())
        await until(lambda: any(key.startswith(b"Th") for key in cache.kv.pairs))
        nursery.cancel_scope.cancel()
    assert await cache.get(kept)
    assert await cache.get(late)
    assert cache.on_disk() <= cache.used


async def test_unclaimed_files_are_kept_until_their_room_is_needed(tmp_path):
    cache = Cache(tmp_path, limits=QUICK, capacity=8 * MIB)
    await fill(cache, [file(ino, 2 * MIB) for ino in (7, 8, 9)])
    cache.store.close()
    cache.kv = MemoryKeyValues()
    cache.open(adopt=True)
    new = file(20, 4 * MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        assert cache.store.reserve(new, 0, 4) is None
        await until(lambda: cache.put(new))
        nursery.cancel_scope.cancel()
    assert cache.on_disk() <= cache.used <= 8 * MIB
    assert await cache.get(new)
    cache.store.close()


async def test_other_origins_count_and_make_room_oldest_first(tmp_path):
    for origin, stamp in (("s3://old", 1000), ("s3://new", 2000)):
        other = Cache(tmp_path, identity=origin, capacity=16 * MIB)
        assert other.put(file(7, 5 * MIB))
        other.store.close()
        (usage,) = [
            usage
            for usage in tmp_path.glob("*/*/usage")
            if usage.parent == other.store.tiers[0].places[0].home
        ]
        os.utime(usage, (stamp, stamp))
    cache = Cache(tmp_path, capacity=16 * MIB, limits=QUICK)
    assert cache.used >= 10 * MIB
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        assert cache.put(file(7, 5 * MIB))
        assert cache.store.reserve(file(8, 5 * MIB), 0, 5) is None
        await until(lambda: cache.put(file(8, 5 * MIB)))
        nursery.cancel_scope.cancel()
    left = {path.name for path in (tmp_path / "tier0-0").iterdir()}
    assert len(left) == 2, "the newer of the others is still there"
    assert cache.used <= 16 * MIB
    cache.store.close()


async def test_background_verification_leads_to_passthrough(cache):
    obj = file(7, 20 * MIB)
    await fill(cache, [obj])
    cache.restart(boot="boot-2")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        assert cache.store.backing_fd(obj) is None
        assert cache.store.backing_fd(obj) is None
        await until(lambda: cache.backing_matches(obj))
        nursery.cancel_scope.cancel()


@pytest.mark.allow_warnings
async def test_background_verification_drops_what_is_corrupt(cache):
    obj = file(7, 3 * MIB)
    await fill(cache, [obj])
    cache.store.close()
    fd = os.open(cache.files()[0], os.O_RDWR)
    os.pwrite(fd, b"wrong", BLOCK_SIZE + 1)
    os.close(fd)
    cache.open()
    assert cache.store.backing_fd(obj) is None
    await run_until(cache, lambda: cache.store.missing(obj, 0, 3) == [(1, 2)])
    assert cache.store.backing_fd(obj) is None


async def test_large_files_are_unlinked_by_a_thread_and_counted_until_then(tmp_path):
    cache = Cache(tmp_path, limits=replace(QUICK, unlink_inline=MIB))
    obj = file(7, 8 * MIB)
    cache.put(obj)
    cache.store.evict(obj.ino)
    assert cache.files() == []
    assert cache.used >= 8 * MIB
    assert cache.put(obj), "the name is free at once"
    await run_until(cache, lambda: cache.used < 9 * MIB)
    assert await cache.get(obj)
    cache.store.close()


async def test_policy_knows_the_residents_of_the_process_before(tmp_path):
    cache = Cache(tmp_path, limits=QUICK, policy="lru", capacity=4 * MIB)
    for ino in range(7, 10):
        cache.put(file(ino, MIB))
    cache.restart()
    new = file(20, 2 * MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        await until(lambda: cache.put(new))
        nursery.cancel_scope.cancel()
    assert cache.store.status()[0]["evictions"] > 0
    assert cache.on_disk() <= 4 * MIB
    cache.store.close()


async def test_room_is_kept_ahead_of_need_where_the_policy_evicts(tmp_path):
    cache = Cache(
        tmp_path,
        limits=replace(QUICK, headroom_fraction=0.5),
        policy="lru",
        capacity=8 * MIB,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        for ino in range(7, 14):
            cache.put(file(ino, MIB))
        await until(lambda: cache.used <= 4 * MIB)
        nursery.cancel_scope.cancel()
    assert cache.evicted[0] == 7
    cache.store.close()


def test_victim_being_written_is_spared(tmp_path):
    cache = Cache(tmp_path, policy="lru", capacity=4 * MIB)
    busy, idle = file(7, 2 * MIB), file(8, MIB)
    reservation = cache.store.reserve(busy, 0, 2)
    reservation.write(0, body(busy, 0))
    reservation.commit()
    cache.put(idle)
    assert cache.put(file(9, MIB))
    assert cache.evicted == [idle.ino]
    reservation.close()
    cache.store.close()


def test_cold_tier_takes_what_the_hot_one_has_no_room_for(tmp_path):
    cache = Cache(tmp_path, (1, 1), capacity=3 * MIB)
    assert cache.put(file(7, 2 * MIB))
    assert cache.put(file(8, 2 * MIB))
    hot, cold = cache.store.status()
    assert (hot["objects"], cold["objects"]) == (1, 1)
    assert not cache.put(file(9, 2 * MIB))
    cache.store.close()


async def test_records_in_memory_are_bounded(tmp_path):
    cache = Cache(tmp_path, limits=replace(QUICK, objects=10, fds=4))
    objects = [file(ino, 1000) for ino in range(7, 107)]
    await fill(cache, objects)
    cache.store.flush()
    for obj in objects + objects:
        assert cache.store.complete(obj)
    assert len(cache.store._table) <= 11
    assert len(cache.store._files) <= 4
    cache.store.close()


def test_f04_opening_costs_the_same_however_much_is_there(tmp_path):
    system = FaultySystem()
    cache = Cache(tmp_path, system=system)

    def cost_of_opening():
        before = system.calls
        cache.crash()
        return system.calls - before

    cache.put(file(7, 1000))
    cache.store.flush()
    little = cost_of_opening()
    for ino in range(10, 210):
        cache.put(file(ino, 1000))
    cache.store.flush()
    assert cost_of_opening() == little
    assert cache.store.status()[0]["objects"] == 201
    cache.store.close()


async def test_run_ends_when_cancelled_and_close_leaves_all_in_order(cache):
    cache.put(file(7, MIB))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    cache.restart()
    assert cache.store.complete(file(7, MIB))
