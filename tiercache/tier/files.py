"""Open mirror files, for reading: few, shared by all handles, closed least recently used first.

All of it happens on the loop, so a descriptor used there needs no lock. One that a thread reads
from is pinned by its residency's `reads` and closed after the last of them.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict

from tiercache.tier.residency import Residency
from tiercache.tier.system import System, close

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class OpenFiles:
    """At most *limit* open files, plus those that are pinned."""

    def __init__(self, system: System, limit: int) -> None:
        self._system = system
        self._limit = limit
        self._open: OrderedDict[Residency, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, item: Residency) -> int:
        """A shared descriptor of the mirror file, valid until the next checkpoint.

        FileNotFoundError when the file of that name is not the one the record is about.
        """
        if item.fd < 0:
            fd, _stat = self.checked(item)
            self.adopt(item, fd)
        return item.fd

    def checked(self, item: Residency) -> tuple[int, os.stat_result]:
        """A descriptor that is the caller's to close, of the very file the record is about."""
        assert item.place is not None
        fd = self._system.open(item.place.data(item.name), _READ)
        try:
            stat = self._system.fstat(fd)
        except OSError:
            close(self._system, fd)
            raise
        if (stat.st_ino, stat.st_size) != (item.file_id, item.size):
            close(self._system, fd)
            raise FileNotFoundError(errno.ENOENT, "another file has taken its place")
        if not item.complete or stat.st_ctime_ns != item.ctime_ns:
            # While no descriptor was open another file may have got the same inode number, and
            # what is complete was written to: nobody can tell without reading it again.
            item.ctime_ns = stat.st_ctime_ns
            item.distrust()
        return fd, stat

    def adopt(self, item: Residency, fd: int) -> None:
        """Keep *fd* as the shared descriptor of *item*, or close it if there is one."""
        if item.fd >= 0:
            close(self._system, fd)
            return
        self._shrink()
        item.fd = fd
        self._open[item] = None

    def close(self, item: Residency) -> None:
        """Close the shared descriptor, if any. *item* must not be pinned."""
        if item.fd >= 0:
            fd, item.fd = item.fd, -1
            del self._open[item]
            close(self._system, fd)

    def close_idle(self) -> None:
        """Close what no thread reads from: the process is out of descriptors."""
        for item in [item for item in self._open if not item.reads]:
            self.close(item)

    def close_all(self) -> None:
        """Close every descriptor."""
        for item in list(self._open):
            self.close(item)

    def _shrink(self) -> None:
        """Make room for one more."""
        for _ in range(2 * len(self._open)):
            if len(self._open) < self._limit:
                return
            item = next(iter(self._open))
            if item.reads or item.recent:
                # A second chance instead of an order kept by every read.
                item.recent = False
                self._open.move_to_end(item)
            else:
                self.close(item)
