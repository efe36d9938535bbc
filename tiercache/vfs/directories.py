"""Snapshots for readdir.

A handle remembers the names as they were at opendir; offsets are positions in that list and stay
valid for the life of the handle, whatever the origin does meanwhile. Attributes are looked up when
an entry is delivered. Handle numbers start at a random place so that those of a dead worker are
not mistaken for ours.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from tiercache.catalog import Catalog
from tiercache.types import Inode
from tiercache.vfs.api import DirEntry, Entry

#: Consecutive directories whose handles nobody released (a worker died) are bounded by this.
_HANDLES_MAX = 65_536


class Directories:
    """Open directory handles."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._next = secrets.randbits(62)
        self._open: dict[int, list[tuple[bytes, int]]] = {}

    def open(self, ino: int) -> int:
        """Take a snapshot of *ino*."""
        self._next += 1
        self.reopen(ino, self._next)
        return self._next

    def reopen(self, ino: int, handle: int) -> None:
        """Take a snapshot under a *handle* that a former worker gave out."""
        if len(self._open) >= _HANDLES_MAX:
            del self._open[next(iter(self._open))]
        self._open[handle] = [(n, inode.ino) for n, inode in self._catalog.children(ino)]

    def __contains__(self, handle: int) -> bool:
        return handle in self._open

    def read(self, directory: Inode, handle: int, offset: int, ttl_s: float) -> Iterator[DirEntry]:
        """Entries from *offset* on; `.` is 0 and `..` is 1."""
        if offset < 1:
            yield DirEntry(b".", Entry(directory, ttl_s, ttl_s), 1)
        if offset < 2:
            parent = self._catalog.inode(directory.parent) or directory
            yield DirEntry(b"..", Entry(parent, ttl_s, ttl_s), 2)
        snapshot = self._open[handle]
        for position in range(max(offset - 2, 0), len(snapshot)):
            name, ino = snapshot[position]
            inode = self._catalog.inode(ino)
            if inode is not None:
                yield DirEntry(name, Entry(inode, ttl_s, ttl_s), position + 3)

    def release(self, handle: int) -> None:
        """Forget *handle*; unknown ones are ignored."""
        self._open.pop(handle, None)

    def __len__(self) -> int:
        return len(self._open)
