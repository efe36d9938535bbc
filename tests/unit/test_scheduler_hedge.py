"""A second GET for the slow few: what it saves, what it costs, and that bytes stay right."""

import random
from dataclasses import replace

import pytest
import trio
import trio.testing

from tiercache.config import TransferConfig
from tiercache.errors import ObjectChangedError, OriginUnavailableError
from tiercache.origin.hedge import HedgingOrigin
from tiercache.origin.retry import RetryingOrigin
from tiercache.origin.wrapper import OriginWrapper
from tiercache.testing.data import check
from tiercache.testing.memory import MemoryOrigin
from tiercache.types import MIB

SIZE = 300_000
CONFIG = TransferConfig(attempts=3, backoff_base_s=0.01)


class Uneven(OriginWrapper):
    """Each GET takes what `next_s` says before its first byte; may write junk while it waits."""

    def __init__(self, inner, next_s):
        super().__init__(inner)
        self.next_s = next_s
        self.fail_after = None
        self.gets = self.writing = 0

    async def get_range(self, key, etag, start, into, progress=None):
        self.gets += 1
        number = self.gets
        await trio.sleep(self.next_s(number))
        if self.fail_after == number:
            raise OriginUnavailableError("reset")
        await self.inner.get_range(key, etag, start, into, progress)


@pytest.fixture
def memory():
    memory = MemoryOrigin()
    memory.put_pattern(b"k", SIZE)
    return memory


async def get(origin, memory, size=SIZE, progress=None):
    into = memoryview(bytearray(size))
    before = trio.current_time()
    await origin.get_range(b"k", memory.info(b"k").etag, 0, into, progress)
    check(into)
    return trio.current_time() - before


async def warmed(nursery, uneven, **config):
    hedging = HedgingOrigin(uneven, replace(CONFIG, **config))
    nursery.start_soon(hedging.run)
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(200):
        await get(hedging, uneven.inner)
    return hedging


async def test_g05_one_percent_of_stuck_gets_does_not_show(memory, autojump_clock):
    chance = random.Random(1)
    uneven = Uneven(memory, lambda _n: 20.0 if chance.random() < 0.01 else 0.05)
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, uneven)
        before, took = uneven.gets, []
        for _ in range(2000):
            took.append(await get(hedging, memory))
        nursery.cancel_scope.cancel()
    assert sorted(took)[int(0.997 * len(took))] < 3
    assert uneven.gets - before <= 1.03 * 2000 + 4
    assert hedging.hedges_won >= 10


async def test_g05_a_store_that_is_slow_for_all_is_not_asked_twice(memory, autojump_clock):
    uneven = Uneven(memory, lambda _n: 0.05)
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, uneven)
        uneven.next_s = lambda _n: 3.0
        before = uneven.gets
        for _ in range(50):
            async with trio.open_nursery() as jobs:
                for _ in range(10):
                    jobs.start_soon(get, hedging, memory)
        assert uneven.gets - before <= 1.1 * 500
        assert hedging.delay_s > 3.0
        nursery.cancel_scope.cancel()


async def test_budget_and_shortest_delay_can_change(memory, autojump_clock):
    uneven = Uneven(memory, lambda _n: 0.05)
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, uneven, hedge_budget=0.5)
        uneven.next_s = lambda n: 20.0 if n % 2 else 0.05
        hedging.reconfigure(replace(CONFIG, hedge_budget=0.0))
        took = [await get(hedging, memory) for _ in range(4)]
        assert (hedging.hedges, max(took)) == (0, pytest.approx(20))
        hedging.reconfigure(replace(CONFIG, hedge_budget=0.5, hedge_delay_min_s=2.0))
        took = [await get(hedging, memory) for _ in range(2)]
        assert hedging.hedges_won == 2
        assert took == pytest.approx([2.05, 2.05])
        nursery.cancel_scope.cancel()


class Deaf(OriginWrapper):
    """The first of two GETs notices that it was cancelled only when its bytes are there."""

    def __init__(self, inner):
        super().__init__(inner)
        self.deaf = False
        self.gets = []

    async def get_range(self, key, etag, start, into, progress=None):
        self.gets.append((start, len(into)))
        if self.deaf:
            self.deaf = False
            with trio.CancelScope(shield=True):
                await trio.sleep(20)
            assert progress is not None
            progress(len(into))  # what a thread reports that was not quick enough
        await self.inner.get_range(key, etag, start, into, progress)


async def test_who_came_second_reports_nothing_any_more(memory, autojump_clock):
    async with trio.open_nursery() as nursery:
        deaf = Deaf(memory)
        hedging = await warmed(nursery, deaf)
        memory.put_pattern(b"k", 3 * MIB)
        deaf.deaf, deaf.gets, told = True, [], []
        await get(hedging, memory, 3 * MIB, told.append)
        assert hedging.hedges_won == 1
        assert told == sorted(told) and told[0] == MIB
        assert deaf.gets == [(0, 3 * MIB), (0, MIB), (MIB, 2 * MIB)]
        nursery.cancel_scope.cancel()


async def test_progress_never_falls_back_and_covers_all(memory, autojump_clock):
    uneven = Uneven(memory, lambda _n: 0.05)
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, uneven)
        uneven.next_s = lambda n: 20.0 if n % 2 else 0.05
        for _ in range(4):
            seen = []
            await get(hedging, memory, progress=seen.append)
            assert seen == sorted(seen) and seen[-1] == SIZE
        assert hedging.hedges_won > 0
        nursery.cancel_scope.cancel()


async def test_the_loser_never_touches_the_buffer(memory, autojump_clock):
    """The first request wakes up late, writes junk, and only then is told that it lost."""

    class Junk(Uneven):
        async def get_range(self, key, etag, start, into, progress=None):
            self.gets += 1
            if self.gets == self.junk:
                with trio.CancelScope(shield=True):  # a thread that cannot be stopped at once
                    await trio.sleep(0.5)
                    into[:] = b"\xff" * len(into)
                await trio.lowlevel.checkpoint()
                progress(len(into))
                return
            await trio.sleep(0.05)
            await self.inner.get_range(key, etag, start, into, progress)

    junk = Junk(memory, None)
    junk.junk = -1
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, junk)
        junk.junk = junk.gets + 1
        await get(hedging, memory)  # checks the bytes
        assert hedging.hedges_won == 1
        nursery.cancel_scope.cancel()


async def test_the_first_request_may_still_win(memory, autojump_clock):
    uneven = Uneven(memory, lambda _n: 0.05)
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, uneven)
        base = uneven.gets
        uneven.next_s = lambda n: 0.2 if n == base + 1 else 20.0
        assert await get(hedging, memory) == pytest.approx(0.2)
        assert (hedging.hedges, hedging.hedges_won) == (1, 0)
        nursery.cancel_scope.cancel()


async def test_a_rival_that_fails_leaves_the_first_alone(memory, autojump_clock):
    uneven = Uneven(memory, lambda _n: 0.05)
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, uneven)
        base = uneven.gets
        uneven.next_s = lambda n: 1.0 if n == base + 1 else 0.05
        uneven.fail_after = base + 2
        assert await get(hedging, memory) == pytest.approx(1.0)
        nursery.cancel_scope.cancel()


async def test_a_rival_brings_a_block_and_what_breaks_behind_it_is_retried_from_there(
    memory, autojump_clock
):
    class Breaking(Uneven):
        async def get_range(self, key, etag, start, into, progress=None):
            self.gets += 1
            await trio.sleep(20 if self.gets == self.stuck else 0.05)
            if self.gets == self.stuck + 2:
                await self.inner.get_range(key, etag, start, into[:100_000], progress)
                raise OriginUnavailableError("reset")
            await self.inner.get_range(key, etag, start, into, progress)

    size = 3 * MIB
    memory.put_pattern(b"k", size)
    breaking = Breaking(memory, None)
    breaking.stuck = -5
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, breaking)
        breaking.stuck = breaking.gets + 1
        told, seen = [], []
        hedging.on_hedge(told.append)
        retrying = RetryingOrigin(hedging, CONFIG, random.Random(1))
        await get(retrying, memory, size, seen.append)
        assert (hedging.hedges_won, told) == (1, [MIB])
        assert seen == sorted(seen) and seen[-1] == size
        asked = [(call.start, call.size) for call in memory.calls[-3:]]
        rest = MIB + 100_000
        assert asked == [(0, MIB), (MIB, 100_000), (rest, size - rest)]
        nursery.cancel_scope.cancel()


async def test_errors_of_the_object_come_through(memory, autojump_clock):
    uneven = Uneven(memory, lambda _n: 0.05)
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, uneven)
        uneven.next_s = lambda _n: 1.0
        with pytest.raises(ObjectChangedError):
            await hedging.get_range(b"k", "other", 0, memoryview(bytearray(10)))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("config", [{"hedge_budget": 0.0}, {"hedge_delay_min_s": 60.0}])
async def test_can_be_switched_off(memory, autojump_clock, config):
    uneven = Uneven(memory, lambda _n: 0.05)
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, uneven, **config)
        uneven.next_s = lambda n: 20.0
        assert await get(hedging, memory) == pytest.approx(20.0)
        assert hedging.hedges == 0
        nursery.cancel_scope.cancel()


async def test_cancelled_callers_leave_nothing_running(memory, autojump_clock):
    uneven = Uneven(memory, lambda _n: 0.05)
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, uneven)
        uneven.next_s = lambda _n: 20.0
        with trio.move_on_after(1.0) as scope:
            await get(hedging, memory)
        assert scope.cancelled_caught and hedging.hedges == 1
        before = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert not hedging._rivals and not hedging._races
        assert trio.current_time() == before
        nursery.cancel_scope.cancel()


async def test_g05_gets_made_elsewhere_share_delay_and_budget(memory, autojump_clock):
    told = []
    async with trio.open_nursery() as nursery:
        hedging = await warmed(nursery, Uneven(memory, lambda _n: 0.1), hedge_budget=0.1)
        hedging.on_hedge(told.append)
        stuck = [hedging.patience(100) for _ in range(50)]  # all asked at once, and none answers
        assert {patience.seconds for patience in stuck} == {hedging.delay_s}
        given_up = [patience.give_up() for patience in stuck]
        assert given_up == [True] * 4 + [False] * 46
        assert told == [100] * hedging.hedges == [100] * 4
        for _ in range(100):
            hedging.asked()
            hedging.patience(100).give_up()
        assert 4 + 9 <= hedging.hedges <= 4 + 0.1 * 100 + 1
        for _ in range(600):
            hedging.learn(3.0)
        assert hedging.patience(100).seconds > 3.0
        nursery.cancel_scope.cancel()


async def test_gets_made_elsewhere_are_not_hedged_by_an_origin_that_does_not_hedge(memory):
    assert HedgingOrigin(memory, CONFIG).patience(100) is None
