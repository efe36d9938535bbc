"""Every live setting does something to a mount that runs. `@proves` says which test shows it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from tiercache.config import Config, TierConfig
from tiercache.config_fields import settings
from tiercache.config_file import SECTIONS
from tiercache.errors import OriginUnavailableError
from tiercache.testing.data import check
from tiercache.testing.faulty import SlowOrigin
from tiercache.transfer.fetch import Reason
from tiercache.types import KIB, MIB

PROVED = set()


def proves(*names):
    def note(test):
        PROVED.update(names)
        return test

    return note


# What other tests show: of the holder, of the HTTP client, of moves, on a real mount.
proves(
    "log_level",
    "mount.readahead",
    "mount.stop_timeout",
    "transfer.connect_timeout",
    "transfer.stall_timeout",
    "transfer.hedge_budget",
    "transfer.hedge_delay_min",
    "move.bandwidth",
    "move.concurrency",
    "move.margin",
    "move.residence",
    "move.backoff",
    "move.suspend_error_pct",
    "move.suspend_error_min",
    "move.dry_run",
)(None)


class Mount:
    """A tree whose configuration changes."""

    def __init__(self, tree, config):
        self.tree = tree
        self.origin = tree.origin
        self.config = config

    def reload(self, section, **values):
        if section == "tier":
            tiers = tuple(replace(tier, **values) for tier in self.config.tiers)
            self.config = replace(self.config, tiers=tiers)
        else:
            changed = replace(getattr(self.config, section), **values)
            self.config = replace(self.config, **{section: changed})
        self.tree.stack.reconfigure(self.config)

    @property
    def tier(self):
        return self.tree.stack.status()["tiers"][0]

    async def until(self, condition):
        with trio.fail_after(20):
            while not condition():  # noqa: ASYNC110 - others change it
                await trio.sleep(0.01)


@pytest.fixture
def mounted(trees):
    @asynccontextmanager
    async def mounted(transfer=None, **options):
        config = trees.config(**options)
        config = replace(config, transfer=replace(config.transfer, **(transfer or {})))
        async with trees.open(transfer=transfer, **options) as tree:
            yield Mount(tree, config)

    return mounted


def files(trees, count, size=MIB, form=b"f%02d"):
    for i in range(count):
        trees.origin.put_pattern(form % i, size, i)


def held(trees):
    """Have GETs wait at a gate."""
    slow = SlowOrigin(trees.origin)
    trees.origin = slow
    return slow, slow.hold("get_range")


async def settle():
    await trio.testing.wait_all_tasks_blocked(0.05)


def test_every_live_setting_is_proved():
    kinds = {"": Config, "tier": TierConfig, **SECTIONS}
    live = {
        f"{section}.{key}".lstrip(".")
        for section, kind in kinds.items()
        for key, setting in settings(kind).items()
        if setting.meta.get("live")
    }
    assert live == PROVED


# ---------------------------------------------------------------- transfer


@proves("transfer.bandwidth", "transfer.requests_per_s")
@pytest.mark.parametrize("limit", [{"bandwidth": 16 * KIB}, {"requests_per_s": 1}])
async def test_rates_begin_and_end(trees, mounted, limit):
    files(trees, 8)
    async with mounted() as mount, trio.open_nursery() as nursery:
        mount.reload("prefetch", files_ahead=0)
        inos = [await mount.tree.open(b"f%02d" % i) for i in range(8)]
        mount.reload("transfer", **limit)
        for seed, ino in enumerate(inos):

            async def read(ino=ino, seed=seed):
                check(await mount.tree.pread(ino, 0, MIB), 0, seed)

            nursery.start_soon(read)
        await settle()
        # A reader may borrow a second's worth, no more.
        assert 1 <= mount.origin.count("get_range") <= 4
        assert mount.tree.stack.status()["queued"] >= 4
        mount.reload("transfer", **dict.fromkeys(limit, 0))
        with trio.fail_after(5):
            await mount.until(lambda: mount.origin.count("get_range") == 8)


@proves("transfer.connections", "transfer.connections_min", "transfer.connections_reserved")
async def test_connections_become_fewer_and_more(trees, mounted):
    files(trees, 24)
    slow, gate = held(trees)
    async with mounted() as mount, trio.open_nursery() as nursery:
        mount.reload("prefetch", files_ahead=0)
        inos = [await mount.tree.open(b"f%02d" % i) for i in range(24)]
        mount.reload("transfer", connections=4, connections_min=1, connections_reserved=1)
        for ino in inos:
            nursery.start_soon(mount.tree.pread, ino, 0, MIB)
        await settle()
        assert gate.waiting == 4
        mount.reload("transfer", connections=8, connections_min=6)
        await settle()
        assert gate.waiting == 6
        gate.release()
    assert slow.inner.count("get_range") == 24


@proves("transfer.connections_reserved")
async def test_reserved_connections_are_kept_from_readahead(trees, mounted):
    trees.origin.put_pattern(b"f", 64 * MIB)
    _, gate = held(trees)
    async with mounted(transfer={"part": 8 * MIB}) as mount:
        obj = mount.tree.stack.namespace.inode(await mount.tree.open(b"f"))
        limits = {"connections": 6, "connections_min": 6}
        mount.reload("transfer", **limits, connections_reserved=5)
        mount.tree.stack.fetcher.prefetch(obj, 0, 32 * MIB, Reason.READAHEAD)
        await settle()
        assert gate.waiting == 1
        mount.reload("transfer", **limits, connections_reserved=3)
        await settle()
        assert gate.waiting == 3
        gate.release()


@proves("transfer.attempts")
@pytest.mark.allow_warnings
async def test_attempts(trees, mounted):
    trees.origin.put_pattern(b"f", 100)
    async with mounted() as mount:
        ino = await mount.tree.open(b"f")
        mount.tree.faults.fail("get_range", OriginUnavailableError("no"), times=None)
        mount.reload("transfer", attempts=2)
        with pytest.raises(OriginUnavailableError):
            await mount.tree.pread(ino, 0, 100)
        assert mount.tree.faults.calls["get_range"] == 2
        mount.reload("transfer", attempts=5)
        with pytest.raises(OriginUnavailableError):
            await mount.tree.pread(ino, 0, 100)
        assert mount.tree.faults.calls["get_range"] == 7


@proves("transfer.retry_budget")
@pytest.mark.allow_warnings
async def test_retry_budget(trees, mounted):
    trees.origin.put_pattern(b"f", 100)
    async with mounted(transfer={"attempts": 2, "connections": 8}) as mount:
        ino = await mount.tree.open(b"f")
        mount.tree.faults.fail("get_range", OriginUnavailableError("no"), times=None)

        async def calls(reads):
            before = mount.tree.faults.calls["get_range"]
            for _ in range(reads):
                with pytest.raises(OriginUnavailableError):
                    await mount.tree.pread(ino, 0, 100)
            return mount.tree.faults.calls["get_range"] - before

        mount.reload("transfer", retry_budget=0.0)
        assert await calls(20) == 20 + 16  # what was saved up for all attempts
        mount.reload("transfer", retry_budget=1.0)
        assert await calls(5) == 10


@proves("transfer.backoff_base", "transfer.backoff_max")
@pytest.mark.parametrize("wait", [(3600.0, 3600.0), (3600.0, 0.001)])
async def test_backoff(trees, mounted, wait):
    trees.origin.put_pattern(b"f", 100)
    async with mounted() as mount, trio.open_nursery() as nursery:
        ino = await mount.tree.open(b"f")
        mount.tree.faults.fail("get_range", OriginUnavailableError("no"))
        mount.reload("transfer", backoff_base_s=wait[0], backoff_max_s=wait[1], deadline_s=36_000.0)
        nursery.start_soon(mount.tree.pread, ino, 0, 100)
        await settle()
        assert mount.tree.faults.calls["get_range"] == (1 if wait[1] > 1 else 2)
        nursery.cancel_scope.cancel()


@proves("transfer.deadline")
@pytest.mark.allow_warnings
async def test_deadline(trees, mounted):
    trees.origin.put_pattern(b"f", 100)
    _, gate = held(trees)
    async with mounted() as mount:
        ino = await mount.tree.open(b"f")
        mount.reload("transfer", deadline_s=0.1)
        with pytest.raises(OriginUnavailableError, match="deadline"):
            await mount.tree.pread(ino, 0, 100)
        assert gate.waiting == 0


# ---------------------------------------------------------------- names


@proves("mount.metadata_ttl", "mount.negative_ttl")
@pytest.mark.parametrize(
    ("name", "field"), [(b"f", "metadata_ttl_s"), (b"absent", "negative_ttl_s")]
)
async def test_times_to_live_also_of_names_that_are_known(trees, mounted, name, field):
    trees.origin.put_pattern(b"f", 100)
    async with mounted(metadata_ttl_s=60.0, negative_ttl_s=60.0) as mount:
        await mount.tree.entry(name)
        trees.clock.now += 30
        before = mount.origin.count("list")
        assert (await mount.tree.entry(name)).entry_ttl_s == pytest.approx(30)
        assert mount.origin.count("list") == before
        mount.reload("mount", **{field: 10.0})
        entry = await mount.tree.entry(name)
        assert mount.origin.count("list") == before + 1
        assert entry.entry_ttl_s == pytest.approx(10)


# ---------------------------------------------------------------- prefetch


async def ahead(mount, name, until):
    """Bytes fetched beyond the first *until* bytes of *name*, which are read in order."""
    ino = await mount.tree.open(name)
    before = mount.tree.stack.fetcher.bytes_fetched
    for offset in range(0, until, 128 * KIB):
        await mount.tree.pread(ino, offset, 128 * KIB)
    await settle()
    return mount.tree.stack.fetcher.bytes_fetched - before - until


@proves("prefetch.window_min", "prefetch.window_max", "prefetch.budget")
async def test_windows_and_their_budget(trees, mounted):
    files(trees, 4, 128 * MIB, b"d%d/f")
    async with mounted() as mount:
        assert 8 * MIB < await ahead(mount, b"d0/f", 8 * MIB) <= 64 * MIB
        mount.reload("prefetch", window_min=MIB, window_max=MIB)
        assert await ahead(mount, b"d1/f", 8 * MIB) <= 2 * MIB
        mount.reload("prefetch", window_min=24 * MIB, window_max=24 * MIB)
        assert await ahead(mount, b"d2/f", 2 * MIB) >= 8 * MIB
        mount.reload("prefetch", budget=2 * MIB)
        assert await ahead(mount, b"d3/f", 2 * MIB) <= 2 * MIB


@proves("prefetch.skip_forward", "prefetch.skip_back")
@pytest.mark.parametrize(
    ("start", "end", "field"), [(0, 12, "skip_forward"), (32, 20, "skip_back")]
)
async def test_jumps_that_are_still_sequential(trees, mounted, start, end, field):
    files(trees, 2, 128 * MIB, b"d%d/f")
    async with mounted() as mount:
        for n, (limit, streams) in enumerate([(0, 2), (16 * MIB, 1)]):
            mount.reload("prefetch", **{field: limit})
            before = len(mount.tree.stack.prefetcher.streams)
            ino = await mount.tree.open(b"d%d/f" % n)
            await mount.tree.pread(ino, start * MIB, 64 * KIB)
            await mount.tree.pread(ino, end * MIB, 64 * KIB)
            assert len(mount.tree.stack.prefetcher.streams) - before == streams


@proves("prefetch.tail")
async def test_tails(trees, mounted):
    files(trees, 2, 16 * MIB, b"d%d/f.zip")
    async with mounted() as mount:
        for n, (tail, fetched) in enumerate([(0, MIB), (64 * KIB, 2 * MIB)]):
            mount.reload("prefetch", tail=tail)
            before = mount.tree.stack.fetcher.bytes_fetched
            await mount.tree.pread(await mount.tree.open(b"d%d/f.zip" % n), 0, 4096)
            await settle()
            assert mount.tree.stack.fetcher.bytes_fetched - before == fetched


@proves("prefetch.files_ahead")
async def test_files_ahead(trees, mounted):
    files(trees, 64, 1000)
    async with mounted() as mount:
        mount.reload("prefetch", files_ahead=0)
        for i in range(16):
            await mount.tree.cat(b"f%02d" % i)
        await settle()
        assert mount.origin.count("get_range") == 16
        mount.reload("prefetch", files_ahead=8)
        for i in range(16, 32):
            await mount.tree.cat(b"f%02d" % i)
        await settle()
        assert 36 <= mount.origin.count("get_range") <= 40


@proves("prefetch.background_fill")
async def test_background_fill(trees, mounted):
    files(trees, 40, 1000)
    async with mounted() as mount:
        mount.reload("prefetch", files_ahead=0, background_fill=True)
        for i in range(10):
            await mount.tree.cat(b"f%02d" % i)
        await mount.until(lambda: mount.origin.count("get_range") == 40)
        mount.reload("prefetch", background_fill=False)
        assert not mount.tree.stack.background.status()["enabled"]


# ---------------------------------------------------------------- tiers


@proves("tier.capacity")
async def test_capacity_shrinks_and_grows(trees, mounted):
    files(trees, 24)
    async with mounted(policy="lru", capacity=64 * MIB) as mount:
        for i in range(24):
            await mount.tree.cat(b"f%02d" % i)
        await mount.until(lambda: mount.tier["objects"] == 24)
        # All is written down: nothing but the reload has anybody look at the tier again.
        await trio.testing.wait_all_tasks_blocked(0.4)
        mount.reload("tier", capacity=8 * MIB)
        await mount.until(lambda: mount.tier["used"] <= 8 * MIB)
        assert mount.tier["evictions"] >= 16
        check(await mount.tree.cat(b"f23"), 0, 23)
        mount.reload("tier", capacity=64 * MIB)
        for i in range(24):
            check(await mount.tree.cat(b"f%02d" % i), 0, i)
        await mount.until(lambda: mount.tier["objects"] == 24)


async def test_capacity_that_is_found_out(trees, mounted):
    async with mounted(capacity=8 * MIB) as mount:
        mount.reload("tier", capacity=0)
        free = mount.tier["capacity"]
        assert free > 8 * MIB
        mount.reload("tier", reserve_free=free // 2)
        assert mount.tier["capacity"] < 0.6 * free


@proves("tier.reserve_free", "tier.write_budget_per_day")
@pytest.mark.parametrize(
    ("field", "refusing"), [("reserve_free", 1 << 60), ("write_budget_per_day", 1)]
)
async def test_newcomers_are_refused_and_let_in_again(trees, mounted, field, refusing):
    files(trees, 2)
    async with mounted() as mount:
        mount.reload("tier", **{field: refusing})
        await mount.tree.cat(b"f00")
        assert mount.tier["objects"] == 0
        mount.reload("tier", **{field: 0})
        await mount.tree.cat(b"f01")
        await mount.until(lambda: mount.tier["objects"] == 1)


@proves("tier.high_water", "tier.low_water", "move.interval")
async def test_marks_and_how_often_they_are_looked_at(trees, mounted):
    files(trees, 24)
    async with mounted(policy="lru", capacity=64 * MIB) as mount:
        for i in range(24):
            await mount.tree.cat(b"f%02d" % i)
        mount.reload("tier", high_water=0.2, low_water=0.1)
        await settle()
        assert mount.tier["objects"] == 24, "the next look is far away"
        trees.clock.now += 1000  # what is new may leave
        mount.reload("move", interval_s=0.1, backoff="never")
        await mount.until(lambda: mount.tier["used"] <= 0.1 * 64 * MIB)
        assert mount.tier["objects"] >= 5


@proves("heat.half_life")
async def test_half_life(trees, mounted):
    files(trees, 1)
    async with mounted() as mount:
        ino = await mount.tree.open(b"f00")
        usage = mount.tree.stack.store.usage
        # Heat has the clock of the machine.
        now = mount.tree.stack.store._around.now()
        assert usage.count(ino, now + 60) == pytest.approx(1, abs=0.01)
        mount.reload("heat", half_life_s=60.0)
        assert usage.count(ino, now + 60) == pytest.approx(0.5, rel=0.05)
