"""One recording of a mount's uses: collected on the loop, written by a thread."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any, BinaryIO, Final

import trio

from tiercache.simulation.blocks import BlockBuilder
from tiercache.simulation.tracefile import HEADER

log = logging.getLogger(__name__)

#: Blocks that wait for the disk at most: about a MiB each.
_WAITING_MAX: Final = 16

#: A block that is not full is written after so many seconds: what a killed worker loses.
_FLUSH_S: Final = 5.0

#: Seconds the last blocks may take when the mount ends.
_END_S: Final = 5.0


class Recording:
    """A trace file from its first use to its end.

    When the disk is too slow, uses are dropped and counted, never waited for. When it fails, or
    *limit* bytes are reached, the recording ends.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.over = trio.Event()
        self.ended: str | None = None
        self._limit = limit
        self._block = BlockBuilder()
        self._send, self._receive = trio.open_memory_channel[BlockBuilder](_WAITING_MAX)
        self._uses = self._dropped = self._bytes = 0
        self._writable = True

    def use(self, time_ms: int, item: int, size: int, group: int) -> None:
        """Note one use."""
        if self.ended is not None:
            return
        if not self._block.add(time_ms, item, size, group):
            self._hand_over()
            self._block.add(time_ms, item, size, group)
        self._uses += 1

    def _hand_over(self) -> None:
        block, self._block = self._block, BlockBuilder()
        try:
            self._send.send_nowait(block)
        except trio.WouldBlock:
            self._dropped += len(block)

    def end(self, why: str) -> None:
        """No more uses. What is collected is still written; `over` is set then."""
        if self.ended is None:
            self.ended = why
            self._hand_over()
            self._send.close()

    async def run(self, file: BinaryIO) -> None:
        """Write what is collected until the end, then close *file*."""
        try:
            await self._drain(file)
        finally:
            self.end("the mount ended")
            with trio.move_on_after(_END_S, shield=True):
                await self._drain(file)
                await trio.to_thread.run_sync(_close, file, abandon_on_cancel=True)
            self._discard()
            self.over.set()

    async def _drain(self, file: BinaryIO) -> None:
        while self._writable and (block := await self._next()) is not None:
            if len(block):
                await self._write(file, block)

    async def _next(self) -> BlockBuilder | None:
        """A full block, or what there is after a while; None at the end."""
        with trio.move_on_after(_FLUSH_S):
            try:
                return await self._receive.receive()
            except trio.EndOfChannel:
                return None
        block, self._block = self._block, BlockBuilder()
        return block

    async def _write(self, file: BinaryIO, block: BlockBuilder) -> None:
        try:
            encoded = await trio.to_thread.run_sync(block.encode, abandon_on_cancel=True)
            if len(HEADER) + self._bytes + len(encoded) > self._limit:
                self._give_up("the limit is reached", block)
                return
            await trio.to_thread.run_sync(_append, file, encoded, abandon_on_cancel=True)
        except OSError as error:
            log.warning("the recording of uses ends: %s: %s", self.path, error.strerror)
            self._give_up(f"failed: {error.strerror}", block)
        else:
            self._bytes += len(encoded)

    def _give_up(self, why: str, block: BlockBuilder) -> None:
        self._dropped += len(block)
        self._writable = False
        self.end(why)

    def _discard(self) -> None:
        """Count what will never be written."""
        with contextlib.suppress(trio.EndOfChannel):
            while True:
                self._dropped += len(self._receive.receive_nowait())

    def status(self) -> dict[str, Any]:
        """Facts for `tiercache status`. `bytes` are in the file, `dropped` uses never will be."""
        return {
            "file": str(self.path),
            "recording": self.ended is None,
            "ended": self.ended,
            "uses": self._uses,
            "dropped": self._dropped,
            "bytes": self._bytes + len(HEADER),
            "limit": self._limit,
        }


def _append(file: BinaryIO, encoded: bytes) -> None:
    file.write(encoded)
    file.flush()


def _close(file: BinaryIO) -> None:
    with contextlib.suppress(OSError):  # after a failed write, what is buffered fails again
        file.close()
