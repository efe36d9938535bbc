"""Which files are open, and how: the one place that decides how an OPEN is answered.

A file is opened either *cached* (reads go through the kernel's page cache, misses come to us) or in
*passthrough* (the kernel reads a backing file that was registered with it and we never hear of it).
The kernel's rules, broken ones being EIO for the reader:

* all open handles of an inode have the same mode;
* all its passthrough handles name the same backing id.

So: somebody has it open -> the same mode and id. Nobody has -> passthrough if the tree has a
complete local copy and the kernel takes it, else cached. Neither mode ever sets FOPEN_DIRECT_IO,
which would forbid shared mappings; callers that ask for O_DIRECT get it from the kernel.

**Registrations** outlive the last close, so that the next open of a small file costs no ioctl: up
to `backing_max` idle ones are kept, least recently closed first out. They go when the tree says
that the copy is gone. The kernel may hold a copy longer than the registration: a mapping keeps its
backing file after everything was closed.

**The table** lives in a memfd that the holder keeps, because a new worker must follow the rules for
handles that the dead one gave out. It is an array of 16-byte slots `(ino, count, backing id)`; free
slots have inode 0 and all of it starts as a hole. Where an inode sits is remembered in a dict that
a new worker rebuilds by one walk. Stores are atomic; `kill -9` may come between any two of them:

* a new slot gets its inode last, a freed one loses it first: a half-made slot is a free slot;
* a handle is counted before its OPEN is answered and uncounted after its RELEASE is, so a crash
  leaves a count right or one too high: the mode sticks to the inode until unmount, readers see
  nothing;
* a backing id is stored after it was made and cleared before it is given back, so a crash may leave
  a registration that nobody uses, never the use of an id that means something else by now.

When the table is full, idle registrations make room; after that opens fail with ENFILE: an open
that nobody counts could make later ones fail at random.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator

from tiercache.errors import TooManyOpenError
from tiercache.fuse.protocol import BACKING_CLOSE, BACKING_MAP, BACKING_OPEN
from tiercache.vfs.api import Filesystem

log = logging.getLogger(__name__)

#: Inodes that can be open at a time; the memory is used only as far as slots are.
CAPACITY = 1 << 18

_SLOT_BYTES = 16
# A slot is addressed by the index of its first 32-bit word.
_WORDS = _SLOT_BYTES // 4
_COUNT = 2
_BACKING = 3

#: Set in a count when the copy behind the registration is gone: give it back at the last close.
_DOOMED = 1 << 31
_HANDLES = _DOOMED - 1

#: What the kernel answers when passthrough cannot work on this mount at all.
_HOPELESS = {
    errno.EPERM: "the daemon lacks CAP_SYS_ADMIN",
    errno.ELOOP: "the cache directory is on a stacked filesystem (overlayfs, FUSE)",
    errno.EOPNOTSUPP: "the kernel does not support it",
    errno.ENOTTY: "the kernel does not support it",
    errno.EINVAL: "the kernel refused the backing file",
}


class OpenTable:
    """The shared table itself: slots in a memfd. A slot is the index of its first word."""

    def __init__(self, fd: int, capacity: int = CAPACITY) -> None:
        size = capacity * _SLOT_BYTES
        if os.fstat(fd).st_size < size:
            os.ftruncate(fd, size)
        memory = memoryview(mmap.mmap(fd, size))
        #: Handles and backing ids are read and stored right here by `Opens`.
        self.words = memory.cast("I")
        self._inos = memory.cast("Q")
        self._limit = capacity * _WORDS
        self._fresh = 0  # slots from here on were never used
        self._free: list[int] = []
        self.slots = dict(self._walk())

    def _walk(self) -> Iterator[tuple[int, int]]:
        inos = self._inos.tolist()[::2]
        used = [index for index, ino in enumerate(inos) if ino]
        self._fresh = (used[-1] + 1) * _WORDS if used else 0
        self._free = [i * _WORDS for i in range(self._fresh // _WORDS) if not inos[i]]
        return ((inos[index], index * _WORDS) for index in used)

    def add(self, ino: int, backing: int) -> int | None:
        """Take a slot for *ino* with one handle; None when all are taken."""
        if self._free:
            slot = self._free.pop()
        elif self._fresh < self._limit:
            slot = self._fresh
            self._fresh += _WORDS
        else:
            return None
        self.words[slot + _COUNT] = 1
        self.words[slot + _BACKING] = backing
        self._inos[slot // 2] = ino
        self.slots[ino] = slot
        return slot

    def remove(self, ino: int) -> None:
        """Free the slot of *ino*."""
        slot = self.slots.pop(ino)
        self._inos[slot // 2] = 0
        self._free.append(slot)


class Backings:
    """Registers backing files with the kernel, as long as there is hope.

    `reason` says why there is none, "" while there is.
    """

    def __init__(self, dev_fd: int, reason: str) -> None:
        self._dev = dev_fd
        self.reason = reason

    def register(self, fd: int) -> int:
        """The id of the file behind *fd*, or 0 when the kernel does not take it."""
        try:
            return int(fcntl.ioctl(self._dev, BACKING_OPEN, bytearray(BACKING_MAP.pack(fd, 0, 0))))
        except OSError as error:
            if error.errno in _HOPELESS:
                self.reason = f"{_HOPELESS[error.errno]} ({error.strerror})"
                log.warning("no passthrough: %s", self.reason)
            return 0

    def give_back(self, backing: int) -> None:
        """Let go of a registration; open handles keep working."""
        # If the kernel does not know the id, there is nothing left to give back.
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._dev, BACKING_CLOSE, backing.to_bytes(4, sys.byteorder))


class Opens:
    """Counts open handles and says how each one is opened."""

    def __init__(
        self, fs: Filesystem, table: OpenTable, backings: Backings, *, idle_max: int
    ) -> None:
        self._fs = fs
        self._table = table
        self._slots = table.slots
        self._words = table.words
        self._backings = backings
        self._idle: OrderedDict[int, None] = OrderedDict()  # registered, but not open
        self._idle_max = idle_max
        self.passthrough_opens = 0
        self.cached_opens = 0
        self._adopt()
        fs.on_dropped(self.dropped)

    @property
    def tracked(self) -> int:
        """Inodes that are open or registered."""
        return len(self._slots)

    @property
    def registered_idle(self) -> int:
        """Registrations kept for files that nobody has open."""
        return len(self._idle)

    def _adopt(self) -> None:
        """Take over what a worker before us left in the table."""
        for ino, slot in list(self._slots.items()):
            handles = self._words[slot + _COUNT] & _HANDLES
            if self._words[slot + _BACKING]:
                self._fs.backing_kept(ino)
                if not handles:
                    self._last_closed(ino, slot)
            elif not handles:
                self._table.remove(ino)

    def begin(self, ino: int) -> int:
        """Count one more handle of *ino*; its backing id, or 0 for cached mode.

        Raises TooManyOpenError.
        """
        slot = self._slots.get(ino)
        if slot is None:
            return self._first_opened(ino)
        words = self._words
        words[slot + _COUNT] += 1
        backing = words[slot + _BACKING]
        if backing:
            self._idle.pop(ino, None)
            self.passthrough_opens += 1
        else:
            self.cached_opens += 1
        return backing

    def end(self, ino: int) -> None:
        """One handle of *ino* is gone. Handles that were never counted are ignored."""
        slot = self._slots.get(ino)
        if slot is None:
            return
        count = self._words[slot + _COUNT]
        if count & _HANDLES:
            self._words[slot + _COUNT] = count = count - 1
            if not count & _HANDLES:
                self._last_closed(ino, slot)

    def dropped(self, ino: int) -> None:
        """The local copy of *ino* is gone: give its registration back once nobody uses it."""
        slot = self._slots.get(ino)
        if slot is None or not self._words[slot + _BACKING]:
            return
        self._words[slot + _COUNT] |= _DOOMED
        if ino in self._idle:
            del self._idle[ino]
            self._unregister(ino, slot)

    def _first_opened(self, ino: int) -> int:
        backing = 0 if self._backings.reason else self._register(ino)
        while self._table.add(ino, backing) is None:
            if not self._idle:
                self._undo_register(ino, backing)
                raise TooManyOpenError(f"{len(self._slots)} files are open")
            self._drop_oldest()
        if backing:
            self.passthrough_opens += 1
        else:
            self.cached_opens += 1
        return backing

    def _register(self, ino: int) -> int:
        fd = self._fs.backing_fd(ino)
        if fd is None:
            return 0
        try:
            backing = self._backings.register(fd)
        finally:
            os.close(fd)  # the kernel has its own reference
        if backing:
            self._fs.backing_kept(ino)
        return backing

    def _undo_register(self, ino: int, backing: int) -> None:
        if backing:
            self._backings.give_back(backing)
            self._fs.backing_gone(ino)

    def _last_closed(self, ino: int, slot: int) -> None:
        if not self._words[slot + _BACKING]:
            self._table.remove(ino)
        elif self._words[slot + _COUNT] & _DOOMED:
            self._unregister(ino, slot)
        else:
            self._idle[ino] = None
            if len(self._idle) > self._idle_max:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        ino, _ = self._idle.popitem(last=False)
        self._unregister(ino, self._slots[ino])

    def _unregister(self, ino: int, slot: int) -> None:
        backing = self._words[slot + _BACKING]
        self._table.remove(ino)
        self._undo_register(ino, backing)
