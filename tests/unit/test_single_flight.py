"""Equal questions share one request, which lives as long as somebody waits for it."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tiercache.transfer.requests import SingleFlight


class Question:
    """Counts how often it is asked, and how often it is given up."""

    def __init__(self, error=None):
        self.asked = self.abandoned = 0
        self.answer = trio.Event()
        self._error = error

    async def __call__(self):
        self.asked += 1
        try:
            await self.answer.wait()
        except trio.Cancelled:
            self.abandoned += 1
            raise
        if self._error:
            raise self._error
        return 42


async def test_one_run_for_all_who_ask():
    question, got = Question(), []
    async with trio.open_nursery() as nursery:
        flights = SingleFlight(nursery)

        async def ask():
            got.append(await flights.do("key", question))

        for _ in range(5):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        question.answer.set()
    assert (got, question.asked) == ([42] * 5, 1)


async def test_its_error_is_everybodys():
    question = Question(ValueError("no"))
    question.answer.set()
    async with trio.open_nursery() as nursery:
        flights = SingleFlight(nursery)
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                await flights.do("key", question)
    assert question.asked == 2


async def test_it_goes_on_while_one_of_them_waits():
    question = Question()
    async with trio.open_nursery() as nursery:
        flights = SingleFlight(nursery)
        impatient = trio.CancelScope()

        async def leave():
            with impatient:
                await flights.do("key", question)

        nursery.start_soon(leave)
        await wait_all_tasks_blocked()
        nursery.start_soon(flights.do, "key", question)
        await wait_all_tasks_blocked()
        impatient.cancel()
        await wait_all_tasks_blocked()
        assert (question.asked, question.abandoned) == (1, 0)
        question.answer.set()


async def test_it_ends_when_nobody_waits_any_more():
    question = Question()
    async with trio.open_nursery() as nursery:
        flights = SingleFlight(nursery)
        with trio.move_on_after(0.01):
            await flights.do("key", question)
        await wait_all_tasks_blocked()
        assert (question.asked, question.abandoned) == (1, 1)
        question.answer.set()
        assert await flights.do("key", question) == 42
    assert question.asked == 2
