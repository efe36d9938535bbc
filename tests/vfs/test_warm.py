"""Filling the tiers on request, over a memory origin."""

import math
import os

import pytest
import trio
import trio.testing

from tiercache.errors import ControlError, OriginUnavailableError
from tiercache.testing.data import check
from tiercache.testing.faulty import SlowOrigin
from tiercache.types import BLOCK_SIZE, KIB, MIB


def gets(trees):
    origin = getattr(trees.origin, "inner", trees.origin)
    return [(c.key, c.start, c.size) for c in origin.calls if c.operation == "get_range"]


async def warm(tree, *paths, **wanted):
    report = tree.stack.warmer.start(list(paths), **wanted)
    with trio.fail_after(30):
        while report["state"] in ("surveying", "fetching"):
            report = await tree.stack.warmer.wait(report["job"], 1.0)
    return report


async def test_a_directory_is_filled_and_then_read_without_the_origin(trees):
    for i in range(50):
        trees.origin.put_pattern(b"a/d%d/%02d" % (i % 3, i), 30 * KIB + i, seed=i)
    trees.origin.put_pattern(b"a/large", 20 * MIB + 5, seed=99)
    trees.origin.put_pattern(b"other", MIB)
    async with trees.open() as tree:
        report = await warm(tree, "a")
        assert (report["state"], report["complete"]) == ("done", True)
        assert report["survey"]["objects"] == 51
        assert report["fetched_bytes"] == report["survey"]["missing_bytes"]
        assert len(gets(trees)) == report["survey"]["requests"]
        assert b"other" not in {key for key, _, _ in gets(trees)}
        before = len(gets(trees))
        for i in range(50):
            check(await tree.cat(b"a/d%d/%02d" % (i % 3, i)), seed=i)
        check(await tree.cat(b"a/large"), seed=99)
        assert len(gets(trees)) == before
        again = await warm(tree, "a")
    assert again["complete"]
    assert again["survey"]["missing_bytes"] == 0
    assert len(gets(trees)) == before


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a/*.tar", {b"a/1.tar", b"a/2.tar"}),
        ("a/[1]*", {b"a/1.tar"}),
        ("**/x", {b"x", b"a/x", b"a/b/x"}),
        ("a/**", {b"a/1.tar", b"a/2.tar", b"a/x", b"a/b/x", b"a/b/y"}),
        ("*/b", {b"a/b/x", b"a/b/y"}),
        ("a/b/../x", set()),
        ("s[1]", {b"s[1]"}),
        ("nothing*", set()),
    ],
)
async def test_patterns(trees, pattern, expected):
    for key in (b"a/1.tar", b"a/2.tar", b"a/x", b"a/b/x", b"a/b/y", b"x", b"s[1]", b"s1"):
        trees.origin.put_pattern(key, KIB)
    async with trees.open() as tree:
        report = await warm(tree, pattern)
    assert {key for key, _, _ in gets(trees)} == expected
    assert report["complete"] is bool(expected)
    assert report["survey"]["unknown"] == (not expected)


async def test_a_check_fetches_nothing(trees):
    trees.origin.put_pattern(b"f", 3 * MIB)
    async with trees.open() as tree:
        report = await warm(tree, "f", check=True)
        assert (report["state"], report["complete"]) == ("done", False)
        assert report["left"]["missing_bytes"] == 3 * MIB
        assert gets(trees) == []
        await warm(tree, "f")
        assert (await warm(tree, "f", check=True))["complete"]


async def test_what_a_cancelled_fill_brought_is_not_fetched_again(trees):
    trees.origin.put_pattern(b"f", 64 * MIB)
    trees.origin = SlowOrigin(trees.origin, latency_s=0.01)
    async with trees.open(transfer={"part": 2 * MIB}) as tree:
        report = tree.stack.warmer.start(["f"], rate=8 * MIB)
        while len(gets(trees)) < 5:  # noqa: ASYNC110 - no event says so
            await trio.sleep(0.01)
        assert tree.stack.warmer.cancel(report["job"]) == 1
        report = await tree.stack.warmer.wait(report["job"], 5.0)
        assert (report["state"], report["complete"]) == ("cancelled", False)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert tree.stack.fetcher.admission.waiting == 0
        await warm(tree, "f")
        check(await tree.cat(b"f"))
    starts = [start for _, start, _ in gets(trees)]
    assert len(starts) == len(set(starts)) == 32


async def test_readers_go_first(trees):
    trees.origin.put_pattern(b"f", 64 * MIB)
    trees.origin.put_pattern(b"g", MIB)
    origin = SlowOrigin(trees.origin)
    trees.origin = origin
    async with trees.open(transfer={"connections": 3, "connections_reserved": 1}) as tree:
        ino = await tree.open(b"g")
        gate = origin.hold("get_range")
        tree.stack.warmer.start(["f"])
        await trio.testing.wait_all_tasks_blocked()
        assert tree.stack.fetcher.admission.connections_used == 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tree.pread, ino, 0, MIB)
            await trio.testing.wait_all_tasks_blocked()
            assert tree.stack.fetcher.admission.connections_used == 3
            gate.release()


async def test_what_does_not_fit_is_told_and_not_fetched(trees):
    for i in range(12):
        trees.origin.put_pattern(b"d/%02d" % i, MIB)
    async with trees.open(capacity=5 * MIB, policy="lru") as tree:
        report = await warm(tree, "d")
        assert not report["complete"]
        assert report["excess_bytes"] > 0
        assert report["fetched_bytes"] + report["bypassed_bytes"] == 12 * MIB
        assert len(gets(trees)) == report["fetched_bytes"] // MIB == 4
        assert tree.stack.status()["tiers"][0]["evictions"] == 0


async def test_cold_residents_make_way_and_hot_ones_do_not(trees):
    for i in range(4):
        trees.origin.put_pattern(b"old/%d" % i, MIB)
        trees.origin.put_pattern(b"new/%d" % i, MIB)
    async with trees.open(capacity=5 * MIB, policy="lru") as tree:
        now = [1e9]
        tree.stack.store.warming._now = lambda: now[0]  # a test's clock
        for i in range(4):
            tree.stack.store.usage.use((await tree.ino(b"old/%d" % i)), 0, now[0])
        await warm(tree, "old")
        report = await warm(tree, "new")
        assert report["fetched_bytes"] == 0
        now[0] += 30 * 86400
        report = await warm(tree, "new")
        assert report["complete"]
        assert tree.stack.status()["tiers"][0]["evictions"] == 4


async def test_a_manifest_with_ranges(trees, tmp_path):
    trees.origin.put_pattern(b"f", 8 * MIB)
    trees.origin.put_pattern(b"d/*x", KIB)
    trees.origin.put_pattern(b"d/yx", KIB)
    manifest = tmp_path / "m"
    manifest.write_bytes(b"# what\nf\t%d\t10\n/nowhere/d/*x\n" % (3 * MIB - 5))
    async with trees.open() as tree:
        report = await warm(tree, manifest=str(manifest))
    assert report["complete"]
    assert sorted(gets(trees)) == [(b"d/*x", 0, KIB), (b"f", 2 * MIB, 2 * MIB)]


async def test_a_bad_manifest_fails_in_one_line(trees, tmp_path):
    (tmp_path / "m").write_bytes(b"f\nf\tx\n")
    os.mkfifo(tmp_path / "fifo")
    async with trees.open() as tree:
        report = await warm(tree, manifest=str(tmp_path / "m"))
        assert report["state"] == "failed"
        assert report["error"].startswith(f"{tmp_path}/m: line 2: ")
        for name, words in (("fifo", "not a regular file"), ("none", "No such file")):
            report = await warm(tree, manifest=str(tmp_path / name))
            assert report["error"].endswith(words) or words in report["error"]


@pytest.mark.allow_warnings
async def test_an_origin_that_is_down_ends_a_fill(trees):
    trees.origin.put_pattern(b"f", 400 * MIB)
    async with trees.open(transfer={"part": MIB}) as tree:
        await tree.ino(b"f")
        tree.faults.fail("get_range", OriginUnavailableError("connection refused"), times=10**6)
        report = await warm(tree, "f")
    assert report["state"] == "failed"
    assert not report["complete"]
    assert "connection refused" in report["error"]


async def test_an_object_that_changes_meanwhile_is_not_complete(trees):
    trees.origin.put_pattern(b"f", 2 * MIB)
    async with trees.open(transfer={"part": MIB}) as tree:
        await tree.ino(b"f")
        trees.origin.put_pattern(b"f", 2 * MIB, seed=1)
        report = await warm(tree, "f")
        assert report["state"] == "done"
        assert report["failed_bytes"] > 0
        tree.clock.now += 3600
        assert (await warm(tree, "f"))["complete"]
        check(await tree.cat(b"f"), seed=1)


async def test_a_rate_is_kept(trees, autojump_clock):
    trees.origin.put_pattern(b"f", 40 * MIB)
    async with trees.open(transfer={"part": MIB}) as tree:
        began = trio.current_time()
        report = tree.stack.warmer.start(["f"], rate=4 * MIB)
        while report["state"] not in ("done", "failed"):
            report = await tree.stack.warmer.wait(report["job"], 5.0)
        took = trio.current_time() - began
    assert report["complete"]
    assert 8 <= took <= 15  # simulated seconds: one second's worth is free


async def test_a_rate_is_kept_evenly_by_smaller_requests(trees, autojump_clock):
    trees.origin.put_pattern(b"f", 20 * MIB)
    async with trees.open(transfer={"part": 8 * MIB}) as tree:
        began = trio.current_time()
        report = tree.stack.warmer.start(["f"], rate=2 * MIB)
        while report["state"] not in ("done", "failed"):
            report = await tree.stack.warmer.wait(report["job"], 5.0)
        took = trio.current_time() - began
    assert report["complete"]
    assert {size for _, _, size in gets(trees)} == {2 * MIB}
    assert len(gets(trees)) == report["survey"]["requests"] == 10
    assert 8 <= took <= 10


async def test_where_it_goes_is_said_of_the_room_before_it_came(trees):
    for i in range(6):
        trees.origin.put_pattern(b"d/%d" % i, MIB)
    async with trees.open(capacity=9 * MIB) as tree:
        report = await warm(tree, "d")
        assert (report["where"], report["excess_bytes"]) == ({"cache": 6 * MIB}, 0)
        report = await warm(tree, "d")
        assert (report["where"], report["excess_bytes"]) == ({}, 0)


async def test_a_fill_whose_watcher_is_gone_ends(trees, autojump_clock):
    trees.origin.put_pattern(b"f", 4000 * MIB)
    async with trees.open() as tree:
        report = tree.stack.warmer.start(["f"], rate=MIB, watched=True)
        await trio.sleep(100)
        assert (await tree.stack.warmer.wait(report["job"]))["state"] == "cancelled"


@pytest.mark.parametrize(
    "wanted",
    [
        {"paths": "f"},
        {"paths": [1]},
        {"paths": []},
        {"paths": ["f"], "manifest": "/m"},
        {"paths": ["f"], "rate": -1},
        {"paths": ["f"], "rate": True},
        {"paths": ["f"], "rate": math.inf},
        {"paths": ["f"], "tier": "no such tier"},
        {"paths": ["f"], "check": 1},
        {"paths": ["\ud800"]},
    ],
)
async def test_a_hostile_request_is_refused(trees, wanted):
    async with trees.open() as tree:
        with pytest.raises(ControlError):
            tree.stack.warmer.start(**wanted)


async def test_fills_at_a_time_and_remembered_are_bounded(trees):
    trees.origin.put_pattern(b"f", 4000 * MIB)
    async with trees.open() as tree:
        for _ in range(4):
            tree.stack.warmer.start(["f"], rate=1)
        with pytest.raises(ControlError, match="4 fills"):
            tree.stack.warmer.start(["f"])
        assert tree.stack.warmer.cancel() == 4
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(30):
            await warm(tree, "absent")
        assert len(tree.stack.warmer.status()) <= 17
        assert (await tree.stack.warmer.wait("1-1"))["state"] == "unknown"


async def test_blocks_of_a_partly_resident_file(trees):
    trees.origin.put_pattern(b"f", 4 * MIB)
    async with trees.open() as tree:
        ino = await tree.open(b"f")
        await tree.pread(ino, 2 * MIB, KIB)
        await trio.testing.wait_all_tasks_blocked(0.05)
        report = await warm(tree, "f")
    assert report["survey"]["missing_bytes"] == 3 * MIB
    assert sum(size for _, _, size in gets(trees)) == 4 * BLOCK_SIZE
