"""What a holder waits for: signals, messages of its worker, the worker's end, a deadline.

One `poll` over two descriptors and no thread: signals arrive through the interpreter's wake-up
pipe, the end of the worker as SIGCHLD, so this works on kernels without pidfd. Standard library
only.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from types import FrameType
from typing import NamedTuple, TypeAlias

from tiercache.fuse.link import Message
from tiercache.fuse.workerprocess import WorkerProcess

#: Signals that are events; SIGCHLD only wakes up.
_TOLD = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

_CAUGHT = (*_TOLD, signal.SIGCHLD)


class Signalled(NamedTuple):
    """Somebody wants the mount to end."""

    signum: int


class ReloadAsked(NamedTuple):
    """Somebody changed the configuration (SIGHUP)."""


class Said(NamedTuple):
    """The worker sent a message."""

    message: Message


class Ended(NamedTuple):
    """The worker is gone; *status* is negative for a signal."""

    status: int


Event: TypeAlias = Signalled | ReloadAsked | Said | Ended


class Events:
    """The one thing a holder waits on. One per process, before any worker is started."""

    def __init__(self) -> None:
        self._pipe, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._signals: deque[int] = deque()
        for signum in _CAUGHT:
            signal.signal(signum, _noted)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def next(self, worker: WorkerProcess | None, deadline: float) -> Event | None:
        """Wait for the next event; None when *deadline* (monotonic) comes first.

        The last messages of a worker come before its end, which is told once.
        """
        while True:
            event = self._pending(worker)
            if event is not None:
                return event
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._wait(worker, left)

    def _pending(self, worker: WorkerProcess | None) -> Event | None:
        self._drain()
        if self._signals:
            signum = self._signals.popleft()
            return ReloadAsked() if signum == signal.SIGHUP else Signalled(signum)
        if worker is None:
            return None
        # In this order, or what was sent just before the end would be lost.
        status = worker.exit_status()
        message = worker.receive_nowait()
        if message is not None:
            return Said(message)
        return None if status is None else Ended(status)

    def _drain(self) -> None:
        try:
            self._signals.extend(n for n in os.read(self._pipe, 4096) if n in _TOLD)
        except BlockingIOError:
            return

    def _wait(self, worker: WorkerProcess | None, left: float) -> None:
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        if worker is not None and worker.link_open:
            poll.register(worker.link.fileno(), select.POLLIN)
        # An endless deadline is an infinite float, which poll spells None.
        poll.poll(None if left == float("inf") else left * 1000 + 1)


def _noted(_signum: int, _frame: FrameType | None) -> None:
    """The wake-up pipe has it; a handler must exist for the pipe to be written."""
