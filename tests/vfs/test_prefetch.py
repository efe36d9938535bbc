"""What a mount asks its origin for, and when: over a slow origin in simulated time."""

import random
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tiercache.errors import OriginThrottledError
from tiercache.prefetch.foresight import Foresight
from tiercache.prefetch.plan import Plan, PlanItem
from tiercache.prefetch.planner import Planner
from tiercache.testing.data import check
from tiercache.testing.faulty import SlowOrigin
from tiercache.transfer.fetch import Reason
from tiercache.types import BLOCK_SIZE, KIB, MIB


def gets(trees):
    return [c for c in memory(trees).calls if c.operation == "get_range"]


def memory(trees):
    return getattr(trees.origin, "inner", trees.origin)


def slow(trees, **how):
    trees.origin = SlowOrigin(trees.origin, **how)
    return trees.origin


async def settle():
    await trio.testing.wait_all_tasks_blocked(0.02)


async def test_d15_a_random_read_of_a_cold_object_fetches_its_block_only(trees):
    trees.origin.put_pattern(b"f", 1 << 30)
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        check(await tree.pread(ino, 777 * MIB + 64 * KIB, 64 * KIB), 777 * MIB + 64 * KIB)
        await settle()
    assert [(c.start, c.size) for c in gets(trees)] == [(777 * MIB, MIB)]


async def test_d15_random_reads_fetch_what_they_touch(trees):
    trees.origin.put_pattern(b"f", 1 << 30)
    chance, touched = random.Random(11), set()
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        for _ in range(200):
            offset = chance.randrange((1 << 30) - 64 * KIB)
            touched |= {offset // BLOCK_SIZE, (offset + 64 * KIB - 1) // BLOCK_SIZE}
            await tree.pread(ino, offset, 64 * KIB)
        await settle()
    assert sum(c.size for c in gets(trees)) <= 1.2 * len(touched) * BLOCK_SIZE


@pytest.mark.parametrize("order", [range(20), random.Random(1).sample(range(20), 20)])
async def test_e02_headers_and_tails_of_many_files_cost_a_block_each(trees, order):
    for i in range(20):
        trees.origin.put_pattern(b"%02d.parquet" % i, 100 * MIB)
    async with trees.open() as tree:
        for i in order:
            ino = await tree.open(b"%02d.parquet" % i)
            await tree.pread(ino, 0, 4 * KIB)
            await tree.pread(ino, 100 * MIB - 64 * KIB, 64 * KIB)
        await settle()
        counters = tree.stack.status()["counters"]
    assert sum(c.size for c in gets(trees)) == 20 * 2 * MIB
    assert len(gets(trees)) == 20 * 2
    assert counters["fetched_tail_bytes"] == 20 * MIB


async def test_a_tail_comes_along_with_the_first_block(trees):
    trees.origin.put_pattern(b"a.npz", 40 * MIB)
    async with trees.open() as tree:
        ino = await tree.open(b"a.npz")
        await tree.pread(ino, 0, 4 * KIB)
        await settle()
        asked = len(gets(trees))
        check(await tree.pread(ino, 40 * MIB - 22, 22), 40 * MIB - 22)
    assert asked == len(gets(trees)) == 2


async def test_e05_four_readers_of_one_file_fetch_it_once(trees):
    size = 48 * MIB
    trees.origin.put_pattern(b"f", size)
    slow(trees, latency_s=0.001)
    async with trees.open() as tree:
        ino = await tree.open(b"f")

        async def reader(lag):
            for _ in range(lag):
                await trio.sleep(0.002)
            for offset in range(0, size, 256 * KIB):
                check(await tree.pread(ino, offset, 256 * KIB), offset)

        async with trio.open_nursery() as nursery:
            for lag in (0, 10, 30, 60):
                nursery.start_soon(reader, lag)
        await settle()
    assert sum(c.size for c in gets(trees)) == size


async def test_e03_shuffled_readahead_of_the_kernel_reads_each_byte_once(trees):
    size, chance = 64 * MIB, random.Random(3)
    trees.origin.put_pattern(b"f", size)
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        for base in range(0, size, 2 * MIB):
            pieces = [base + i * 128 * KIB for i in range(16)]
            chance.shuffle(pieces)
            async with trio.open_nursery() as nursery:
                for offset in pieces:
                    nursery.start_soon(tree.pread, ino, offset, 128 * KIB)
        await settle()
        assert tree.stack.status()["counters"]["prefetch_wasted_bytes"] == 0
    assert sum(c.size for c in gets(trees)) == size
    assert len(gets(trees)) < 24  # parts, not pieces


async def test_e09_one_reader_is_served_by_several_connections(trees):
    size = 128 * MIB
    trees.origin.put_pattern(b"f", size)
    slow(trees, latency_s=0.02)
    most = 0
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        for offset in range(0, size, MIB):
            await tree.pread(ino, offset, MIB)
            most = max(most, tree.stack.fetcher.admission.connections_used)
    assert most >= 5


async def test_e08_small_files_in_listing_order_cost_one_get_each_and_come_ahead(trees):
    count = 300
    for i in range(count):
        trees.origin.put_pattern(b"d/%04d" % i, 100 * KIB, seed=i)
    slow(trees, latency_s=0.01)
    waited = 0
    async with trees.open() as tree:
        await tree.ls(b"d")
        for i in range(count):
            ino = await tree.open(b"d/%04d" % i)
            before = len(gets(trees))
            check(await tree.pread(ino, 0, 128 * KIB), seed=i)
            waited += len(gets(trees)) > before and gets(trees)[-1].key == b"d/%04d" % i
        assert tree.stack.status()["counters"]["prefetch_wasted_bytes"] == 0
    assert len(gets(trees)) == count
    assert memory(trees).count("head") == 0
    assert waited <= count // 10


async def test_e08_shuffled_files_are_not_fetched_ahead(trees):
    for i in range(200):
        trees.origin.put_pattern(b"d/%04d" % i, 10 * KIB, seed=i)
    order = random.Random(9).sample(range(200), 60)
    async with trees.open() as tree:
        for i in order:
            await tree.cat(b"d/%04d" % i)
        await settle()
    assert len(gets(trees)) <= 1.1 * len(order)


async def test_next_shard_begins_before_it_is_opened(trees):
    for i in range(8):
        trees.origin.put_pattern(b"s/%d.tar" % i, 12 * MIB, seed=i)
    async with trees.open() as tree:
        for i in range(5):
            await tree.cat(b"s/%d.tar" % i)
        await settle()
        assert any(c.key == b"s/5.tar" and c.start == 0 for c in gets(trees))
        assert tree.stack.status()["counters"]["fetched_next_bytes"] > 0


async def test_e07_many_streams_stay_within_memory_and_idle_ones_hold_nothing(trees):
    count, size = 40, 6 * MIB
    for i in range(count):
        trees.origin.put_pattern(b"%d" % i, size, seed=i)
    async with trees.open(capacity=MIB, transfer={"memory": 32 * MIB}) as tree:  # all bypass
        admission, peak = tree.stack.fetcher.admission, 0

        async def read(i):
            nonlocal peak
            ino = await tree.open(b"%d" % i)
            for offset in range(0, size - 2 * MIB, 256 * KIB):
                check(await tree.pread(ino, offset, 256 * KIB), offset, seed=i)
                peak = max(peak, admission.memory_used)

        async with trio.open_nursery() as nursery:
            for i in range(count):
                nursery.start_soon(read, i)
        await settle()
        assert peak <= 32 * MIB
        fetched = sum(c.size for c in gets(trees))
        assert fetched <= 1.1 * count * (size - MIB)
        assert (admission.connections_used, admission.waiting) == (0, 0)
        tree.stack.fetcher.release_idle()
        assert admission.memory_used == 0


async def test_e15_names_and_first_bytes_go_before_bulk(trees):
    trees.origin.put_pattern(b"big", 200 * MIB)
    trees.origin.put_pattern(b"d/f", 4 * KIB, seed=1)
    gate = slow(trees).hold("get_range")
    limits = {"connections": 8, "connections_min": 8, "connections_reserved": 2, "part": 8 * MIB}
    async with trees.open(transfer=limits) as tree:
        fetcher = tree.stack.fetcher
        big = tree.stack.namespace.inode(await tree.open(b"big"))
        fetcher.prefetch(big, 0, big.size, Reason.READAHEAD)
        await gate.arrived(6)
        await settle()
        assert fetcher.admission.waiting > 0
        small = await tree.open(b"d/f")  # two listings find a connection
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tree.pread, small, 0, 4 * KIB)
            await gate.arrived(7)  # and so does the reader
            gate.release()


async def test_adjacent_wants_that_queue_become_one_get(trees):
    trees.origin.put_pattern(b"f", 8 * MIB)
    trees.origin.put_pattern(b"g", MIB)
    origin = slow(trees)
    gate = origin.hold("get_range")
    async with trees.open(transfer={"connections": 1, "connections_reserved": 0}) as tree:
        f, g = await tree.open(b"f"), await tree.open(b"g")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tree.pread, g, 0, KIB)
            await gate.arrived()
            for block in range(6):
                nursery.start_soon(tree.pread, f, block * MIB, MIB)
                await trio.testing.wait_all_tasks_blocked()
            gate.release()
        await settle()
    starts = [(c.start, c.size) for c in gets(trees) if c.key == b"f"]
    assert sum(size for _, size in starts) == 8 * MIB
    assert len(starts) <= 3


async def test_e11_heads_and_lists_are_shared(trees):
    trees.origin.put(b"d/f", b"x")
    origin = slow(trees)
    gate = origin.hold("list")
    async with trees.open() as tree:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(tree.stack.requests.list, b"d/")
                nursery.start_soon(tree.stack.requests.head, b"d/f")
            await gate.arrived()
            gate.release()
        assert (tree.stack.requests.lists, tree.stack.requests.heads) == (1, 1)
    assert memory(trees).count("list") == 1
    assert memory(trees).count("head") == 1


async def test_throttling_lowers_the_number_of_connections(trees):
    trees.origin.put_pattern(b"f", 4 * MIB)
    async with trees.open() as tree:
        before = tree.stack.status()["concurrency"]
        tree.faults.fail("get_range", OriginThrottledError("503 SlowDown"), times=2)
        check(await tree.cat(b"f"))
        status = tree.stack.status()
    assert status["concurrency"] < before
    assert status["counters"]["origin_throttled"] == 2


@pytest.mark.parametrize("stop", [10, 40])
async def test_what_nobody_will_read_is_taken_back_while_it_queues(trees, stop):
    trees.origin.put_pattern(b"f", 400 * MIB)
    origin = slow(trees)
    async with trees.open(transfer={"connections": 2, "connections_reserved": 1}) as tree:
        ino = await tree.open(b"f")
        for offset in range(0, stop * MIB, MIB):
            await tree.pread(ino, offset, MIB)
        gate = origin.hold("get_range")
        tree.stack.prefetcher.forget(ino)
        await settle()
        assert tree.stack.fetcher.admission.waiting == 0
        gate.release()
        await settle()
        check(await tree.pread(ino, 300 * MIB, MIB), 300 * MIB)


@asynccontextmanager
async def planned(tree, items, window=4 * MIB):
    plan = Plan(items, window=window)
    parts = tree.stack.namespace, tree.stack.fetcher, tree.stack.store
    planner = Planner(plan, parts, Foresight())
    tree.stack.prefetcher.planner = planner
    async with trio.open_nursery() as nursery:
        nursery.start_soon(planner.run)
        yield plan
        nursery.cancel_scope.cancel()


async def test_k07_a_planned_shuffled_epoch_is_fetched_ahead_with_one_get_each(trees):
    count = 150
    names = [b"d%d/%03d.jpg" % (i % 3, i) for i in range(count)]
    for i, name in enumerate(names):
        trees.origin.put_pattern(name, 100 * KIB, seed=i)
    slow(trees, latency_s=0.01)
    order = random.Random(6).sample(range(count), count)
    async with trees.open() as tree, planned(tree, [PlanItem(names[i]) for i in order]) as plan:
        await settle()
        ahead = {c.key for c in gets(trees)}
        assert {names[i] for i in order[:40]} <= ahead
        assert len(ahead) <= 4 * MIB // (100 * KIB) + 2  # just in time: a window, no more
        for i in order:
            check(await tree.cat(names[i]), seed=i)
            await trio.lowlevel.checkpoint()  # what is resident is read without one
        counters = tree.stack.status()["counters"]
        assert plan.done
    assert counters["fetched_demand_bytes"] == 0
    assert len(gets(trees)) == count
    assert memory(trees).count("list") == 4  # the root and each folder, once


async def test_plans_of_ranges_move_with_the_reads(trees):
    trees.origin.put_pattern(b"tokens", 256 * MIB)
    blocks = random.Random(5).sample(range(256), 256)
    items = [PlanItem(b"tokens", b * MIB, (b + 1) * MIB) for b in blocks]
    async with trees.open() as tree, planned(tree, items, window=16 * MIB) as plan:
        ino = await tree.open(b"tokens")
        for block in blocks[:60]:
            check(await tree.pread(ino, block * MIB, 64 * KIB), block * MIB)
            await trio.testing.wait_all_tasks_blocked()
        assert plan.position == 60
        await settle()
    assert sum(c.size for c in gets(trees)) <= (60 + 17) * MIB


async def test_what_a_plan_needs_soonest_is_spread_over_many_requests(trees):
    trees.origin.put_pattern(b"shard", 250 * MIB)
    gate = slow(trees).hold("get_range")
    async with trees.open() as tree, planned(tree, [PlanItem(b"shard")], window=250 * MIB):
        share = 2 * tree.stack.fetcher.concurrency
        await gate.arrived(12)
        gate.release()
        await settle()
    asked = sorted((c.start, c.size) for c in gets(trees))
    assert [size for _, size in asked[:share]] == [2 * MIB] * share
    assert all(size <= max(2 * MIB, start // share) for start, size in asked)
    assert max(size for _, size in asked) == 3 * MIB
    assert sum(size for _, size in asked) == 250 * MIB


async def test_what_a_plan_foresees_is_no_stream(trees):
    """Long pieces in any order: a guess at what follows each would get ahead of what is due."""
    trees.origin.put_pattern(b"tokens", 256 * MIB)
    starts = [place * 8 * MIB for place in random.Random(5).sample(range(32), 32)]
    items = [PlanItem(b"tokens", start, start + 8 * MIB) for start in starts]
    async with trees.open() as tree, planned(tree, items, window=24 * MIB) as plan:
        ino = await tree.open(b"tokens")
        for start in starts:
            await settle()
            for offset in range(start, start + 8 * MIB, MIB):
                check(await tree.pread(ino, offset, MIB), offset)
        counters = tree.stack.status()["counters"]
        assert plan.done
    assert counters["fetched_plan_bytes"] == 256 * MIB == sum(c.size for c in gets(trees))
    assert counters["prefetch_wasted_bytes"] == 0


async def test_paths_that_are_not_there_do_not_stop_a_plan(trees):
    trees.origin.put_pattern(b"a", KIB)
    trees.origin.put_pattern(b"b", KIB)
    items = [PlanItem(p) for p in (b"a", b"gone", b"a/x", b"no/dir", b"b", b"..", b"x//y")]
    async with trees.open() as tree, planned(tree, items) as plan:
        await settle()
        assert [c.key for c in gets(trees)] == [b"a", b"b"]
        assert plan.unknown_paths == [b"gone", b"a/x", b"no/dir", b"..", b"x//y"]
        await tree.cat(b"a")
        await tree.cat(b"b")
        assert plan.done


async def test_an_idle_mount_gives_its_buffers_back(trees, monkeypatch):
    monkeypatch.setattr("tiercache.transfer.landing.IDLE_S", 0.05)
    trees.origin.put_pattern(b"f", 20 * MIB)
    async with trees.open(capacity=MIB) as tree:  # bypass: bodies stay in memory
        ino = await tree.open(b"f")
        for offset in range(0, 10 * MIB, MIB):
            await tree.pread(ino, offset, MIB)
        assert tree.stack.fetcher.admission.memory_used > 0
        with trio.fail_after(10):
            while tree.stack.fetcher.admission.memory_used:  # noqa: ASYNC110 - no event says so
                await trio.sleep(0.02)
        check(await tree.pread(ino, 5 * MIB, MIB), 5 * MIB)
