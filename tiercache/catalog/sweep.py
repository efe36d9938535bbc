"""Forget inodes that no name points to any more.

Safe only while no kernel holds inode numbers, which is right after mounting. Children have higher
numbers than their directory, so one ascending pass suffices: a directory that goes takes its names
along, and their inodes are met later in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tiercache.catalog import records
from tiercache.catalog.store import Store, Txn, scan
from tiercache.types import ROOT_INO, Inode, Kind

_SLICE = 1000


class Sweep:
    """One pass over all inodes of *store*."""

    def __init__(self, store: Store, is_held: Callable[[int], bool]) -> None:
        self._store = store
        self._is_held = is_held

    def slices(self) -> Iterator[list[int]]:
        """Do the pass; yields after every thousand inodes those that are gone."""
        start: int | None = ROOT_INO + 1
        while start is not None:
            gone, start = self._store.write(self._slice, start)
            yield gone

    def _slice(self, txn: Txn, start: int) -> tuple[list[int], int | None]:
        found, resume = self._inodes(txn, start)
        gone: list[int] = []
        for inode in found:
            if self._is_named(txn, inode) or self._is_held(inode.ino):
                continue
            if not self._remove(txn, inode):
                return gone, inode.ino
            gone.append(inode.ino)
        return gone, resume

    def _inodes(self, txn: Txn, start: int) -> tuple[list[Inode], int | None]:
        """A thousand inodes from *start* on, and where to go on."""
        found: list[Inode] = []
        for key, value in scan(txn, self._store.inodes, records.pack_ino(start)):
            ino = records.unpack_ino(key)
            if len(found) == _SLICE:
                return found, ino
            found.append(records.unpack_inode(ino, value))
        return found, None

    def _is_named(self, txn: Txn, inode: Inode) -> bool:
        name = inode.key.removesuffix(b"/").rpartition(b"/")[2]
        record = txn.get(records.pack_ino(inode.parent) + name, db=self._store.names)
        return record is not None and records.unpack_name(record).ino == inode.ino

    def _remove(self, txn: Txn, inode: Inode) -> bool:
        """Remove *inode* and, of a directory, its names; False when more names are left."""
        key = records.pack_ino(inode.ino)
        if inode.kind is Kind.DIRECTORY:
            txn.delete(key, db=self._store.listings)
            if not self._remove_names(txn, key):
                return False
        digest = records.version_digest(inode.key, inode.etag)
        if txn.get(digest, db=self._store.versions) == key:
            txn.delete(digest, db=self._store.versions)
        txn.delete(key, db=self._store.inodes)
        return True

    def _remove_names(self, txn: Txn, prefix: bytes) -> bool:
        """Remove up to a thousand names; returns whether none is left."""
        cursor = txn.cursor(self._store.names)
        left = _SLICE
        while cursor.set_range(prefix) and cursor.key().startswith(prefix):
            if not left:
                return False
            cursor.delete()
            left -= 1
        return True
