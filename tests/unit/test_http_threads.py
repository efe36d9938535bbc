"""Threads that receive: so many at a time, in order, and none left behind by a cancelled task."""

from __future__ import annotations

import itertools
import threading

import pytest
import trio
import trio.testing

from tiercache.errors import OriginUnavailableError
from tiercache.origin.http_threads import ReceiveThreads


class Work:
    """Blocks in its thread until `gate` is set."""

    def __init__(self, result=None):
        self.gate = threading.Event()
        self.began = False
        self.result = result

    def __call__(self):
        self.began = True
        assert self.gate.wait(20)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


async def begun(*work):
    with trio.fail_after(10):
        while not all(each.began for each in work):
            await trio.testing.wait_all_tasks_blocked(0.005)


async def test_so_many_run_and_the_rest_waits_in_order():
    threads, works, results = ReceiveThreads(2), [Work(i) for i in range(5)], []
    over = trio.Event()

    def done(result):
        results.append(result.unwrap())
        if len(results) == len(works):
            over.set()

    for work in works:
        threads.start(work, done)
    for number in range(4):
        await begun(works[number], works[min(number + 1, 4)])
        assert [work.began for work in works[number + 2 :]] == [False] * (3 - number)
        works[number].gate.set()
    works[4].gate.set()
    with trio.fail_after(10):
        await over.wait()
    assert sorted(results) == [0, 1, 2, 3, 4]


async def test_what_has_not_begun_can_be_taken_back():
    threads, first, second, results = ReceiveThreads(1), Work(1), Work(2), []
    keep = threads.start(first, results.append)
    withdraw = threads.start(second, results.append)
    await begun(first)
    assert not keep()
    assert withdraw()
    assert not withdraw()
    first.gate.set()
    assert await threads.run(lambda: 3, lambda: None) == 3
    assert [result.unwrap() for result in results] == [1]
    assert not second.began


async def test_a_task_gets_the_result_or_the_error():
    threads = ReceiveThreads(1)
    assert await threads.run(lambda: 7, lambda: None) == 7
    failing = Work(OSError("broken"))
    failing.gate.set()
    with pytest.raises(OSError, match="broken"):
        await threads.run(failing, lambda: None)


@pytest.fixture
def no_thread(monkeypatch):
    """The starts of threads, by number, that fail."""
    real, failing, started = trio.lowlevel.start_thread_soon, set(), itertools.count(1)

    def start(work, deliver, name=None):
        if next(started) in failing:
            raise RuntimeError("can't start new thread")
        real(work, deliver, name)

    monkeypatch.setattr(trio.lowlevel, "start_thread_soon", start)
    return failing


@pytest.mark.parametrize("number", [1, 2])
async def test_a_thread_that_cannot_be_had_is_an_error_and_no_lost_place(no_thread, number):
    no_thread.add(number)
    threads, results = ReceiveThreads(1), []
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            async def one():
                try:
                    results.append(await threads.run(lambda: 7, lambda: None))
                except OriginUnavailableError as error:
                    results.append(str(error))

            for _ in range(4):
                nursery.start_soon(one)
    assert sorted(map(str, results)) == ["7", "7", "7", "cannot receive: can't start new thread"]


async def test_a_cancelled_task_ends_its_work_or_takes_it_back():
    threads, running, queued = ReceiveThreads(1), Work(), Work()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(threads.run, running, running.gate.set)
        await begun(running)
        nursery.start_soon(threads.run, queued, queued.gate.set)
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    assert running.gate.is_set()
    assert not queued.began
    assert not queued.gate.is_set()
    assert await threads.run(lambda: 1, lambda: None) == 1
