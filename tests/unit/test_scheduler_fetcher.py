"""What the fetcher asks the origin for, and in which order; nothing is kept in a tier."""

import gc
import itertools
import mmap
import resource
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from tiercache.config import TransferConfig
from tiercache.errors import (
    BypassedError,
    ObjectNotFoundError,
    OriginThrottledError,
    OriginUnavailableError,
    OutOfMemoryError,
)
from tiercache.origin.hedge import HedgingOrigin
from tiercache.testing.data import check
from tiercache.testing.faulty import FaultyOrigin, SlowOrigin
from tiercache.testing.memory import MemoryOrigin
from tiercache.transfer.admission import Admission
from tiercache.transfer.fetch import Fetch, Reason
from tiercache.transfer.fetcher import Fetcher
from tiercache.transfer.requests import Requests, SingleFlight
from tiercache.types import MIB, Inode, Kind, Priority


class NoStore:
    """A store without room: every body bypasses it."""

    def missing(self, obj, first, end):
        return [(first, end)] if first < end else []

    def reserve(self, obj, first, end):
        return None

    async def read(self, obj, offset, into):
        await trio.lowlevel.checkpoint()
        return False


class Admits:
    """Would let all be warmed; notes blocks, and whether others may leave for them."""

    def __init__(self):
        self.asked = []

    def admits(self, _obj, first, end, *, evicts):
        self.asked.append((first, end, evicts))
        return True


class World:
    def __init__(self, nursery, **config):
        self.store = NoStore()
        self.memory = MemoryOrigin()
        self.slow = SlowOrigin(self.memory)
        self.fetcher = Fetcher(self.slow, self.store, TransferConfig(**config), nursery)
        self.nursery = nursery
        self.inos = itertools.count(2)

    def file(self, name, size):
        info = self.memory.put_pattern(name, size)
        return Inode(next(self.inos), 1, Kind.FILE, size, 0, info.etag, name)

    @property
    def gets(self):
        return [(c.key, c.start // MIB, c.size // MIB) for c in self.memory.calls]


@asynccontextmanager
async def world(**config):
    async with trio.open_nursery() as nursery:
        made = World(nursery, **config)
        nursery.start_soon(made.fetcher.run)
        yield made
        nursery.cancel_scope.cancel()


#: Small enough to tell several of them apart.
PART = {"part": 8 * MIB}
ONE = {"connections": 1, "connections_reserved": 0, **PART}


async def test_adjacent_demands_that_queue_become_one_get():
    async with world(**ONE) as w:
        a, b = w.file(b"a", 20 * MIB), w.file(b"b", MIB)
        w.fetcher.demand(b, 0, 1)
        for block in range(12):
            w.fetcher.demand(a, block * MIB, MIB)
        await trio.testing.wait_all_tasks_blocked()
        assert w.gets == [(b"b", 0, 1), (b"a", 0, 8), (b"a", 8, 4)]  # a part at most


async def test_what_is_under_way_does_not_grow():
    async with world(**ONE) as w:
        gate = w.slow.hold("get_range")
        a = w.file(b"a", 20 * MIB)
        w.fetcher.demand(a, 0, 1)
        await gate.arrived()
        w.fetcher.demand(a, MIB, 1)
        gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert w.gets == [(b"a", 0, 1), (b"a", 1, 1)]


async def test_a_demand_does_not_wait_for_prefetch_it_is_adjacent_to():
    async with world(**ONE) as w:
        a, b = w.file(b"a", 20 * MIB), w.file(b"b", MIB)
        w.fetcher.demand(b, 0, 1)
        w.fetcher.prefetch(a, 0, 4 * MIB, Reason.READAHEAD)
        w.fetcher.demand(a, 4 * MIB, MIB)
        await trio.testing.wait_all_tasks_blocked()
        assert w.gets == [(b"b", 0, 1), (b"a", 4, 1), (b"a", 0, 4)]


async def test_prefetch_is_cut_at_whole_parts_and_asks_for_nothing_twice():
    async with world(**PART) as w:
        a = w.file(b"a", 40 * MIB)
        assert w.fetcher.prefetch(a, 6 * MIB, 20 * MIB, Reason.READAHEAD) == 14
        assert w.fetcher.prefetch(a, 10 * MIB, 22 * MIB, Reason.PLAN) == 2
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(w.gets) == [(b"a", 6, 2), (b"a", 8, 8), (b"a", 16, 4), (b"a", 20, 2)]
        assert w.fetcher.fetched[Reason.READAHEAD] == 14 * MIB
        assert w.fetcher.fetched[Reason.PLAN] == 2 * MIB
        w.fetcher.prefetch(a, 24 * MIB, 32 * MIB, Reason.READAHEAD, 4 * MIB)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(w.gets)[-2:] == [(b"a", 24, 4), (b"a", 28, 4)]


async def test_what_others_rely_on_is_not_abandoned():
    async with world(**ONE) as w:
        gate = w.slow.hold("get_range")
        a, b = w.file(b"a", 64 * MIB), w.file(b"b", MIB)
        w.fetcher.demand(b, 0, 1)
        await gate.arrived()
        w.fetcher.prefetch(a, 0, 24 * MIB, Reason.READAHEAD)
        w.fetcher.prefetch(a, 2 * MIB, 6 * MIB, Reason.PLAN)
        w.nursery.start_soon(w.fetcher.warm, a, 8, 16, Reason.WARM)
        await trio.testing.wait_all_tasks_blocked()
        w.fetcher.abandon(Reason.READAHEAD, a.ino, 0, 64 * MIB)
        assert w.fetcher.abandoned_bytes == 8 * MIB
        gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert w.gets == [(b"b", 0, 1), (b"a", 0, 8), (b"a", 8, 8)]


async def test_a_fill_that_ends_takes_back_its_own_and_a_warming_beside_it_goes_on():
    async with world(**ONE) as w:
        w.store.warming = Admits()
        gate = w.slow.hold("get_range")
        a, b = w.file(b"a", 64 * MIB), w.file(b"b", MIB)
        w.fetcher.demand(b, 0, 1)
        await gate.arrived()

        async def warm():
            with pytest.raises(BypassedError):  # this store has no room
                await w.fetcher.warm(a, 0, 4, Reason.WARM)

        async with trio.open_nursery() as warming:
            warming.start_soon(warm)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as filling:
                filling.start_soon(w.fetcher.warm, a, 4, 6, Reason.FILL)
                await trio.testing.wait_all_tasks_blocked()
                filling.cancel_scope.cancel()
            assert w.fetcher.abandoned_bytes == 2 * MIB
            gate.release()
        assert w.store.warming.asked == [(0, 4, True)]


async def test_g17_a_refusal_that_is_quicker_than_its_reader_is_not_asked_for_again():
    async with world() as w:
        a = replace(w.file(b"a", MIB), key=b"gone")
        w.fetcher.demand(a, 0, 100)
        reading = w.fetcher.read(a, 0, 100)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ObjectNotFoundError):
            await reading
        assert len(w.gets) == 1


async def test_who_asks_late_whether_it_has_landed_is_told():
    async with world() as w:
        fetch = Fetch(w.file(b"a", MIB), 0, 1, Reason.WARM)
        fetch.land()
        with trio.fail_after(5):
            await fetch.landed()


async def test_only_what_queues_unwanted_is_abandoned():
    async with world(**ONE) as w:
        gate = w.slow.hold("get_range")
        a = w.file(b"a", 64 * MIB)
        w.fetcher.prefetch(a, 0, 32 * MIB, Reason.READAHEAD)
        await gate.arrived()
        w.fetcher.demand(a, 8 * MIB, 1)  # somebody needs the second part
        w.fetcher.abandon(Reason.PLAN, a.ino, 0, 30 * MIB)
        assert not w.fetcher.abandoned_bytes
        w.fetcher.abandon(Reason.READAHEAD, a.ino, 0, 30 * MIB)  # the last one reaches further
        assert w.fetcher.abandoned_bytes == 8 * MIB
        gate.release()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(w.gets) == [(b"a", 0, 8), (b"a", 8, 8), (b"a", 24, 8)]
        assert w.fetcher.admission.connections_used == 0


async def test_throttling_cuts_the_number_of_requests_at_a_time():
    async with world(connections=32) as w:
        before = w.fetcher.concurrency
        w.fetcher.attempt_failed(OriginUnavailableError("reset"))
        assert w.fetcher.concurrency == before
        w.fetcher.attempt_failed(OriginThrottledError("503"))
        assert w.fetcher.concurrency < before and w.fetcher.throttled == 1
        gate = w.slow.hold("get_range")
        for i in range(40):
            w.fetcher.demand(w.file(b"%d" % i, MIB), 0, 1)
        await gate.arrived(w.fetcher.concurrency)
        await trio.testing.wait_all_tasks_blocked()
        assert gate.waiting == w.fetcher.concurrency
        gate.release()


async def test_an_idle_stream_holds_no_connection():
    async with world() as w:
        a = w.file(b"a", 64 * MIB)
        for offset in range(0, 8 * MIB, MIB):
            await w.fetcher.read(a, offset, MIB)
        w.fetcher.prefetch(a, 8 * MIB, 32 * MIB, Reason.READAHEAD)
        await trio.testing.wait_all_tasks_blocked()
        assert w.fetcher.admission.connections_used == 0


async def test_buffers_that_nobody_reads_make_room_for_others():
    async with world(memory=32 * MIB) as w:
        for i in range(20):
            a = w.file(b"%d" % i, 8 * MIB)
            for offset in range(0, 8 * MIB, MIB):
                await w.fetcher.read(a, offset, MIB)
                assert w.fetcher.admission.memory_used <= 32 * MIB
        w.fetcher.release_idle()
        assert w.fetcher.admission.memory_used == 0


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(kind):
    return sum(type(found) is kind for found in gc.get_objects())


async def test_i03_memory_is_freed_without_a_garbage_collection(no_collection):
    """A busy mount collects seldom: a cycle through a body would hold megabytes for long."""
    before = alive(mmap.mmap)
    async with world(memory=32 * MIB) as w:
        hedging = HedgingOrigin(w.slow, TransferConfig())
        w.nursery.start_soon(hedging.run)
        fetcher = Fetcher(hedging, NoStore(), TransferConfig(memory=32 * MIB), w.nursery)
        await trio.testing.wait_all_tasks_blocked()
        a = w.file(b"a", 40 * MIB)
        for offset in range(0, a.size, MIB):
            await fetcher.read(a, offset, MIB)
        fetcher.prefetch(a, 0, 8 * MIB, Reason.READAHEAD)
        fetcher.abandon(Reason.READAHEAD, a.ino, 0, 8 * MIB)
        await trio.testing.wait_all_tasks_blocked()
        assert alive(Fetch) > 0
        fetcher.release_idle()
        await trio.testing.wait_all_tasks_blocked()
        assert alive(Fetch) == 0
        assert alive(mmap.mmap) == before


@pytest.mark.parametrize("operation", ["list", "head"])
async def test_e11_equal_questions_share_one_request_and_its_failure(operation):
    memory = MemoryOrigin()
    memory.put(b"k", b"x")
    faulty = FaultyOrigin(memory)
    slow = SlowOrigin(faulty)
    gate = slow.hold(operation)
    failed = []
    async with trio.open_nursery() as nursery:
        admission = Admission(4, 1, MIB, lambda _n: None)
        requests = Requests(slow, admission, SingleFlight(nursery))

        async def ask():
            try:
                await getattr(requests, operation)(b"k")
            except OriginUnavailableError:
                failed.append(1)

        faulty.fail(operation, OriginUnavailableError("503"), times=1)
        async with trio.open_nursery() as askers:
            for _ in range(64):
                askers.start_soon(ask)
            await gate.arrived()
            gate.release()
        assert len(failed) == 64
        assert faulty.calls[operation] == 1
        await ask()
        assert len(failed) == 64
        assert admission.connections_used == 0


async def test_e11_a_killed_leader_does_not_take_the_answer_away():
    memory = MemoryOrigin()
    memory.put(b"k", b"x")
    slow = SlowOrigin(memory)
    gate = slow.hold("head")
    async with trio.open_nursery() as nursery:
        requests = Requests(slow, Admission(4, 1, MIB, lambda _n: None), SingleFlight(nursery))
        answers, leader = [], trio.CancelScope()

        async def lead():
            with leader:
                await requests.head(b"k")

        async def follow():
            answers.append(await requests.head(b"k"))

        async with trio.open_nursery() as askers:
            askers.start_soon(lead)
            await gate.arrived()
            askers.start_soon(follow)
            await trio.testing.wait_all_tasks_blocked()
            leader.cancel()
            gate.release()
        assert answers[0].key == b"k" and memory.count("head") == 1


async def test_fewer_connections_let_nobody_in_until_enough_are_free():
    admission = Admission(4, 0, MIB, lambda _n: None)
    held = [admission.request(Priority.DEMAND, 0) for _ in range(4)]
    admission.resize(2)
    waiting = admission.request(Priority.DEMAND, 0)
    for _ in held[:2]:
        admission.release_connection()
        assert not waiting.granted
    admission.release_connection()
    assert waiting.granted


async def test_with_few_connections_prefetch_still_gets_one():
    admission = Admission(2, 4, MIB, lambda _n: None)
    assert admission.request(Priority.PREFETCH, 0).granted
    assert not admission.request(Priority.PREFETCH, 0).granted
    assert admission.request(Priority.DEMAND, 0).granted


@contextmanager
def little_memory(nbytes):
    """The system gives this process no more than *nbytes* of address space."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


async def test_refused_memory_fails_its_readers_and_nobody_else():
    async with world(**ONE) as w:
        a, b = w.file(b"a", 8 * MIB), w.file(b"b", 8 * MIB)
        with trio.fail_after(5):
            with little_memory(4 * MIB), pytest.raises(OutOfMemoryError):
                await w.fetcher.read(a, 0, 8 * MIB)
            check(await w.fetcher.read(b, MIB, MIB), MIB)
            check(await w.fetcher.read(a, MIB, MIB), MIB)
        w.fetcher.release_idle()
        assert w.fetcher.admission.memory_used == 0
        assert w.fetcher.admission.connections_used == 0
