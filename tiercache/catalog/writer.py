"""What a name means: the rules by which an answer of the origin becomes names and inodes.

A `Writer` works inside one write transaction on one directory.

* One version of one object, `(key, etag)`, is one inode for ever: seen again, under whatever
  circumstances, it has the same number, and its other attributes are refreshed in place. Another
  etag is another inode; the name is re-pointed and the old inode's record stays for its handles.
* A directory is the version `(key/, "")`: its number survives its absence, its listing does not.
* `x` and `x/` may both exist. Within one listing the directory wins, in whatever order they come.
* A directory is as old as its newest child was ever seen to be, before that as old as our first
  sight of it. It never goes back: tools take an older directory for an unchanged one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeAlias

from tiercache.catalog import records
from tiercache.catalog.numbers import Numbers
from tiercache.catalog.store import Store, Txn
from tiercache.errors import NotDirectoryError, ObjectChangedError
from tiercache.types import NAME_MAX, Inode, Kind

#: Names that no longer mean what they did: the kernel may hold them and must be told.
Change: TypeAlias = list[bytes]


class NewEntry(NamedTuple):
    """What the origin says of one name; for directories size 0, mtime_ns 0 and etag ""."""

    name: bytes
    kind: Kind
    size: int
    mtime_ns: int
    etag: str
    archived: bool


class Stamp(NamedTuple):
    """When something was said: in seconds, and in the order of listings."""

    seen_at: float
    generation: int


class Writer:
    """Changes the names of directory *parent* inside transaction *txn*."""

    def __init__(self, txn: Txn, store: Store, numbers: Numbers, parent: int) -> None:
        """Raises ObjectChangedError (ESTALE) for an unknown *parent*, NotDirectoryError."""
        self._txn = txn
        self._store = store
        self._numbers = numbers
        found = self._stored(parent)
        if found is None:
            raise ObjectChangedError(f"inode {parent} is not known")
        self._parent, self._dated = found
        self._newest_ns = 0
        if self._parent.kind is not Kind.DIRECTORY:
            raise NotDirectoryError(f"inode {parent} is not a directory")

    def put(self, entry: NewEntry, stamp: Stamp) -> bool:
        """Make the name mean *entry*; returns whether it meant something else before."""
        return self._point(entry, stamp, self._name(entry.name))

    def add(self, entry: NewEntry, stamp: Stamp) -> bool:
        """Like `put` for one entry of a listing: where it also has `x/`, `x` is left out."""
        old = self._name(entry.name)
        if (
            old is not None
            and entry.kind is Kind.FILE
            and old.kind == Kind.DIRECTORY
            and old.generation >= stamp.generation
        ):
            return False
        return self._point(entry, stamp, old)

    def remove(self, name: bytes) -> bool:
        """Forget *name*; returns whether it was there. Its inode stays."""
        old = self._name(name)
        if old is not None:
            self._retire(self._key(name), old)
        return self._txn.delete(self._key(name), db=self._store.names)

    def date_parent(self) -> None:
        """Bring the directory's mtime up to that of the children that were put."""
        if self._newest_ns <= 0 or (self._dated and self._newest_ns <= self._parent.mtime_ns):
            return
        self._save(replace(self._parent, mtime_ns=self._newest_ns), dated=True)

    def _name(self, name: bytes) -> records.Name | None:
        key = self._key(name)
        data = self._txn.get(key, db=self._store.names)
        return None if data is None else records.unpack_name(key, data)

    def _key(self, name: bytes) -> bytes:
        assert 0 < len(name) <= NAME_MAX
        assert b"/" not in name
        return records.pack_ino(self._parent.ino) + name

    def _point(self, entry: NewEntry, stamp: Stamp, old: records.Name | None) -> bool:
        key = self._key(entry.name)
        inode = self._inode(key, entry, stamp, old)
        generation = stamp.generation if old is None else max(stamp.generation, old.generation)
        name = records.Name(inode.ino, generation, inode.kind, stamp.seen_at)
        self._txn.put(key, records.pack_name(key, name), db=self._store.names)
        if old is None or old.ino == inode.ino:
            return False
        self._retire(key, old)
        return True

    def _retire(self, key: bytes, old: records.Name) -> None:
        """Remember the inode that the name at *key* no longer means, in case it returns."""
        ino = records.pack_ino(old.ino)
        if old.kind == Kind.DIRECTORY:
            self._txn.delete(ino, db=self._store.listings)
        found = self._stored(old.ino)
        if found is not None:
            version = records.version_key(key, found[0].kind, found[0].etag)
            self._txn.put(version, ino, db=self._store.versions)

    def _inode(
        self, name_key: bytes, entry: NewEntry, stamp: Stamp, old: records.Name | None
    ) -> Inode:
        """The inode of the version that *entry* speaks of, up to date."""
        key = self._parent.key + entry.name + b"/" * (entry.kind is Kind.DIRECTORY)
        found = None if old is None else self._version_at(old.ino, key, entry)
        if found is None:
            version = records.version_key(name_key, entry.kind, entry.etag)
            ino = self._txn.get(version, db=self._store.versions)
            found = None if ino is None else self._version_at(records.unpack_ino(ino), key, entry)
        if found is None:
            return self._create(key, entry, stamp)
        return self._refresh(*found, entry)

    def _version_at(self, ino: int, key: bytes, entry: NewEntry) -> tuple[Inode, bool] | None:
        """Inode *ino* and whether it is dated, if it is the version that *entry* speaks of."""
        found = self._stored(ino)
        if found is None:
            return None
        inode = found[0]
        same = (inode.kind, inode.key, inode.etag) == (entry.kind, key, entry.etag)
        return found if same else None

    def _stored(self, ino: int) -> tuple[Inode, bool] | None:
        """Inode *ino* and whether it is dated."""
        key = records.pack_ino(ino)
        record = self._txn.get(key, db=self._store.inodes)
        inode = None if record is None else records.unpack_inode(key, record)
        return None if record is None or inode is None else (inode, records.is_dated(record))

    def _create(self, key: bytes, entry: NewEntry, stamp: Stamp) -> Inode:
        ino, mtime_ns, dated = self._numbers.take(), entry.mtime_ns, False
        if entry.kind is Kind.FILE:
            self._newest_ns = max(self._newest_ns, mtime_ns)
        elif mtime_ns <= 0:
            mtime_ns = int(stamp.seen_at * 1e9)
        else:
            dated = True
        parent, size, etag = self._parent.ino, entry.size, entry.etag
        inode = Inode(ino, parent, entry.kind, size, mtime_ns, etag, key, entry.archived)
        self._save(inode, dated=dated)
        return inode

    def _refresh(self, inode: Inode, dated: bool, entry: NewEntry) -> Inode:
        if inode.kind is Kind.DIRECTORY:
            return self._refresh_directory(inode, dated, entry)
        self._newest_ns = max(self._newest_ns, entry.mtime_ns)
        known = (inode.size, inode.mtime_ns, inode.archived)
        if known == (entry.size, entry.mtime_ns, entry.archived):
            return inode
        changed = replace(inode, size=entry.size, mtime_ns=entry.mtime_ns, archived=entry.archived)
        self._save(changed, dated=False)
        return changed

    def _refresh_directory(self, inode: Inode, dated: bool, entry: NewEntry) -> Inode:
        if entry.mtime_ns > 0 and (not dated or entry.mtime_ns > inode.mtime_ns):
            inode, dated = replace(inode, mtime_ns=entry.mtime_ns), True
            self._save(inode, dated=True)
        if dated:
            self._newest_ns = max(self._newest_ns, inode.mtime_ns)
        return inode

    def _save(self, inode: Inode, *, dated: bool) -> None:
        record = records.pack_inode(inode, dated=dated)
        self._txn.put(records.pack_ino(inode.ino), record, db=self._store.inodes)
