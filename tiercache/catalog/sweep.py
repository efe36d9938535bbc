"""Forget inodes that no name points to any more.

Safe only while no kernel holds inode numbers, which is right after mounting. Children have higher
numbers than their directory, so one ascending pass suffices: a directory that goes takes its names
along, and their inodes are met later in the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tiercache.catalog import records
from tiercache.catalog.store import Store, Txn, scan
from tiercache.types import ROOT_INO, Inode

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
        keys, resume = self._keys(txn, start)
        gone: list[int] = []
        for key in keys:
            ino = records.unpack_ino(key)
            inode = records.unpack_inode(key, txn.get(key, db=self._store.inodes) or b"")
            if (inode is not None and self._is_named(txn, inode)) or self._is_held(ino):
                continue
            if not self._remove(txn, key, inode):
                return gone, ino
            gone.append(ino)
        return gone, resume

    def _keys(self, txn: Txn, start: int) -> tuple[list[bytes], int | None]:
        """Keys of a thousand inodes from *start* on, and where to go on."""
        keys: list[bytes] = []
        for key, _ in scan(txn, self._store.inodes, records.pack_ino(start)):
            if len(keys) == _SLICE:
                return keys, records.unpack_ino(key)
            keys.append(key)
        return keys, None

    def _is_named(self, txn: Txn, inode: Inode) -> bool:
        key = _name_key(inode)
        found = records.unpack_name(key, txn.get(key, db=self._store.names) or b"")
        return found is not None and found.ino == inode.ino

    def _remove(self, txn: Txn, key: bytes, inode: Inode | None) -> bool:
        """Remove one inode (None: damaged) and its names; False when more names are left."""
        txn.delete(key, db=self._store.listings)
        if not self._remove_names(txn, key):
            return False
        if inode is not None:
            version = records.version_key(_name_key(inode), inode.kind, inode.etag)
            if txn.get(version, db=self._store.versions) == key:
                txn.delete(version, db=self._store.versions)
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


def _name_key(inode: Inode) -> bytes:
    name = inode.key.removesuffix(b"/").rpartition(b"/")[2]
    return records.pack_ino(inode.parent) + name
