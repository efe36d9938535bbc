"""The raw driver: serves a mount by reading and writing `/dev/fuse` itself.

One trio task reads requests until the device would block, answers what the tree answers at once
right there, and spawns a task for what must wait; INTERRUPT cancels such a task. A hot request
costs one read, one look into a table of methods (`handlers`), one call of the tree and one write.

The round trip through trio's selector costs more than a request. So the loop lingers: a request
that follows within microseconds is picked up at once. How long it lingers adapts to whether that
pays, other tasks get their turn every millisecond, and an idle mount sleeps in the selector.

Inode numbers are the tree's own and outlive any cache, so FORGET has nothing to free and is
ignored, and the handle of an open file is its inode number: a new worker serves handles that the
old one gave out, after it has asked the kernel to send again what the old one left unanswered.
"""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, TypeVar

import trio

from tiercache.config import MountConfig
from tiercache.errors import TierCacheError
from tiercache.fuse.bugs import Bugs, innermost
from tiercache.fuse.handlers import Handler, Handlers
from tiercache.fuse.invalidate import Invalidator
from tiercache.fuse.opens import Backings, Opens, OpenTable
from tiercache.fuse.protocol import (
    HEADER_SIZE,
    IN_HEADER_START,
    INTERRUPT_IN,
    MIN_READ_BUFFER,
    Opcode,
    pack_error,
    pack_resend,
)
from tiercache.fuse.session import Session
from tiercache.vfs.api import Filesystem

T = TypeVar("T")

#: Requests are read into this much. FORGETs come in batches, everything else is small.
_BUFFER = max(64 << 10, MIN_READ_BUFFER)

#: Longest time the loop serves before other tasks get their turn.
_BURST_S = 0.001

#: A sleep shorter than this was not worth its price, about 40 us of going to bed and getting up.
_NAP_S = 150e-6

#: How long the loop looks for a next request before it sleeps, where that pays.
_LINGER_MIN_S = 10e-6
_LINGER_MAX_S = 80e-6

#: Opcodes from here on are unknown and counted as one.
_OPCODES = max(Opcode) + 1


class _Device(enum.Enum):
    """How a burst of requests ended."""

    IDLE = enum.auto()
    BUSY = enum.auto()
    GONE = enum.auto()


class KernelDriver:
    """Serves *fs* on the mounted device *dev_fd*, whose INIT is done (*session*).

    *opens_fd* is the memfd of the table of open files; *restarted* tells that a worker before us
    served this mount.
    """

    def __init__(
        self,
        fs: Filesystem,
        dev_fd: int,
        session: Session,
        opens_fd: int,
        config: MountConfig,
        *,
        restarted: bool = False,
    ) -> None:
        self._dev = dev_fd
        self._session = session
        self._restarted = restarted
        self._buffer = bytearray(_BUFFER)
        self._backings = Backings(dev_fd, session.reason)
        self._opens = Opens(fs, OpenTable(opens_fd), self._backings, idle_max=config.backing_max)
        self._invalidator = Invalidator(dev_fd)
        fs.on_invalidate(self._invalidator.invalidate)
        self._handlers = Handlers(fs, dev_fd, self._buffer, self._opens, self._later)
        self._table: list[Handler] = [self._handlers.unsupported] * _OPCODES
        for opcode, handler in self._handlers.table().items():
            self._table[opcode] = handler
        self._table[Opcode.INTERRUPT] = self._interrupt
        self._counts = [0] * _OPCODES
        self._waiting: dict[int, trio.CancelScope] = {}
        self._linger_s = 0.0
        self._bugs = Bugs()
        self._nursery: trio.Nursery | None = None

    def status(self) -> dict[str, Any]:
        """Facts for `status` and metrics; counters since this worker started."""
        return {
            "requests": {op.name.lower(): self._counts[op] for op in Opcode if self._counts[op]},
            "in_flight": len(self._waiting),
            "passthrough": not self._backings.reason,
            "passthrough_reason": self._backings.reason,
            "passthrough_opens": self._opens.passthrough_opens,
            "cached_opens": self._opens.cached_opens,
            "spliced_replies": self._handlers.splicer.replies,
            "open_inodes": self._opens.tracked,
            "idle_registrations": self._opens.registered_idle,
            "invalidations_skipped": self._invalidator.overflows,
            "bugs": self._bugs.seen,
            "max_background": self._session.max_background,
            "readahead": self._session.readahead,
        }

    async def run(self) -> None:
        """Serve until the mount is gone. Cancelled, it leaves waiting requests unanswered."""
        os.set_blocking(self._dev, False)
        if self._restarted and self._session.resend:
            os.write(self._dev, pack_resend())
        self._invalidator.start()
        try:
            async with trio.open_nursery() as self._nursery:
                await self._serve()
                self._nursery.cancel_scope.cancel()
        finally:
            self._invalidator.stop()
            self._handlers.splicer.close()

    async def _serve(self) -> None:
        while (device := self._burst()) is not _Device.GONE:
            if device is _Device.IDLE:
                since = perf_counter()
                await trio.lowlevel.wait_readable(self._dev)
                self._learn(perf_counter() - since)
            else:
                await trio.lowlevel.checkpoint()

    def _learn(self, slept_s: float) -> None:
        """Look a little longer before the next sleep when this one was hardly worth it."""
        if slept_s < _NAP_S:
            self._linger_s = min(max(2 * self._linger_s, _LINGER_MIN_S), _LINGER_MAX_S)
        else:
            self._linger_s /= 2

    def _burst(self) -> _Device:
        """Handle requests until none comes for a while or others must run.

        While others wait for their data nothing but the device would be looked at: no lingering.
        """
        dev, buffers = self._dev, [self._buffer]
        readv, unpack, waiting = os.readv, IN_HEADER_START.unpack_from, self._waiting
        now = perf_counter()
        ends, patience = now + _BURST_S, now + self._linger_s
        while True:
            try:
                length = readv(dev, buffers)
            except BlockingIOError:
                if not waiting and perf_counter() < patience:
                    continue
                return _Device.IDLE
            except OSError as error:
                if _unmounted(error):
                    return _Device.GONE
                continue  # the caller gave up before we got it
            _, opcode, unique, ino = unpack(self._buffer)
            self._handle(opcode, unique, ino, length)
            now = perf_counter()
            if now > ends:
                return _Device.BUSY
            patience = now + self._linger_s

    def _handle(self, opcode: int, unique: int, ino: int, length: int) -> None:
        """Answer one request, whatever happens."""
        if opcode >= _OPCODES:
            opcode = 0
        self._counts[opcode] += 1
        try:
            self._table[opcode](unique, ino, length)
        except Exception as error:  # noqa: BLE001 - the mount outlives every bug
            self._fail(unique, Opcode(opcode).name if opcode else "unknown request", error)

    def _fail(self, unique: int, request: str, error: Exception) -> None:
        """Answer with the errno of *error*; what is not of our family is a bug."""
        cause = innermost(error)
        if isinstance(cause, TierCacheError):
            number = cause.errno
        else:
            number = errno.EIO
            self._bugs.report(request, error)
        self._handlers.write(pack_error(unique, number))

    def _later(self, unique: int, result: Awaitable[T], send: Callable[[int, T], None], /) -> None:
        assert self._nursery is not None
        self._waiting[unique] = scope = trio.CancelScope()
        self._nursery.start_soon(self._wait, unique, scope, result, send)

    async def _wait(
        self,
        unique: int,
        scope: trio.CancelScope,
        result: Awaitable[T],
        send: Callable[[int, T], None],
    ) -> None:
        """Send *result* when it is there; EINTR when the caller lost its patience."""
        try:
            with scope:
                send(unique, await result)
                return
            self._handlers.write(pack_error(unique, errno.EINTR))
        except Exception as error:  # noqa: BLE001 - the mount outlives every bug
            self._fail(unique, "waiting request", error)
        finally:
            del self._waiting[unique]

    def _interrupt(self, _unique: int, _ino: int, _length: int) -> None:
        """The caller of a request was killed. No reply is due to the interrupt itself."""
        (unique,) = INTERRUPT_IN.unpack_from(self._buffer, HEADER_SIZE)
        scope = self._waiting.get(unique)
        if scope is not None:
            scope.cancel()


def _unmounted(error: OSError) -> bool:
    """Whether reading the device failed because the mount is gone; raises what nobody expects."""
    if error.errno == errno.ENODEV:
        return True
    if error.errno in (errno.ENOENT, errno.EINTR):
        return False
    raise error
