import inspect
import random

import pytest
import trio
import trio.testing

from tiercache.errors import (
    IsDirectoryError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
    OriginUnavailableError,
)
from tiercache.testing.data import check, pattern
from tiercache.testing.faulty import SlowOrigin
from tiercache.types import BLOCK_SIZE, MIB

SIZES = [0, 1, 4095, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 7 * BLOCK_SIZE // 2, 21 * MIB + 5]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [1000, 128 << 10, MIB])
async def test_every_size_cold_and_warm(trees, size, step):
    if step < 4096 and size > 4 * MIB:
        pytest.skip("as many requests as that show nothing new")
    trees.origin.put_pattern(b"f", size, seed=3)
    async with trees.open() as tree:
        for _ in range(2):
            data = await tree.read(await tree.open(b"f"), step)
            assert len(data) == size
            check(data, seed=3)
        got = sum(call.size for call in trees.origin.calls if call.operation == "get_range")
        assert got == size


async def test_a_small_file_costs_one_listing_and_one_get(trees):
    trees.origin.put_pattern(b"d/f", 110_000)
    async with trees.open() as tree:
        check(await tree.cat(b"d/f"))
        assert trees.origin.count("get_range") == 1
        assert trees.origin.count("head") == 0
        assert trees.origin.count("list") == 2  # the root and d/


async def test_warm_after_a_restart_without_a_request(trees):
    trees.origin.put_pattern(b"f", 3 * MIB + 7)
    async with trees.open() as tree:
        await tree.cat(b"f")
    trees.origin.calls.clear()
    async with trees.open() as tree:
        check(await tree.cat(b"f"))
        assert not trees.origin.calls


async def test_a_sequential_read_is_fetched_ahead_in_parts(trees):
    trees.origin.put_pattern(b"f", 100 * MIB)
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        for offset in range(0, 100 * MIB, MIB):
            check(await tree.pread(ino, offset, MIB), offset)
        gets = [call.size for call in trees.origin.calls if call.operation == "get_range"]
        assert sum(gets) == 100 * MIB
        assert max(gets) == 8 * MIB and len(gets) < 40


async def test_e03_reads_count_in_the_order_of_arrival_whatever_runs_first(trees):
    size = 160 * MIB
    trees.origin.put_pattern(b"f", size)
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        for base in range(0, size, 16 * MIB):
            arrived = []
            for offset in range(base, base + 16 * MIB, MIB):
                answer = tree.fs.read(ino, offset, MIB)
                if inspect.isawaitable(answer):
                    arrived.append((offset, answer))
                else:
                    check(bytes(answer), offset)
            for offset, answer in reversed(arrived):
                check(bytes(await answer), offset)
        assert tree.stack.status()["counters"]["prefetch_wasted_bytes"] == 0
    assert sum(c.size for c in trees.origin.calls if c.operation == "get_range") == size


async def test_e11_many_readers_share_one_get(trees):
    trees.origin.put_pattern(b"f", 110_000)
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        async with trio.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(tree.pread, ino, 0, 110_000)
        assert trees.origin.count("get_range") == 1


async def test_e11_a_cancelled_leader_does_not_strand_the_others(trees):
    trees.origin.put_pattern(b"f", 110_000)
    slow = SlowOrigin(trees.origin)
    gate = slow.hold("get_range")
    inner, trees.origin = trees.origin, slow
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        results = []

        async def follow():
            results.append(await tree.pread(ino, 0, 110_000))

        leader = trio.CancelScope()

        async def lead():
            with leader:
                await tree.pread(ino, 0, 110_000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lead)
            await gate.arrived()
            nursery.start_soon(follow)
            leader.cancel()
            gate.release()
        assert leader.cancelled_caught
        check(results[0])
    assert inner.count("get_range") == 1


async def test_a_reader_waits_only_for_its_own_bytes(trees):
    trees.origin.put_pattern(b"f", 8 * MIB)
    slow = SlowOrigin(trees.origin)
    trees.origin = slow
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        gate = slow.hold("get_range", after_bytes=300_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tree.pread, ino, 0, MIB)
            await gate.arrived()
            check(await tree.pread(ino, 4096, 200_000), 4096)  # while the rest is held back
            gate.release()


async def test_a_dataset_larger_than_the_tier_streams_through_each_byte_once(trees):
    trees.origin.put_pattern(b"a", 4 * MIB)
    trees.origin.put_pattern(b"b", 20 * MIB, seed=1)
    async with trees.open(capacity=5 * MIB) as tree:
        check(await tree.cat(b"a"))
        trees.origin.calls.clear()
        check(await tree.cat(b"b"), seed=1)
        assert sum(c.size for c in trees.origin.calls if c.operation == "get_range") == 20 * MIB


async def test_memory_in_use_returns_to_zero_and_never_exceeds_the_budget(trees):
    for i in range(6):
        trees.origin.put_pattern(b"%d" % i, 24 * MIB, seed=i)
    async with trees.open(transfer={"memory": 32 * MIB}) as tree:
        admission = tree.stack.fetcher.admission

        async def read(i):
            ino = await tree.open(b"%d" % i)
            for offset in range(0, 24 * MIB, MIB):
                check(await tree.pread(ino, offset, MIB), offset, seed=i)
                assert admission.memory_used <= 32 * MIB

        async with trio.open_nursery() as nursery:
            for i in range(6):
                nursery.start_soon(read, i)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (admission.connections_used, admission.waiting) == (0, 0)
        assert admission.memory_used == 0


async def test_a_transient_fault_is_invisible(trees):
    trees.origin.put_pattern(b"f", 5 * MIB)
    async with trees.open() as tree:
        tree.faults.fail("get_range", OriginUnavailableError("503"), times=2, after_bytes=100_000)
        check(await tree.cat(b"f"))


@pytest.mark.allow_warnings
async def test_a_lasting_fault_is_eio_and_heals(trees):
    trees.origin.put_pattern(b"f", MIB)
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        tree.faults.fail("get_range", OriginUnavailableError("503"), times=None)
        with pytest.raises(OriginUnavailableError):
            await tree.pread(ino, 0, 4096)
        tree.faults.heal()
        check(await tree.pread(ino, 0, 4096))


async def test_a01_overwritten_under_an_open_handle(trees):
    trees.origin.put_pattern(b"f", 16 * MIB, seed=1)
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        check(await tree.pread(ino, 0, MIB), 0, seed=1)
        for size, seed in ((16 * MIB, 2), (3 * MIB, 3), (40 * MIB, 4)):
            trees.origin.put_pattern(b"f", size, seed=seed)
            check(await tree.pread(ino, 0, MIB), 0, seed=1)  # cached blocks stay readable
            with pytest.raises(ObjectChangedError):
                await tree.pread(ino, 15 * MIB, 4096)
            tree.clock.now += 61
            fresh = await tree.cat(b"f")
            assert len(fresh) == size
            check(fresh, seed=seed)


async def test_a02_a_new_open_sees_the_new_version_whatever_the_ttl(trees):
    trees.origin.put_pattern(b"f", 10, seed=1)
    async with trees.open(metadata_ttl_s=3600.0) as tree:
        stale = await tree.ino(b"f")
        trees.origin.put_pattern(b"f", 100, seed=2)
        with pytest.raises(ObjectChangedError):
            await tree.read(stale)
        assert tree.invalidated == [(1, b"f")]
        with pytest.raises(ObjectChangedError):  # the kernel then looks up again by itself
            tree.fs.open(stale)
        for _ in range(3):
            data = await tree.cat(b"f")
            assert len(data) == 100
            check(data, seed=2)


async def test_a01_a_version_that_comes_back_can_be_opened(trees):
    """Rolled back: the inode known to be gone is named again, and is no longer gone."""
    trees.origin.put_pattern(b"f", 3 * MIB, seed=1)
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        await tree.pread(ino, 0, 4096)
        trees.origin.put_pattern(b"f", 3 * MIB, seed=2)
        with pytest.raises(ObjectChangedError):
            await tree.read(ino)
        check(await tree.cat(b"f"), seed=2)
        trees.origin.put_pattern(b"f", 3 * MIB, seed=1)
        tree.clock.now += 61
        check(await tree.cat(b"f"), seed=1)


async def test_a03_deleted_under_a_long_ttl(trees):
    trees.origin.put_pattern(b"f", 3 * MIB)
    trees.origin.put_pattern(b"g", 3)
    async with trees.open(metadata_ttl_s=3600.0) as tree:
        ino = await tree.open(b"f")
        await tree.pread(ino, 0, 4096)
        trees.origin.delete(b"f")
        with pytest.raises(ObjectNotFoundError):
            await tree.read(ino)
        assert (await tree.entry(b"f")).inode is None
        assert await tree.ls() == [b"g"]


async def test_a04_same_size_same_second_is_noticed(trees):
    trees.origin.put(b"f", b"11111111", mtime_ns=10**18)
    async with trees.open() as tree:
        assert await tree.cat(b"f") == b"11111111"
        trees.origin.put(b"f", b"22222222", mtime_ns=10**18)
        tree.clock.now += 61
        assert await tree.cat(b"f") == b"22222222"


async def test_a06_old_and_new_version_have_inodes_of_their_own(trees):
    trees.origin.put_pattern(b"f", MIB, seed=1)
    async with trees.open() as tree:
        old = await tree.open(b"f")
        check(await tree.pread(old, 0, 4096), seed=1)
        trees.origin.put_pattern(b"f", MIB, seed=2)
        tree.clock.now += 61
        new = await tree.open(b"f")
        assert new != old
        check(await tree.read(new), seed=2)
        check(await tree.read(old), seed=1)


async def test_going_back_to_an_older_version_reuses_its_cache(trees):
    trees.origin.put_pattern(b"f", MIB, seed=1)
    async with trees.open() as tree:
        first = await tree.open(b"f")
        await tree.read(first)
        trees.origin.put_pattern(b"f", MIB, seed=2)
        tree.clock.now += 61
        await tree.cat(b"f")
        trees.origin.put_pattern(b"f", MIB, seed=1)
        tree.clock.now += 61
        trees.origin.calls.clear()
        assert await tree.open(b"f") == first
        check(await tree.read(first), seed=1)
        assert trees.origin.count("get_range") == 0


@pytest.mark.allow_warnings
async def test_a08_unreachable_origin_serves_the_cache_and_is_never_absence(trees):
    trees.origin.put_pattern(b"f", 2 * MIB)
    trees.origin.put_pattern(b"g", 10)
    async with trees.open() as tree:
        await tree.cat(b"f")
        tree.clock.now += 3600
        for operation in ("list", "head", "get_range"):
            tree.faults.fail(operation, OriginUnavailableError("down"), times=None)
        data = await tree.cat(b"f")
        assert len(data) == 2 * MIB
        check(data)
        assert await tree.ls() == [b"f", b"g"]


@pytest.mark.allow_warnings
async def test_g01_throttling_is_never_enoent(trees):
    trees.origin.put_pattern(b"f", 10)
    async with trees.open() as tree:
        tree.faults.fail("list", OriginUnavailableError("503"), times=None)
        with pytest.raises(OriginUnavailableError):
            await tree.entry(b"f")
        tree.faults.heal()
        assert (await tree.entry(b"f")).inode is not None


async def test_d10_offsets_beyond_32_bits(trees):
    size = 5 << 40
    trees.origin.put_pattern(b"f", size, seed=5)
    places = [(1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 5 << 30, size - 1]
    async with trees.open() as tree:
        entry = await tree.entry(b"f")
        assert entry.inode.size == size
        ino = await tree.open(b"f")
        for _ in range(2):
            for place in places:
                data = await tree.pread(ino, place, 4096)
                assert len(data) == min(4096, size - place)
                check(data, place, seed=5)
        assert await tree.pread(ino, size, 10) == b""


async def test_d11_reads_at_and_past_the_end_ask_nothing(trees):
    trees.origin.put(b"empty", b"")
    trees.origin.put_pattern(b"k", 2 * BLOCK_SIZE)
    async with trees.open() as tree:
        empty, k = await tree.open(b"empty"), await tree.open(b"k")
        for ino, offset in ((empty, 0), (empty, 100), (k, 2 * BLOCK_SIZE), (k, 1 << 40)):
            assert await tree.pread(ino, offset, 4096) == b""
        assert trees.origin.count("get_range") == 0


async def test_archived_objects_are_listed_but_refused(trees):
    trees.origin.put(b"cold", b"x", archived=True)
    async with trees.open() as tree:
        assert await tree.ls() == [b"cold"]
        with pytest.raises(ObjectArchivedError):
            await tree.open(b"cold")
        assert trees.origin.count("get_range") == 0


async def test_a_directory_is_not_read(trees):
    trees.origin.put(b"d/f", b"x")
    async with trees.open() as tree:
        with pytest.raises(IsDirectoryError):
            await tree.open(b"d")


async def test_d16_parallel_random_reads_never_mix(trees):
    sizes = [BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 7 * BLOCK_SIZE // 2]
    for i in range(12):
        trees.origin.put_pattern(b"%d" % i, sizes[i % 4], seed=i)
    async with trees.open(capacity=12 * MIB, policy="lru") as tree:

        async def reader(seed):
            chance = random.Random(seed)
            for _ in range(60):
                i = chance.randrange(12)
                ino = await tree.open(b"%d" % i)
                offset = chance.randrange(sizes[i % 4])
                data = await tree.pread(ino, offset, chance.choice([1, 4096, 300_000, MIB]))
                check(data, offset, seed=i)
                if chance.random() < 0.1:
                    tree.stack.store.evict(ino)

        async with trio.open_nursery() as nursery:
            for seed in range(16):
                nursery.start_soon(reader, seed)


def test_pattern_tells_versions_apart():
    assert pattern(0, 64, 1) != pattern(0, 64, 2)
