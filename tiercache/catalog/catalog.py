"""The catalog: everything known of the tree, on the disk, ready at once whatever its size.

Parts: `store` keeps tables of packed records, `writer` changes them by the rules of what a name
means, and this class is what the layers above see. Calls are synchronous and for one thread. A read
copies two records and costs a few microseconds, so no layer above needs a cache of names. Whatever
hands out a new inode number has committed it before it returns: the number outlives this process.

Tables: `names` (directory inode + name -> inode, stamp), `inodes`, `versions` (name + etag ->
inode, for what a name no longer means), `listings` (directory inode -> when it was complete),
`meta`, `others`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import trio

from tiercache.catalog import opening, records
from tiercache.catalog.keyvalues import LmdbKeyValues
from tiercache.catalog.listing import SLICE, Listing
from tiercache.catalog.numbers import Numbers
from tiercache.catalog.store import Store, Txn, scan
from tiercache.catalog.sweep import Sweep
from tiercache.catalog.writer import Change, NewEntry, Stamp, Writer
from tiercache.config import CatalogConfig
from tiercache.errors import CatalogError
from tiercache.types import ROOT_INO, Inode, KeyValues, Kind

log = logging.getLogger(__name__)


class Child(NamedTuple):
    """What a name means, and when the origin last confirmed it (seconds since the epoch)."""

    inode: Inode
    seen_at: float


class Catalog:
    """Names, inodes and listings of one origin. Every method raises CatalogError on failure."""

    def __init__(
        self,
        store: Store,
        numbers: Numbers,
        config: CatalogConfig,
        rebuilt: str | None,
        now: Callable[[], float],
    ) -> None:
        self._store = store
        self._numbers = numbers
        self._config = config
        self._now = now
        # Higher than the stamp of anything stored by an earlier run.
        self._generation = numbers.take()
        #: Why what was found on the disk was not used; None if it was, or there was nothing.
        self.rebuilt = rebuilt
        #: A space for others in the same database.
        self.kv: KeyValues = LmdbKeyValues(store)

    @classmethod
    def open(
        cls,
        directory: Path,
        config: CatalogConfig,
        *,
        identity: str,
        boot_id: str,
        now: Callable[[], float] = time.time,
    ) -> Catalog:
        """Open the catalog of the origin *identity* in *directory*, which becomes ours alone.

        One that cannot be believed is moved aside and a new one begun. Raises CatalogError when
        that fails too.
        """
        store, rebuilt = opening.open_store(directory, config, identity, boot_id)
        try:
            numbers = Numbers(directory / "numbers", int(now() * 1e9))
            numbers.skip_past(store.read(_last_ino, store))
            store.write(_ensure_root, store, now())
        except OSError as error:
            store.close()
            raise CatalogError(f"{directory / 'numbers'} cannot be written: {error}") from error
        except BaseException:
            store.close()
            raise
        return cls(store, numbers, config, rebuilt, now)

    # -- reading ---------------------------------------------------------------------------------

    def inode(self, ino: int) -> Inode | None:
        """Inode *ino*, named or not."""
        return self._store.read(self._read_inode, records.pack_ino(ino))

    def child(self, parent: int, name: bytes) -> Child | None:
        """What *name* means in directory *parent*, if that is known."""
        return self._store.read(self._read_child, records.pack_ino(parent) + name)

    def children(self, parent: int) -> Iterator[tuple[bytes, Inode]]:
        """Known names of directory *parent* in name order. May be mixed with writes."""
        prefix = records.pack_ino(parent)
        start: bytes | None = prefix
        while start is not None:
            page, start = self._store.read(self._read_children, prefix, start)
            yield from page

    def after(self, parent: int, name: bytes, count: int) -> list[Inode]:
        """Up to *count* files of directory *parent* whose known names follow *name*, in order."""
        return self._store.read(self._read_after, records.pack_ino(parent), name, count)

    def listed_at(self, parent: int) -> float | None:
        """As of when the names of *parent* are complete; None when they are not."""
        return self._store.read(self._read_listed_at, records.pack_ino(parent))

    def stats(self) -> dict[str, int]:
        """Numbers of names and inodes, and bytes of the database in use."""
        return {
            "names": self._store.entries(self._store.names),
            "inodes": self._store.entries(self._store.inodes),
            "bytes": self._store.used_bytes(),
        }

    # -- writing ---------------------------------------------------------------------------------

    def put(self, parent: int, entry: NewEntry, seen_at: float) -> Change:
        """Make one name mean *entry*; returns the name if it meant something else before.

        Raises ObjectChangedError (ESTALE) for an unknown *parent*.
        """
        return self._store.write(self._put, parent, entry, Stamp(seen_at, self._generation))

    def remove(self, parent: int, name: bytes) -> bool:
        """Forget *name*, which the origin no longer has; returns whether it was known."""
        return self._store.write(self._remove, parent, name)

    def forget_listing(self, parent: int) -> None:
        """The names of *parent* may no longer be complete."""
        key = records.pack_ino(parent)
        self._store.write(lambda txn: txn.delete(key, db=self._store.listings))

    def begin_listing(self, parent: int) -> Listing:
        """Begin to list directory *parent*; a listing that is never finished harms nothing."""
        try:
            self._generation = self._numbers.take()
        except OSError as error:
            raise CatalogError(f"no numbers can be reserved: {error}") from error
        return Listing(self._store, self._numbers, parent, self._generation, self._now)

    def sweep(self, is_held: Callable[[int], bool]) -> Iterator[list[int]]:
        """Forget inodes that no name points to and that are not held, and yield them in slices.

        Only right after mounting, while no kernel holds their numbers. Slices may be empty: each
        one ends a piece of work after which the caller should let others run.
        """
        return Sweep(self._store, is_held).slices()

    # -- lasting ---------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make everything survive the machine. Blocks on the disk; may run on a pool thread."""
        self._store.sync()

    async def run(self) -> None:
        """Sync every `sync_interval_s` off the loop, for ever. Failures are logged, not raised."""
        while True:
            await trio.sleep(self._config.sync_interval_s)
            try:
                await trio.to_thread.run_sync(self._store.sync)
            except CatalogError as error:
                log.warning("%s", error)

    def close(self, *, clean: bool) -> None:
        """Close; with *clean*, sync and let the next boot believe what is stored.

        Failing to do so is logged: the next boot begins anew.
        """
        try:
            if clean:
                self._store.sync()
                opening.mark_clean(self._store)
        except CatalogError as error:
            log.warning("the catalog cannot be closed cleanly: %s", error)
        finally:
            self._store.close()
            self._numbers.close()

    # -- inside a transaction --------------------------------------------------------------------

    def _read_inode(self, txn: Txn, key: bytes) -> Inode | None:
        record = txn.get(key, db=self._store.inodes)
        return None if record is None else records.unpack_inode(key, record)

    def _read_child(self, txn: Txn, key: bytes) -> Child | None:
        data = txn.get(key, db=self._store.names)
        name = None if data is None else records.unpack_name(key, data)
        if name is None:
            return None
        inode = self._read_inode(txn, records.pack_ino(name.ino))
        return None if inode is None else Child(inode, name.seen_at)

    def _read_children(
        self, txn: Txn, prefix: bytes, start: bytes
    ) -> tuple[list[tuple[bytes, Inode]], bytes | None]:
        page: list[tuple[bytes, Inode]] = []
        for seen, (key, value) in enumerate(scan(txn, self._store.names, start)):
            if not key.startswith(prefix):
                break
            if seen == SLICE:
                return page, key
            name = records.unpack_name(key, value)
            inode = None if name is None else self._read_inode(txn, records.pack_ino(name.ino))
            if inode is not None:
                page.append((key[records.INO_SIZE :], inode))
        return page, None

    def _read_after(self, txn: Txn, prefix: bytes, after: bytes, count: int) -> list[Inode]:
        files: list[Inode] = []
        # A name cannot hold NUL, so this is the first key behind it.
        for key, value in scan(txn, self._store.names, prefix + after + b"\0"):
            if len(files) == count or not key.startswith(prefix):
                break
            name = records.unpack_name(key, value)
            inode = None if name is None else self._read_inode(txn, records.pack_ino(name.ino))
            if inode is not None and inode.kind is Kind.FILE:
                files.append(inode)
        return files

    def _read_listed_at(self, txn: Txn, key: bytes) -> float | None:
        data = txn.get(key, db=self._store.listings)
        return None if data is None else records.unpack_time(key, data)

    def _put(self, txn: Txn, parent: int, entry: NewEntry, stamp: Stamp) -> Change:
        writer = Writer(txn, self._store, self._numbers, parent)
        changed = writer.put(entry, stamp)
        writer.date_parent()
        return [entry.name] if changed else []

    def _remove(self, txn: Txn, parent: int, name: bytes) -> bool:
        return Writer(txn, self._store, self._numbers, parent).remove(name)


def _last_ino(txn: Txn, store: Store) -> int:
    cursor = txn.cursor(store.inodes)
    return records.unpack_ino(cursor.key()) if cursor.last() else ROOT_INO


def _ensure_root(txn: Txn, store: Store, now: float) -> None:
    root = Inode(ROOT_INO, ROOT_INO, Kind.DIRECTORY, 0, int(now * 1e9), "", b"")
    txn.put(records.pack_ino(ROOT_INO), records.pack_inode(root), db=store.inodes, overwrite=False)
