"""The origins that fail and dawdle do it when told, and only then."""

from __future__ import annotations

import pytest
import trio

from tiercache.errors import ObjectNotFoundError, OriginUnavailableError
from tiercache.testing.data import check
from tiercache.testing.faulty import FaultyOrigin, SlowOrigin
from tiercache.testing.memory import MemoryOrigin

SIZE = 1_000_000
RESET = OriginUnavailableError("reset")


@pytest.fixture
def memory():
    memory = MemoryOrigin()
    memory.put_pattern(b"k", SIZE)
    memory.put_pattern(b"other", SIZE)
    return memory


async def read(origin, memory, seen=None):
    into = memoryview(bytearray(SIZE))
    progress = None if seen is None else seen.append
    await origin.get_range(b"k", memory.info(b"k").etag, 0, into, progress)
    check(into)


async def test_the_nth_call_fails_so_many_times(memory):
    origin = FaultyOrigin(memory)
    origin.fail("head", RESET, nth=2, times=2)
    await origin.head(b"k")
    for _ in range(2):
        with pytest.raises(OriginUnavailableError):
            await origin.head(b"k")
    await origin.head(b"k")
    assert (origin.calls["head"], origin.failures["head"]) == (4, 2)


async def test_a_failure_may_be_for_one_key(memory):
    origin = FaultyOrigin(memory)
    origin.fail("head", ObjectNotFoundError("gone"), key=b"k", times=None)
    await origin.head(b"other")
    for _ in range(3):
        with pytest.raises(ObjectNotFoundError):
            await origin.head(b"k")
    origin.heal()
    await origin.head(b"k")


async def test_a_read_fails_after_so_many_bytes(memory):
    origin = FaultyOrigin(memory)
    origin.fail("get_range", RESET, after_bytes=300_001)
    seen = []
    with pytest.raises(OriginUnavailableError):
        await read(origin, memory, seen)
    assert seen[-1] == 300_001
    await read(origin, memory)


async def test_every_operation_can_fail(memory):
    origin = FaultyOrigin(memory)
    calls = {
        "check": origin.check,
        "list": lambda: origin.list(b""),
        "head": lambda: origin.head(b"k"),
        "get_range": lambda: read(origin, memory),
    }
    for operation, call in calls.items():
        origin.fail(operation, RESET)
        with pytest.raises(OriginUnavailableError):
            await call()
        await call()


async def test_latency_and_bandwidth_are_trios_time(memory, autojump_clock):
    origin = SlowOrigin(memory, latency_s=10, bytes_per_s=SIZE / 100)
    started = trio.current_time()
    await origin.head(b"k")
    assert trio.current_time() - started == pytest.approx(10)
    await read(origin, memory)
    assert trio.current_time() - started == pytest.approx(10 + 110)


async def test_a_gate_holds_calls_until_released(memory):
    origin = SlowOrigin(memory)
    gate = origin.hold("get_range")
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(read, origin, memory)
        await gate.arrived(3)
        assert memory.count("get_range") == 0
        gate.release()
    assert memory.count("get_range", b"k") == 3
    await read(origin, memory)


async def test_a_gate_may_stand_in_the_middle_of_a_body(memory):
    origin = SlowOrigin(memory)
    gate = origin.hold("get_range", after_bytes=300_001)
    seen = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, origin, memory, seen)
        await gate.arrived()
        assert seen[-1] == 300_001
        gate.release()
    assert seen == sorted(seen)
    assert seen[-1] == SIZE


async def test_a_cancelled_call_leaves_the_gate(memory):
    origin = SlowOrigin(memory)
    gate = origin.hold("head")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(origin.head, b"k")
        await gate.arrived()
        nursery.cancel_scope.cancel()
    assert gate.waiting == 0
