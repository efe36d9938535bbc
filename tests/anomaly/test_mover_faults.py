"""A move that fails, or dies, at every possible moment: the bytes are always in one tier."""

import errno
import os

import pytest
import trio

from tiercache.config import MoveConfig
from tiercache.testing.tiers import Cache, FaultySystem, file
from tiercache.tier.system import System
from tiercache.transfer.mover import Mover
from tiercache.types import MIB

pytestmark = pytest.mark.allow_warnings

#: More calls than a move makes.
CALLS_MAX = 60

SIZE = 2 * MIB + 77


class Killed(BaseException):
    """The process ends here: nothing that it would have done afterwards happens."""


class MortalSystem(System):
    """Dies at the n-th call, before or after it took effect, and lets no call through after."""

    def __init__(self, die_at, *, after):
        self.die_at = die_at
        self.die_on = None
        self.after = after
        self.calls = 0
        self.dead = False

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name.startswith("_") or not hasattr(System, name):
            return value
        return lambda *args, **kwargs: self._call(name, value, args, kwargs)

    def _call(self, name, function, args, kwargs):
        if self.dead:
            if name == "close":
                return function(*args)  # the kernel does this much for a dead process
            raise Killed
        self.calls += 1
        if self.calls == self.die_at or name == self.die_on:
            self.dead = True
            if self.after or name == "close":
                function(*args, **kwargs)
            raise Killed
        return function(*args, **kwargs)


def prepared(root, size=SIZE):
    """A cache with one object in the lower tier, hot enough to move up."""
    cache = Cache(root, (1, 1), policy="lru")
    obj = file(7, size)
    cache.store.tiers[0].health.writable = False
    assert cache.put(obj)
    cache.restart()
    return cache, obj


def reopened_with(cache, system):
    cache.store.close()
    cache.system = system
    cache.open()


async def move_up(cache, obj):
    cache.store.touch(obj)
    mover = Mover(
        cache.store.exchange, MoveConfig(bandwidth=0, backoff="never"), activity=lambda: 0
    )
    await mover.round()


def tier_of(cache, obj):
    item = cache.store._table.get(obj)
    return None if item is None or item.tier is None else item.tier.level


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EMFILE"])
async def test_every_call_of_a_move_fails_once(tmp_path, error):
    moved = 0
    for n in range(1, CALLS_MAX):
        cache, obj = prepared(tmp_path / str(n))
        system = FaultySystem(error=getattr(errno, error))
        reopened_with(cache, system)
        assert await cache.get(obj)
        system.fail_at = system.calls + n
        await move_up(cache, obj)
        failed, system.fail_at = system.failed, 0
        cache.system = System()
        cache.restart()
        assert await cache.get(obj) or failed in ("open", "fstat", "preadv"), failed
        assert cache.fill(obj)
        assert cache.backing_matches(obj)
        if failed != "unlink":
            assert len(cache.files()) == 1, failed
            assert cache.on_disk() <= cache.used
        moved += tier_of(cache, obj) == 0
        cache.store.close()
        assert open_files_below(tmp_path) == []
        if failed is None:
            assert moved >= 1
            return
    pytest.fail("a move makes more calls than expected")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_every_call_of_a_move(tmp_path, after):
    levels = []
    for n in range(1, CALLS_MAX):
        cache, obj = prepared(tmp_path / str(n))
        system = MortalSystem(0, after=after)
        reopened_with(cache, system)
        assert await cache.get(obj)
        system.die_at = system.calls + n
        try:
            await move_up(cache, obj)
        except* Killed:
            pass
        finished = not system.dead
        system.die_at = 0
        cache.store._files.close_all()
        cache.system = System()
        cache.crash()
        assert cache.store.complete(obj), "the catalog says it is there"
        assert await cache.get(obj), "and there it is, with the right bytes"
        assert cache.backing_matches(obj)
        levels.append(tier_of(cache, obj))
        cache.store.close()
        if finished:
            assert levels == sorted(levels, reverse=True), "down to the switch, up from there"
            assert set(levels) == {0, 1}
            return
    pytest.fail("a move makes more calls than expected")


async def test_what_a_killed_move_left_is_swept(tmp_path):
    cache, obj = prepared(tmp_path)
    system = MortalSystem(0, after=True)
    reopened_with(cache, system)
    assert await cache.get(obj)
    system.die_on = "fdatasync"
    with pytest.raises(BaseExceptionGroup):
        await move_up(cache, obj)
    cache.store._files.close_all()
    assert len(cache.files()) == 2
    cache.system = System()
    cache.crash()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        with trio.fail_after(20):
            while len(cache.files()) > 1:  # noqa: ASYNC110 - the store announces nothing
                await trio.sleep(0.005)
        nursery.cancel_scope.cancel()
    assert await cache.get(obj)
    assert tier_of(cache, obj) == 1
    cache.store.close()


@pytest.mark.parametrize("what", ["evict", "drop", "write"])
async def test_change_during_the_copy_ends_the_move(tmp_path, what):
    cache, obj = prepared(tmp_path, 20 * MIB)
    exchange = cache.store.exchange
    cache.store.touch(obj)
    (item,) = exchange.promotable()
    reservations = []

    async def interfere(_nbytes, _took_s):
        if what == "evict":
            cache.store.evict(obj.ino)
        elif what == "drop":
            cache.store.drop_block(obj, 3)
        elif not reservations:
            reservations.append(cache.store.reserve(obj, 3, 4))

    assert not await exchange.carry_out(exchange.promotion(item), interfere)
    for reservation in reservations:
        reservation.close()
    assert tier_of(cache, obj) == (None if what == "evict" else 1)
    assert len(cache.files()) == (0 if what == "evict" else 1)
    assert cache.store.status()[0]["used"] == 0
    assert cache.fill(obj)
    assert await cache.get(obj)
    cache.store.close()


async def test_cancelled_move_leaves_nothing(tmp_path):
    cache, obj = prepared(tmp_path, 20 * MIB)
    exchange = cache.store.exchange
    cache.store.touch(obj)
    (item,) = exchange.promotable()

    async def stay(_nbytes, _took_s):
        scope.cancel()
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        await exchange.carry_out(exchange.promotion(item), stay)
    assert scope.cancelled_caught
    assert tier_of(cache, obj) == 1
    assert len(cache.files()) == 1
    assert cache.store.status()[0]["used"] == 0
    cache.store.close()


def open_files_below(root):
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(str(root)):
            links.append(target)
    return links
