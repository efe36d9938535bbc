"""Moves by other rules: what a reload changes while the mover lives."""

import logging
from dataclasses import replace

import pytest
import trio
import trio.testing

from tiercache.config import HeatConfig, MoveConfig
from tiercache.testing.tiers import Cache, file
from tiercache.transfer.mover import Mover
from tiercache.transfer.suspension import Suspension
from tiercache.types import MIB

CONFIG = MoveConfig(bandwidth=0, backoff="never", interval_s=1.0, residence_s=0.0)


class World:
    """Objects in the lower of two tiers, all wanted in the upper one."""

    def __init__(self, tmp_path, count, nvme=64, **settings):
        self.cache = Cache(tmp_path, (1, 1), policy="lru")
        self.cache.set_capacities(0x1000, 256 * MIB)
        self.objects = [file(ino, 2 * MIB) for ino in range(7, 7 + count)]
        for obj in self.objects:
            assert self.cache.put(obj)
        self.cache.set_capacities(nvme * MIB, 256 * MIB)
        self.reads = 0
        self.config = replace(CONFIG, **settings)
        self.mover = Mover(self.cache.store.exchange, self.config, activity=lambda: self.reads)
        self.use(*self.objects)

    def use(self, *objects):
        for obj in objects:
            self.cache.clock.now += 1
            self.cache.store.touch(obj)

    def reload(self, **settings):
        self.config = replace(self.config, **settings)
        self.mover.reconfigure(self.config)
        self.cache.store.reconfigure(self.cache.configs, HeatConfig(), self.config)

    @property
    def above(self):
        return self.cache.store.status()[0]["objects"]

    @property
    def moving(self):
        """Bytes promised to moves."""
        return self.cache.store.tiers[0].places[0].reserved


async def test_concurrency(tmp_path):
    world = World(tmp_path, 8, bandwidth=1, concurrency=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.mover.round)
        await trio.testing.wait_all_tasks_blocked(0.1)
        one = world.moving
        assert one > 0
        world.reload(concurrency=3)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert world.moving == 3 * one
        nursery.cancel_scope.cancel()
    world.cache.store.close()


async def test_bandwidth(tmp_path, autojump_clock):
    world = World(tmp_path, 4, bandwidth=MIB, concurrency=1)
    world.reload(bandwidth=4 * MIB)
    began = trio.current_time()
    await world.mover.round()
    assert world.above == 4
    assert trio.current_time() - began == pytest.approx(2, rel=0.05)
    world.cache.store.close()


async def test_dry_run_begins_and_ends(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    world = World(tmp_path, 2)
    tier = world.cache.store.tiers[0]
    world.reload(dry_run=True)
    await world.mover.round()
    assert (world.above, tier.demotes) == (0, False)
    assert "would move" in caplog.text
    world.use(*world.objects)
    world.reload(dry_run=False)
    await world.mover.round()
    assert (world.above, tier.demotes) == (2, True)
    world.cache.store.close()


async def full(tmp_path, **settings):
    """A world whose upper tier has no room for one more; the object that wants to enter."""
    world = World(tmp_path, 4, nvme=7, **settings)
    await world.mover.round()
    assert world.above == 3
    (outside,) = [o for o in world.objects if world.cache.store._table.get(o).tier.level]
    return world, outside


async def test_margin(tmp_path):
    world, outside = await full(tmp_path, margin=100.0)
    world.use(*[outside] * 9)
    await world.mover.round()
    assert world.cache.store._table.get(outside).tier.level == 1
    world.reload(margin=1.5)
    world.use(outside)
    await world.mover.round()
    assert world.cache.store._table.get(outside).tier.level == 0
    world.cache.store.close()


async def test_residence(tmp_path):
    world, outside = await full(tmp_path, residence_s=1e6)
    world.use(*[outside] * 9)
    await world.mover.round()
    assert world.cache.store._table.get(outside).tier.level == 1
    world.reload(residence_s=0.0)
    world.use(outside)
    await world.mover.round()
    assert world.cache.store._table.get(outside).tier.level == 0
    world.cache.store.close()


async def test_backoff(tmp_path):
    world = World(tmp_path, 1)
    move = world.mover._exchange.promotion(world.mover._exchange.promotable()[0])
    world.reads += 1
    assert not world.mover._readers_active(move)
    world.reload(backoff="any_user_io")
    assert world.mover._readers_active(move)
    assert not world.mover._readers_active(move), "nobody since"
    world.cache.store.close()


def test_suspension_judges_by_other_bounds():
    suspension = Suspension(50, 100, 1.0, 32.0)
    for _ in range(3):
        suspension.ended(0.0, failed=True)
    suspension.reconfigure(100, 4, 1.0, 32.0)
    suspension.ended(0.0, failed=True)
    assert suspension.suspended
    suspension = Suspension(100, 4, 1.0, 32.0)
    suspension.reconfigure(50, 4, 1.0, 32.0)
    for failed in (True, False, True, False):
        suspension.ended(0.0, failed=failed)
    assert suspension.suspended


async def test_a_mover_passes_the_bounds_of_suspension_on(tmp_path):
    world = World(tmp_path, 1)
    world.reload(suspend_error_pct=10, suspend_error_min=2)
    world.mover._ended(failed=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tiercache.transfer.mover.log.warning", lambda *_: None)
        world.mover._ended(failed=True)
    assert world.mover.suspended
    world.cache.store.close()
