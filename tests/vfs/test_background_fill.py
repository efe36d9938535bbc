"""The rest of a dataset that is being read, fetched into free space: over a memory origin."""

import pytest
import trio
import trio.testing

from tiercache.config import PrefetchConfig
from tiercache.errors import OriginUnavailableError
from tiercache.prefetch import activity, background
from tiercache.testing.data import check
from tiercache.testing.faulty import SlowOrigin
from tiercache.transfer.fetch import Reason
from tiercache.types import KIB, MIB

ON = {"background_fill": True, "files_ahead": 0}
READ = activity.PROOF_OPENS


def keys(trees):
    origin = getattr(trees.origin, "inner", trees.origin)
    return [call.key for call in origin.calls if call.operation == "get_range"]


def files(trees, count, size=64 * KIB, form=b"a/b/%03d"):
    for i in range(count):
        trees.origin.put_pattern(form % i, size, seed=i)


async def read(tree, count=READ, form=b"a/b/%03d", first=0):
    for i in range(first, first + count):
        check(await tree.cat(form % i), seed=i)


async def ended(tree):
    """Why the fill ended, once it did."""
    with trio.fail_after(20):
        while (last := tree.stack.background.status()["last"]) is None:  # noqa: ASYNC110
            await trio.sleep(0.01)
    return last


async def test_the_rest_of_a_dataset_comes_without_being_read(trees):
    files(trees, 50)
    files(trees, 5, form=b"a/b/deep/er/%d")
    files(trees, 5, form=b"a/other/%d")
    files(trees, 5, form=b"a/%d")
    trees.origin.put_pattern(b"a/b/large", 20 * MIB + 5, seed=7)
    async with trees.open(prefetch=ON) as tree:
        await read(tree)
        assert await ended(tree) == {"dataset": "a/b", "ended": "nothing is left to fetch"}
        counters = tree.stack.status()["counters"]
        asked = len(keys(trees))
        await read(tree, 50)
        await read(tree, 5, form=b"a/b/deep/er/%d")
        check(await tree.cat(b"a/b/large"), seed=7)
    assert len(keys(trees)) == asked
    assert all(key.startswith(b"a/b/") for key in keys(trees))
    assert counters["fetched_demand_bytes"] == READ * 64 * KIB
    assert counters["fetched_fill_bytes"] == 47 * 64 * KIB + 20 * MIB + 5


@pytest.mark.parametrize("form", [b"%d", b"a/%d"])
async def test_files_of_a_directory_above_the_depth_are_a_dataset_without_what_is_below(
    trees, form
):
    files(trees, 20, form=form)
    files(trees, 5, form=b"x/y/%d")
    files(trees, 5, form=b"a/y/%d")
    async with trees.open(prefetch=ON) as tree:
        await read(tree, form=form)
        await ended(tree)
    assert set(keys(trees)) == {form % i for i in range(20)}


async def test_off_is_the_default(trees):
    files(trees, 30)
    async with trees.open(prefetch={"files_ahead": 0}) as tree:
        await read(tree, 2 * READ)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert tree.stack.background.status()["dataset"] is None
    assert len(keys(trees)) == 2 * READ


@pytest.mark.parametrize("policy", ["lru", "pin", "adaptive"])
async def test_a_small_tier_is_filled_and_nobody_leaves(trees, policy):
    files(trees, 20, form=b"old/set/%03d")
    files(trees, 200)
    capacity = 8 * MIB
    async with trees.open(capacity=capacity, policy=policy, prefetch=ON) as tree:
        await read(tree, 7, form=b"old/set/%03d")
        await read(tree)
        assert await ended(tree) == {"dataset": "a/b", "ended": "no tier has room"}
        await trio.sleep(2 * tree.stack.store._around.limits.flush_interval_s)
        tier = tree.stack.status()["tiers"][0]
        asked = len(keys(trees))
        await read(tree, 7, form=b"old/set/%03d")
        await read(tree)
    assert tier["evictions"] == 0
    assert 0.85 * capacity < tier["used"] <= 0.95 * capacity  # the high-water mark
    assert len(keys(trees)) == asked


async def test_a_full_tier_is_left_alone(trees):
    files(trees, 40, form=b"old/set/%03d")
    files(trees, 40)
    async with trees.open(capacity=2 * MIB, policy="pin", prefetch=ON) as tree:
        await read(tree, 7, form=b"old/set/%03d")
        ino = await tree.open(b"old/set/030")
        await tree.read(ino)
        assert (await ended(tree))["dataset"] == "old/set"
        before = tree.stack.fetcher.fetched[Reason.FILL]
        await read(tree, 20)
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert tree.stack.background.status()["last"]["dataset"] == "a/b"
        assert tree.stack.fetcher.fetched[Reason.FILL] == before


async def test_what_others_wait_for_goes_first(trees):
    files(trees, 40, MIB)
    trees.origin.put_pattern(b"x/y/f", 8 * MIB)
    slow = trees.origin = SlowOrigin(trees.origin)
    limits = {"connections": 1, "connections_min": 1, "connections_reserved": 0}
    async with trees.open(prefetch=ON, transfer=limits) as tree:
        await read(tree, READ - 1)
        other = tree.stack.namespace.inode(await tree.ino(b"x/y/f"))
        proof = await tree.ino(b"a/b/%03d" % (READ - 1))
        gate = slow.hold("get_range")
        async with trio.open_nursery() as nursery:
            tree.fs.opened(proof)
            nursery.start_soon(tree.read, proof)
            await gate.arrived()
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert tree.stack.background.status()["dataset"] == "a/b"
            assert tree.stack.fetcher.admission.waiting > 0
            asked = len(keys(trees))
            tree.stack.fetcher.prefetch(other, 0, 8 * MIB, Reason.READAHEAD)
            gate.release()
            await ended(tree)
        held, sent, *rest = keys(trees)[asked:]
    assert held.startswith(b"a/b/")
    assert sent == b"x/y/f"
    assert len(rest) >= 30


@pytest.mark.allow_warnings
async def test_an_origin_that_does_not_answer_ends_it(trees):
    files(trees, 40)
    async with trees.open(prefetch=ON, transfer={"attempts": 1}) as tree:
        await read(tree, READ - 1)
        ino = await tree.ino(b"a/b/%03d" % (READ - 1))
        check(await tree.cat(b"a/b/000"))
        tree.faults.fail("get_range", OriginUnavailableError("down"), times=1000)
        tree.fs.opened(ino)
        assert (await ended(tree))["ended"] == "the origin does not answer"


async def test_who_is_no_longer_read_is_no_longer_filled(trees, monkeypatch):
    monkeypatch.setattr(background, "IDLE_S", 0.1)
    files(trees, 40)
    slow = trees.origin = SlowOrigin(trees.origin)
    async with trees.open(prefetch=ON) as tree:
        await read(tree, READ - 1)
        ino = await tree.ino(b"a/b/%03d" % (READ - 1))
        gate = slow.hold("get_range")
        tree.fs.opened(ino)
        assert (await ended(tree))["ended"] == "no longer read"
        gate.release()


async def test_switched_off_it_ends_at_once(trees):
    files(trees, 100)
    slow = trees.origin = SlowOrigin(trees.origin)
    async with trees.open(prefetch=ON) as tree:
        await read(tree, READ - 1)
        gate = slow.hold("get_range")
        tree.fs.opened(await tree.ino(b"a/b/%03d" % (READ - 1)))
        await gate.arrived(4)
        tree.stack.background.reconfigure(PrefetchConfig(background_fill=False))
        assert (await ended(tree))["ended"] == "switched off"
        gate.release()
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert len(keys(trees)) <= READ - 1 + 4
        tree.stack.background.reconfigure(PrefetchConfig(background_fill=True))
        await read(tree, READ, first=40)
        with trio.fail_after(20):
            while tree.stack.store.tiers[0].places[0].totals.objects < 100:  # noqa: ASYNC110
                await trio.sleep(0.01)
