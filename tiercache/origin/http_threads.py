"""Threads that receive large bodies, for tasks and for exchanges without one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import outcome
import trio

from tiercache.errors import OriginUnavailableError

T = TypeVar("T")


class _Job(NamedTuple):
    work: Callable[[], Any]
    done: Callable[[outcome.Outcome[Any]], None]


class ReceiveThreads:
    """At most *count* at a time; what is more waits in order. On the loop, but for the work."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[_Job] = deque()

    def start(
        self, work: Callable[[], T], done: Callable[[outcome.Outcome[T]], None]
    ) -> Callable[[], bool]:
        """Run *work* in a thread when one is free, then *done* on the loop, which must not raise.

        The result takes it back: False when it has begun.
        """
        job = _Job(work, done)
        self._waiting.append(job)
        self._start_next()

        def withdraw() -> bool:
            waits = job in self._waiting
            if waits:
                self._waiting.remove(job)
            return waits

        return withdraw

    async def run(self, work: Callable[[], T], cut: Callable[[], None]) -> T:
        """The result of *work*. Cancelled, it calls *cut*, which ends the work, and awaits that."""
        task = trio.lowlevel.current_task()

        def done(result: outcome.Outcome[T]) -> None:
            trio.lowlevel.reschedule(task, outcome.Value(result))

        withdraw = self.start(work, done)

        def abort(_: object) -> trio.lowlevel.Abort:
            if withdraw():
                return trio.lowlevel.Abort.SUCCEEDED
            cut()
            return trio.lowlevel.Abort.FAILED

        result: outcome.Outcome[T] = await trio.lowlevel.wait_task_rescheduled(abort)
        await trio.lowlevel.checkpoint_if_cancelled()
        return result.unwrap()

    def _start_next(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._start(self._waiting.popleft())

    def _start(self, job: _Job) -> None:
        token = trio.lowlevel.current_trio_token()

        def over(result: outcome.Outcome[Any]) -> None:
            self._free += 1
            job.done(result)
            self._start_next()

        def deliver(result: outcome.Outcome[Any]) -> None:
            token.run_sync_soon(over, result)

        try:
            trio.lowlevel.start_thread_soon(job.work, deliver, "tiercache-receive")
        except RuntimeError as error:  # the system has none left
            deliver(outcome.Error(OriginUnavailableError(f"cannot receive: {error}")))
