"""The LMDB environment: short transactions, growth, one place for its errors.

Commits are not synced (`sync=False`): they survive the death of the process, because the page cache
does; `sync` makes them survive the machine, and `opening` throws away what was not. There is no
writable map: a full disk is an error of one commit, not a SIGBUS. Transactions never stay open
between calls, so nothing pins old pages and the map can grow whenever no call is running.

A failed write changes nothing. It becomes a `CatalogError` and one log line until writing works
again. Reads go on. After a failed update of LMDB's own meta page the environment refuses to work,
so it is opened again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias, TypeVar, TypeVarTuple

import lmdb

from tiercache.errors import CatalogError
from tiercache.types import MIB

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Txn: TypeAlias = "lmdb.Transaction[bytes]"
Table: TypeAlias = "lmdb._Database"

#: Slots in the lock file; one is ours, the others are for tools that look on.
_READERS_MAX = 512

#: Read transactions kept for reuse; calls do not nest deeper.
_SPARE_TXNS = 4

#: The data file is kept this much longer than its last page, sparsely. LMDB alone does not write
#: pages that were allocated and freed in one transaction, so a healthy file may be shorter than its
#: last page and a cut one could not be told from it. No transaction here allocates more than this.
_HEADROOM = 64 * MIB

#: What LMDB says of a database that is bad; other errors (no space, no permission) have a cause
#: that a new database would meet too.
BAD = (
    lmdb.BadTxnError,
    lmdb.CorruptedError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)


def scan(txn: Txn, table: Table, start: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Pairs from the first key that is not below *start* on, within *txn*."""
    cursor = txn.cursor(table)
    # LMDB takes no empty key: an empty start is the very first one. A cursor that found nothing
    # would iterate from the first key.
    found = cursor.set_range(start) if start else cursor.first()
    return iter(cursor) if found else iter(())


class Store:
    """One open environment with the tables of the catalog."""

    def __init__(self, directory: Path, map_size: int) -> None:
        """Open or create; raises lmdb.Error or OSError."""
        self._directory = directory
        #: Exists when damage was met.
        self.damaged_mark = directory / "damaged"
        self._map_size = map_size
        self._pid = os.getpid()
        self._failing = False
        self._unsynced = True
        # A sync runs on a pool thread and must not meet a close.
        self._closing = threading.Lock()
        self._open()

    def _open(self) -> None:
        self._env = lmdb.open(
            str(self._directory),
            map_size=self._map_size,
            max_dbs=8,
            max_readers=_READERS_MAX,
            max_spare_txns=_SPARE_TXNS,
            sync=False,
            metasync=False,
            mode=0o600,
            readahead=False,  # lookups are random; pages read in vain would push out better ones
        )
        try:
            self._env.reader_check()
            self.meta, self.inodes, self.names, self.versions, self.listings, self.others = (
                self._env.open_db(table)
                for table in (b"meta", b"inodes", b"names", b"versions", b"listings", b"others")
            )
            self._page_size = self._env.stat()["psize"]
            self._data_path = self._directory / "data.mdb"
            self._file_size = self._data_path.stat().st_size
            self._extend()
        except BaseException:
            self._env.close()
            raise

    def read(self, body: Callable[[Txn, *Ts], T], *args: *Ts) -> T:
        """Run *body* in a read transaction. Raises CatalogError when LMDB cannot read."""
        self._guard()
        try:
            with self._env.begin() as txn:
                return body(txn, *args)
        except lmdb.Error as error:
            self._note_damage(error)
            raise CatalogError(f"the catalog cannot be read: {error}") from error

    def write(self, body: Callable[[Txn, *Ts], T], *args: *Ts) -> T:
        """Run *body* in a write transaction and commit, or change nothing.

        *body* is run again after the map has grown, so it must only change the database. Raises
        CatalogError.
        """
        self._guard()
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    result = body(txn, *args)
                self._unsynced = True
                self._extend()
            except lmdb.MapFullError:
                self._grow()
            except struct.error as error:
                raise CatalogError(f"this cannot be stored: {error}") from error
            except (lmdb.Error, OSError) as error:
                raise self._failed(error) from error
            else:
                self._works()
                return result

    def sync(self) -> None:
        """Make what was committed survive the machine. Raises CatalogError. For pool threads."""
        self._guard()
        with self._closing:
            if not self._unsynced:
                return
            self._unsynced = False
            try:
                self._env.sync(True)
                self._env.reader_check()
            except lmdb.Error as error:
                self._unsynced = True
                raise CatalogError(f"the catalog cannot be synced: {error}") from error

    def entries(self, table: Table) -> int:
        """Number of records in *table*; O(1)."""
        return self.read(lambda txn: txn.stat(table)["entries"])

    def used_bytes(self) -> int:
        """Bytes of the map that are in use."""
        self._guard()
        return (self._env.info()["last_pgno"] + 1) * self._page_size

    def close(self) -> None:
        """Close; waits for a running sync. Using the store afterwards is a CatalogError."""
        self._guard()
        with self._closing:
            self._unsynced = False
            self._env.close()

    def reopen(self) -> None:
        """Close and open the environment again. Raises lmdb.Error or OSError."""
        with self._closing:
            self._env.close()
            self._open()

    def _guard(self) -> None:
        # LMDB corrupts itself when used across a fork; it does not notice by itself.
        if os.getpid() != self._pid:
            raise RuntimeError("the catalog was opened by another process: use it there only")

    def _grow(self) -> None:
        self._map_size = 2 * max(self._map_size, self._env.info()["map_size"])
        try:
            self._env.set_mapsize(self._map_size)
        except lmdb.Error as error:
            raise self._failed(error) from error
        log.info("the catalog's map grew to %d bytes", self._map_size)

    def _extend(self) -> None:
        last = (self._env.info()["last_pgno"] + 1) * self._page_size
        if self._file_size < last + _HEADROOM // 2:
            # Failing here costs nothing but a needless rebuild, should the process die at once.
            with contextlib.suppress(OSError):
                os.truncate(self._data_path, last + _HEADROOM)
                self._file_size = last + _HEADROOM

    def _note_damage(self, error: Exception) -> None:
        """Have the next start begin anew: pages that are bad now stay bad."""
        if isinstance(error, BAD) and not self.damaged_mark.exists():
            log.error("the catalog is damaged and will be begun anew at the next start: %s", error)
            with contextlib.suppress(OSError):
                self.damaged_mark.touch()

    def _failed(self, error: Exception) -> CatalogError:
        if not self._failing:
            log.error("the catalog cannot be written, new names are EIO until it can: %s", error)
        self._failing = True
        if isinstance(error, lmdb.PanicError):
            self._recover()
        else:
            self._note_damage(error)
        return CatalogError(f"the catalog cannot be written: {error}")

    def _recover(self) -> None:
        try:
            self.reopen()
        except (lmdb.Error, OSError) as error:
            log.warning("the catalog cannot be opened again: %s", error)

    def _works(self) -> None:
        if self._failing:
            log.warning("the catalog can be written again")
        self._failing = False
