"""Room for some blocks of one object, and the writing of them.

`write` runs on any thread, one call per block, and touches the file and its own list only. What it
wrote becomes visible on the loop, in `commit`: never before the bytes are in the file.

The file is opened by name, and a name outlives the copy it was given to: after a removal it may be
that of another copy. So a copy is removed under the lock its files are opened under, and from then
on nothing is opened for it.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable

import xxhash

from tiercache.tier.place import Place
from tiercache.tier.residency import Residency
from tiercache.tier.system import System, close, write_all
from tiercache.types import BLOCK_SIZE, KIB, MIB, block_span

_WRITE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE = 0o600

#: Less than this costs less to write than the call that would make it cheaper.
_ALLOCATE_MIN = 512 * KIB

#: Most bytes allocated by one call, ahead of the blocks that are written into them.
_ALLOCATE_MAX = 4 * MIB
_FULL = (errno.ENOSPC, errno.EDQUOT)
_CANNOT_ALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM)

#: Makes written blocks resident: (reservation, [(block, checksum), ...]).
Commit = Callable[["Reservation", list[tuple[int, int]]], None]


class Reservation:
    """Blocks [first, end) of one object may be written. Closed by the owner, on the loop."""

    __slots__ = (
        "_allocated",
        "_allocates",
        "_close",
        "_commit",
        "_done",
        "_opening",
        "_place",
        "_system",
        "_written",
        "closed",
        "end",
        "failed",
        "fd",
        "file_id",
        "first",
        "item",
        "lent",
        "nbytes",
    )

    def __init__(
        self,
        item: Residency,
        blocks: tuple[int, int],
        nbytes: int,
        system: System,
        commit: Commit,
        close: Callable[[Reservation], None],
    ) -> None:
        assert item.place is not None
        self.item = item
        self.first, self.end = blocks
        #: Bytes promised and not yet turned into resident blocks.
        self.nbytes = nbytes
        self.fd = -1
        self.lent = False  # `fd` is the item's shared descriptor now
        self.file_id = 0
        self.failed = False
        self.closed = False
        # The item may be evicted meanwhile; the files are where they were.
        self._place: Place = item.place
        self._system = system
        self._commit = commit
        self._close = close
        item.opening = self._opening = item.opening or threading.Lock()
        self._done: deque[tuple[int, int]] = deque()
        # Blocks that are or were here have their place already. They are not punched either: others
        # may read them, the kernel by itself among them, though this one could not just now.
        fresh = not item.spare and item.present.find(1, *blocks) < 0
        self._allocates = fresh and self._place.allocates
        self._allocated = self._written = 0  # up to these offsets of the file

    def write(self, block: int, data: memoryview) -> bool:
        """Put the whole of *block* into the mirror file; on any thread.

        Never raises for what the disk does: False, and the tier knows why. False too when the copy
        was removed meanwhile.
        """
        start, end = block_span(self.item.size, block)
        assert self.first <= block < self.end
        assert len(data) == end - start
        try:
            fd = self._open()
            if fd < 0:
                return False
            with self._place.tier.write_slots:
                self._allocate(fd, start)
                write_all(self._system, fd, data, start)
        except OSError as error:
            self.failed = True
            self._place.tier.health.write_failed(error)
            return False
        self._written = max(self._written, end)
        self._done.append((block, xxhash.xxh3_64_intdigest(data)))
        return True

    def commit(self) -> None:
        """Blocks written so far become resident. May be called repeatedly."""
        done = []
        while self._done:
            done.append(self._done.popleft())
        if done and not self.closed:
            self._commit(self, done)

    def close(self) -> None:
        """Commit, and give back what was not used. Idempotent."""
        if not self.closed:
            self.commit()
            self.closed = True
            self._close(self)

    def deallocate(self) -> None:
        """Give back the space of blocks that did not come. On the loop, when no more will."""
        self._deallocate(self.fd, max(self._written, self.first * BLOCK_SIZE))

    def _deallocate(self, fd: int, start: int) -> None:
        size, self._allocated = self._allocated - start, start
        if size > 0:
            try:
                self._system.deallocate(fd, start, size)
            except OSError:
                self.failed = True

    @property
    def place(self) -> Place:
        """Where the file is."""
        return self._place

    def _allocate(self, fd: int, start: int) -> None:
        """Save the file system from finding a place for every page; pays for large writes only."""
        if start < self._allocated or not self._allocates:
            return
        end = min(self.end * BLOCK_SIZE, self.item.size, start + _ALLOCATE_MAX)
        if end - start < _ALLOCATE_MIN:
            return
        self._allocated = end
        try:
            self._system.allocate(fd, start, end - start)
        except OSError as error:
            self._allocates = False
            if error.errno in _CANNOT_ALLOCATE:
                self._place.allocates, self._allocated = False, start
            elif error.errno in _FULL:
                self._deallocate(fd, start)  # this block alone may fit
            else:
                raise

    def _open(self) -> int:
        with self._opening:
            if self.fd < 0 and not self.item.dead:
                self.fd = self._create()
            return self.fd

    def _create(self) -> int:
        """The mirror file, as long as the object: that is what passthrough needs of it."""
        path, size = self._place.data(self.item.name), self.item.size
        try:
            fd = self._system.open(path, _WRITE, _MODE)
        except FileNotFoundError:
            self._place.make_shard(self.item.name)
            fd = self._system.open(path, _WRITE, _MODE)
        try:
            stat = self._system.fstat(fd)
            # One block that is the whole object gives a new file its length by itself.
            if stat.st_size != size and (stat.st_size or self.item.blocks > 1):
                self._system.ftruncate(fd, size)
        except OSError:
            close(self._system, fd)
            raise
        self.file_id = stat.st_ino
        return fd
