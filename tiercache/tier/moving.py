"""Moves local copies from tier to tier such that the bytes are never lost on the way.

    1. room is promised at the target
    2. the resident blocks are copied there, each checked against its checksum, and made durable
    3. one batch of the catalog names the new file instead of the old one
    4. the old file is unlinked, never changed: the kernel may still read it for open handles

Until 3 the old copy counts and the new file belongs to nobody: after a crash the audit unlinks it.
From 3 on the new copy counts. What changes the old copy meanwhile (a block that arrives or is
dropped, an eviction, another writer) ends the move; the copy is thrown away.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TypeVar

import trio
import xxhash

from tiercache.tier.files import OpenFiles
from tiercache.tier.layout import PAGE, allocated
from tiercache.tier.limits import Surroundings
from tiercache.tier.place import Place
from tiercache.tier.removal import Removal
from tiercache.tier.residency import Residency
from tiercache.tier.system import System, close, read_whole, write_all
from tiercache.tier.table import Table
from tiercache.types import BLOCK_SIZE, block_span

Result = TypeVar("Result")

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE = 0o600

#: Blocks copied in one thread hop: long enough to be sequential on a spinning disk.
_CHUNK = 8

#: Told after each chunk how many bytes were copied and how long that took; waits as it likes.
Pace = Callable[[int, float], Awaitable[None]]


class CorruptBlockError(Exception):
    """A block is not what its checksum says; carries its number. Never leaves this package."""

    def __init__(self, block: int) -> None:
        super().__init__(f"block {block}")
        self.block = block


class Copy:
    """The file at the target. Its methods run in threads, one at a time."""

    def __init__(self, item: Residency, target: Place, system: System) -> None:
        self._system = system
        self._size = item.size
        self._name = item.name
        self._target = target
        self.present = bytearray(item.present)
        self.sums: array[int] = item.sums[:]
        self.fd = -1
        self.nbytes = copy_size(item)

    def begin(self) -> None:
        """Create the file, as long as the object."""
        path = self._target.data(self._name)
        with self._blaming_target():
            with contextlib.suppress(FileNotFoundError):
                self._system.unlink(path)  # what a move left behind that was killed
            try:
                self.fd = self._system.open(path, _CREATE, _MODE)
            except FileNotFoundError:
                self._target.make_shard(self._name)
                self.fd = self._system.open(path, _CREATE, _MODE)
            self._system.ftruncate(self.fd, self._size)

    def copy(self, source: int, first: int, end: int) -> int:
        """Copy the resident ones of blocks [first, end) from *source*; bytes copied.

        Raises CorruptBlockError, or OSError of either disk.
        """
        buffer = memoryview(bytearray(min(BLOCK_SIZE, self._size)))
        copied = 0
        for block in range(first, end):
            if self.present[block]:
                low, high = block_span(self._size, block)
                part = buffer[: high - low]
                whole = read_whole(self._system, source, part, low)
                if not whole or xxhash.xxh3_64_intdigest(part) != self.sums[block]:
                    raise CorruptBlockError(block)
                with self._blaming_target(), self._target.tier.write_slots:
                    write_all(self._system, self.fd, part, low)
                copied += high - low
        return copied

    def finish(self) -> os.stat_result:
        """Make it durable: the only other copy is about to go."""
        with self._blaming_target():
            self._system.fdatasync(self.fd)
            return self._system.fstat(self.fd)

    @contextlib.contextmanager
    def _blaming_target(self) -> Iterator[None]:
        """Tell the target's health what its disk did."""
        try:
            yield
        except OSError as error:
            self._target.tier.health.write_failed(error)
            raise

    def discard(self) -> None:
        """Take it away again."""
        if self.fd >= 0:
            close(self._system, self.fd)
            self.fd = -1
            with contextlib.suppress(OSError):
                self._system.unlink(self._target.data(self._name))


def copy_size(item: Residency) -> int:
    """Bytes a copy of what is resident of *item* takes, with its share beside the blocks."""
    spans = (block_span(item.size, block) for block in range(item.blocks))
    sizes = [allocated(end - start) for start, end in spans]
    content = sum(size for size, here in zip(sizes, item.present, strict=True) if here)
    spare = sum(sizes[block] for block in item.spare or ())
    return content + max(PAGE, item.charged - content - spare)


class Moves:
    """Carries out moves. On the loop, with threads for what blocks."""

    def __init__(
        self,
        table: Table,
        files: OpenFiles,
        removal: Removal,
        around: Surroundings,
        *,
        drop: Callable[[Residency, int], None],
        announce: Callable[[Place, str], None],
    ) -> None:
        self._table = table
        self._files = files
        self._removal = removal
        self._around = around
        self._system = around.system
        self._drop = drop
        self._announce = announce

    async def move(self, item: Residency, target: Place, pace: Pace) -> bool:
        """Whether *item*, which must be in the table, is at *target* now.

        The caller has made room there. Raises OSError for what a disk did; the target's health is
        told, and *item* is where it was.
        """
        source, _stat = self._files.checked(item)
        copy = Copy(item, target, self._system)
        target.spend(copy.nbytes)
        item.holds += 1
        # A sweep that comes by must not take the file for an orphan.
        self._announce(target, item.name)
        try:
            stat = await self._copy(item, copy, source, pace)
            if stat is None:
                return False
            self._switch(item, target, copy, stat)
        except CorruptBlockError as corrupt:
            self._drop(item, corrupt.block)
            return False
        else:
            return True
        finally:
            copy.discard()
            close(self._system, source)
            target.reserved -= copy.nbytes
            self._removal.unhold(item)

    async def _copy(
        self, item: Residency, copy: Copy, source: int, pace: Pace
    ) -> os.stat_result | None:
        """The state of the finished file, None when the old copy changed meanwhile."""
        await self._in_thread(copy.begin)
        for first in range(0, item.blocks, _CHUNK):
            began = trio.current_time()
            work = partial(copy.copy, source, first, min(first + _CHUNK, item.blocks))
            nbytes = await self._in_thread(work)
            if not self._unchanged(item, copy):
                return None
            await pace(nbytes, trio.current_time() - began)
        stat = await self._in_thread(copy.finish)
        return stat if self._unchanged(item, copy) else None

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await trio.to_thread.run_sync(work, limiter=self._around.threads)

    @staticmethod
    def _unchanged(item: Residency, copy: Copy) -> bool:
        same = item.present == copy.present and item.sums == copy.sums
        return not item.dead and not item.reservations and same

    def _switch(self, item: Residency, target: Place, copy: Copy, stat: os.stat_result) -> None:
        new = Residency(item.ino, item.size, item.name)
        new.settle(target)
        new.group, new.pinned, new.rule = item.group, item.pinned, item.rule
        new.present, new.sums, new.left = copy.present, copy.sums, item.left
        new.file_id, new.ctime_ns = stat.st_ino, stat.st_ctime_ns
        new.moved_at = self._around.now()
        resident = new.blocks - new.left
        if target.tier.always_verify:
            new.unverified = resident
        else:
            new.verified = bytearray(copy.present)
        new.proven = new.complete and not new.unverified
        nbytes, copy.nbytes = copy.nbytes, 0
        target.reserved -= nbytes
        self._table.charge(new, nbytes)
        self._table.wrote(target.tier, nbytes)
        target.totals.blocks += resident
        self._removal.replace(item, new)
        if not new.pinned:
            target.tier.policy.admit(new.ino, new.charged, new.group, new.moved_at)
        fd, copy.fd = copy.fd, -1
        self._files.adopt(new, fd)
