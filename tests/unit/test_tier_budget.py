"""What flash may be written in a day, and how many threads a disk gets."""

import threading

import pytest
import trio

from tiercache.testing.tiers import Cache, body, file
from tiercache.tier.budget import WriteBudget
from tiercache.tier.system import System
from tiercache.types import MIB

DAY_S = 86400


def test_budget_is_per_day():
    budget = WriteBudget(100)
    assert budget.allows(100, 0.0)
    budget.spend(60, 0.0)
    assert budget.allows(40, DAY_S - 1)
    assert not budget.allows(41, DAY_S - 1)
    assert budget.allows(100, DAY_S)


def test_no_budget_is_no_limit():
    budget = WriteBudget(0)
    budget.spend(1 << 60, 0.0)
    assert budget.allows(1 << 60, 0.0)


@pytest.mark.parametrize("record", [None, b"", b"short"])
def test_damaged_count_is_ignored(record):
    budget = WriteBudget(100)
    budget.restore(record)
    assert budget.allows(100, 0.0)


def test_newcomers_bypass_a_tier_that_was_written_enough(tmp_path):
    cache = Cache(tmp_path, (1,), write_budget_per_day=5 * MIB)
    one, two, three = (file(ino, 2 * MIB) for ino in (7, 8, 9))
    assert cache.put(one)
    assert cache.put(two)
    assert not cache.put(three)
    (tier,) = cache.store.status()
    assert tier["bypass_reasons"] == {"write budget": 1}
    cache.restart()
    assert not cache.put(three), "a restart forgets nothing"
    cache.clock.now += DAY_S
    assert cache.put(three)
    cache.store.close()


class Counting(System):
    """Knows how many threads were in one call at once."""

    def __init__(self):
        self.now = {"pwrite": 0, "preadv": 0}
        self.most = {"pwrite": 0, "preadv": 0}
        self.lock = threading.Lock()

    def _counted(self, name, function, *args):
        with self.lock:
            self.now[name] += 1
            self.most[name] = max(self.most[name], self.now[name])
        threading.Event().wait(0.002)  # long enough for others to come in if they could
        try:
            return function(*args)
        finally:
            with self.lock:
                self.now[name] -= 1

    def pwrite(self, *args):
        return self._counted("pwrite", System.pwrite, *args)

    def preadv(self, *args):
        return self._counted("preadv", System.preadv, *args)


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (2, 2)])
async def test_io_slots_bound_reads_and_writes(tmp_path, slots, most):
    system = Counting()
    cache = Cache(tmp_path, (1,), system=system, io_slots=slots)
    objects = [file(ino, MIB) for ino in range(7, 15)]
    reservations = [(cache.store.reserve(obj, 0, 1), obj) for obj in objects]
    async with trio.open_nursery() as nursery:
        for reservation, obj in reservations:
            nursery.start_soon(trio.to_thread.run_sync, reservation.write, 0, body(obj, 0))
    for reservation, _obj in reservations:
        reservation.commit()
        reservation.close()
    async with trio.open_nursery() as nursery:
        for obj in objects:
            nursery.start_soon(cache.get, obj)
    assert system.most == {"pwrite": most, "preadv": most}
    cache.store.close()
