"""One ranged GET that several readers share while it fills.

Bytes count for readers as soon as they are received from a checked reply; full blocks go to the
tier right after, on the thread that received them. A reader waits for its own bytes only.

Two threads meet here: `_on_progress` may run on a pool thread, everything else on the loop. The
thread writes `filled` and then reads `_wake_at`; a waiter writes `_wake_at` and then reads `filled`
again. Whoever comes second sees the other, so no wake-up is lost.
"""

from __future__ import annotations

import enum
import sys

import trio

from tiercache.errors import BypassedError, TierCacheError
from tiercache.tier.store import Reservation
from tiercache.transfer.admission import Ticket
from tiercache.types import BLOCK_SIZE, Inode, Priority

_NEVER = sys.maxsize


class Reason(enum.StrEnum):
    """Why bytes were fetched."""

    DEMAND = "demand"
    READAHEAD = "readahead"
    NEXT = "next"
    TAIL = "tail"
    PLAN = "plan"
    WARM = "warm"
    FILL = "fill"

    @property
    def spares(self) -> bool:
        """Whether it is not worth a request unless a tier takes it."""
        return self in (Reason.WARM, Reason.FILL)


class Fetch:
    """Blocks [first, end) of one object version on their way in.

    `readers` counts who looks at the buffer; it is recycled when the fetch is over and nobody does.
    `ticket` is its place in the queue, `first_byte_at` when the reply came (on trio's clock).
    """

    __slots__ = (
        "_changed",
        "_clock",
        "_landed",
        "_token",
        "_wake_at",
        "_written",
        "awaiting",
        "buffer",
        "end",
        "error",
        "filled",
        "first",
        "first_byte_at",
        "obj",
        "over",
        "readers",
        "reason",
        "reservation",
        "shared",
        "size",
        "start",
        "ticket",
        "writes_inline",
    )

    ticket: Ticket

    def __init__(self, obj: Inode, first: int, end: int, reason: Reason) -> None:
        self.obj = obj
        self.first = first
        self.start = first * BLOCK_SIZE
        self.extend(end)
        self.reason = reason
        self.first_byte_at: float | None = None
        self.buffer: memoryview | None = None
        self.reservation: Reservation | None = None
        self.writes_inline = False
        self.filled = 0
        self.readers = 0
        self.awaiting = 0  # who is to wait for it to land
        self.shared = False  # others rely on it too, for another reason
        self.over = False
        self.error: TierCacheError | None = None
        self._changed = trio.Event()
        self._landed = trio.Event()
        self._wake_at = _NEVER
        self._written = 0
        self._clock = trio.lowlevel.current_clock()
        self._token = trio.lowlevel.current_trio_token()

    def extend(self, end: int) -> None:
        """Let it go up to block *end*. Only before it starts."""
        self.end = end
        self.size = min(end * BLOCK_SIZE, self.obj.size) - self.start

    def progress(self, filled: int) -> None:
        """Note that *filled* bytes are here; on any thread."""
        if self.first_byte_at is None:
            self.first_byte_at = self._clock.current_time()
        self.filled = filled
        if filled >= self._wake_at:
            self._token.run_sync_soon(self._wake, idempotent=True)
        if self.writes_inline:
            self.write_blocks()

    def write_blocks(self) -> None:
        """Hand every full block not yet written to the tier; on any thread, one at a time."""
        reservation, buffer = self.reservation, self.buffer
        if reservation is None or buffer is None:
            return
        while self._written < self.filled:
            stop = min(self._written + BLOCK_SIZE, self.size)
            if stop > self.filled:
                return
            block = self.first + self._written // BLOCK_SIZE
            if not reservation.write(block, buffer[self._written : stop]):
                self.writes_inline = False
                return
            self._written = stop

    def finish(self, error: TierCacheError | None = None) -> None:
        """No more bytes will come."""
        self.error = error
        self.over = True
        self._wake()

    def land(self) -> None:
        """What becomes of its bytes is settled."""
        self._landed.set()

    async def landed(self) -> None:
        """Until its bytes are in a tier or surely not."""
        await self._landed.wait()

    @property
    def wanted(self) -> bool:
        """Whether a reader waits for it, or is about to."""
        return bool(self.readers) or self.ticket.priority <= Priority.DEMAND

    @property
    def refused(self) -> TierCacheError | None:
        """What the origin ended it with, if it did: not that no tier took what no reader wants."""
        return None if isinstance(self.error, BypassedError) else self.error

    def covers(self, offset: int, end: int) -> bool:
        """Whether bytes [offset, end) all lie in this fetch."""
        return self.start <= offset and end <= self.start + self.size

    async def wait(self, end: int) -> None:
        """Until the bytes up to object offset *end* are here.

        Raises what the transfer failed with, unless the bytes had come before.
        """
        need = end - self.start
        while self.filled < need:
            if self.over:
                raise self.error or TierCacheError("fetch ended early")
            changed = self._changed
            self._wake_at = min(self._wake_at, need)
            if self.filled >= need:
                return
            await changed.wait()

    def view(self, offset: int, end: int) -> memoryview:
        """The bytes [offset, end) of the object; they must be here."""
        assert self.buffer is not None
        return self.buffer[offset - self.start : end - self.start]

    def _wake(self) -> None:
        self._wake_at = _NEVER
        changed, self._changed = self._changed, trio.Event()
        changed.set()
