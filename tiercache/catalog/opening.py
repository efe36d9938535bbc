"""What must hold before a database found on the disk is believed.

A catalog is a cache: losing it costs requests, believing a damaged one could cost bytes. So
anything doubtful is moved aside (one is kept, for a person to look at) and a new one begun; the
mount comes up either way. Doubtful is:

* a file shorter than its meta pages say, which LMDB would find out by SIGBUS;
* meta pages or tables that LMDB refuses, now or in an earlier run, and a root that is damaged;
* another schema or another origin;
* a machine stop without a clean end: commits are synced from time to time only, and a disk may have
  written them in any order;
* three starts in a row that died while opening it, since garbled pages can kill the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import struct
from pathlib import Path

import lmdb

from tiercache.catalog import records
from tiercache.catalog.store import BAD, Store, Txn
from tiercache.config import CatalogConfig
from tiercache.errors import CatalogError
from tiercache.types import ROOT_INO

log = logging.getLogger(__name__)

#: LMDB 0.9 meta page after its 16-byte page header: magic, version, address, map size, two trees
#: (48 bytes each, the first beginning with the page size), last page, transaction.
_META = struct.Struct("<16x II 16x I 92x QQ")
_META_MAGIC = 0xBEEFC0DE
_META_VERSION = 1

_ATTEMPTS_MAX = 3


class _DoubtError(Exception):
    """Why the database is not believed."""


def open_store(
    directory: Path, config: CatalogConfig, identity: str, boot_id: str
) -> tuple[Store, str | None]:
    """The store in *directory*, and why the one found there was not used, if so.

    Raises CatalogError when none can be opened or begun.
    """
    opener = _Opener(directory, config, identity.encode(), boot_id.encode())
    try:
        return opener.open()
    except (OSError, lmdb.Error) as error:
        raise CatalogError(f"the catalog in {directory} cannot be opened: {error}") from error


class _Opener:
    def __init__(
        self, directory: Path, config: CatalogConfig, identity: bytes, boot_id: bytes
    ) -> None:
        self._directory = directory
        self._config = config
        self._identity = identity
        self._boot_id = boot_id
        self._database = directory / "db"
        self._attempts = directory / "opening"

    def open(self) -> tuple[Store, str | None]:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason: str | None = None
        if (self._database / "data.mdb").exists():
            try:
                return self._open_existing(), None
            except _DoubtError as doubt:
                reason = str(doubt)
                log.warning("the catalog is not used and a new one begun: %s", reason)
            self._move_aside()
        return self._begin(), reason

    def _open_existing(self) -> Store:
        self._count_attempt()
        if (self._database / "damaged").exists():
            raise _DoubtError("an earlier run met damaged pages")
        _check_file(self._database / "data.mdb")
        try:
            store = Store(self._database, self._config.map_size)
        except BAD as error:
            raise _DoubtError(f"LMDB refuses it: {error}") from error
        try:
            self._check_content(store)
            self._start_session(store)
        except BaseException:
            store.close()
            raise
        self._attempts.unlink(missing_ok=True)
        return store

    def _count_attempt(self) -> None:
        """Note that an attempt begins; raises _DoubtError when too many never ended."""
        attempts = self._attempts.stat().st_size if self._attempts.exists() else 0
        if attempts >= _ATTEMPTS_MAX:
            raise _DoubtError(f"{attempts} attempts to open it did not end")
        # On a full disk the attempt is not counted, which is no reason not to make it.
        with contextlib.suppress(OSError), self._attempts.open("ab") as file:
            file.write(b".")

    def _check_content(self, store: Store) -> None:
        try:
            meta = store.read(_read_meta, store)
            edges_good = store.read(_touch_edges, store)
        except CatalogError as error:
            raise _DoubtError(str(error)) from error
        if not edges_good:
            raise _DoubtError("its root is damaged")
        if meta.get(b"schema") != records.SCHEMA:
            raise _DoubtError("it has another schema")
        if meta.get(b"identity") != self._identity:
            raise _DoubtError("it belongs to another origin")
        if meta.get(b"boot_id") != self._boot_id and b"clean" not in meta:
            raise _DoubtError("the machine stopped without closing it")

    def _start_session(self, store: Store) -> None:
        """Take the clean marker away, durably: later pages must not be found beside it."""
        if store.write(_unmark, store, self._boot_id):
            store.sync()

    def _move_aside(self) -> None:
        aside = self._directory / "db.old"
        shutil.rmtree(aside, ignore_errors=True)
        self._database.rename(aside)
        self._attempts.unlink(missing_ok=True)

    def _begin(self) -> Store:
        stat = os.statvfs(self._directory)
        free = stat.f_bavail * stat.f_frsize
        if free < self._config.free_min:
            raise CatalogError(
                f"{self._directory} has {free} bytes free, a catalog needs {self._config.free_min}"
            )
        # A database without its meta records was never used: dying half way costs nothing.
        self._database.mkdir(mode=0o700, exist_ok=True)
        store = Store(self._database, self._config.map_size)
        try:
            store.write(_initialise, store, self._identity, self._boot_id)
        except BaseException:
            store.close()
            raise
        return store


def mark_clean(store: Store) -> None:
    """Record, durably, that everything is on the disk. Raises CatalogError."""
    store.write(lambda txn: txn.put(b"clean", b"", db=store.meta))
    store.sync()


def _check_file(path: Path) -> None:
    """Compare the length of the file with what its newest meta page says."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        first = _read_meta_page(file.read(_META.size))
        if first is None:
            raise _DoubtError("its first page is damaged")
        page_size = first[0]
        file.seek(page_size)
        second = _read_meta_page(file.read(_META.size))
        if second is None:
            raise _DoubtError("its second page is damaged")
    last = max(first, second, key=lambda meta: meta[2])[1]
    if size < (last + 1) * page_size:
        raise _DoubtError(f"its file was cut to {size} of {(last + 1) * page_size} bytes")


def _read_meta_page(data: bytes) -> tuple[int, int, int] | None:
    """Page size, last page and transaction of a meta page; None if it is none."""
    if len(data) < _META.size:
        return None
    magic, version, page_size, last, transaction = _META.unpack(data)
    if (magic, version) != (_META_MAGIC, _META_VERSION) or not 512 <= page_size <= 65536:
        return None
    return page_size, last, transaction


def _read_meta(txn: Txn, store: Store) -> dict[bytes, bytes]:
    return dict(txn.cursor(store.meta))


def _touch_edges(txn: Txn, store: Store) -> bool:
    """Walk from every tree's root to its first and last leaf, so that gross damage shows here.

    Returns whether the record of the root directory is good or absent.
    """
    for table in (store.inodes, store.names, store.versions, store.listings, store.others):
        cursor = txn.cursor(table)
        cursor.first()
        cursor.last()
    key = records.pack_ino(ROOT_INO)
    root = txn.get(key, db=store.inodes)
    return root is None or records.unpack_inode(key, root) is not None


def _unmark(txn: Txn, store: Store, boot_id: bytes) -> bool:
    was_clean = txn.delete(b"clean", db=store.meta)
    other_boot = txn.get(b"boot_id", db=store.meta) != boot_id
    if other_boot:
        txn.put(b"boot_id", boot_id, db=store.meta)
    return was_clean or other_boot


def _initialise(txn: Txn, store: Store, identity: bytes, boot_id: bytes) -> None:
    for key, value in ((b"schema", records.SCHEMA), (b"identity", identity), (b"boot_id", boot_id)):
        txn.put(key, value, db=store.meta)
