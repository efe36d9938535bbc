"""The tree itself: what a driver asks, answered from catalog, tiers and origin.

A read goes: tier at once if the blocks are resident and verified, else a coroutine that shares the
one fetch of each missing block. Readahead is told of every read of a file that is not yet wholly
resident.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tiercache.catalog import Catalog
from tiercache.errors import (
    IsDirectoryError,
    NameTooLongError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
    TierCacheError,
)
from tiercache.prefetch.prefetcher import Prefetcher
from tiercache.tier.store import TierStore
from tiercache.transfer.fetcher import Fetcher
from tiercache.types import BLOCK_SIZE, NAME_MAX, Inode, Kind, MaybeAwaitable
from tiercache.vfs.api import (
    DirEntry,
    Dropped,
    Entry,
    Invalidate,
    LocalRange,
    Ownership,
    StatFs,
)
from tiercache.vfs.directories import Directories
from tiercache.vfs.namespace import Namespace

#: Largest read a driver passes on: one FUSE request.
READ_MAX = BLOCK_SIZE

#: Inodes kept at hand for reads; a miss costs one catalog look-up.
_INODES_MAX = 16_384

#: Versions known to be gone; opening one tells the kernel to look the name up again.
_GONE_MAX = 65_536

#: An object store has no size: a petabyte, none of it used, suits tools that check for room.
_STATFS = StatFs(
    block_size=4096, blocks=1 << 38, blocks_free=1 << 38, files=1 << 32, name_max=NAME_MAX
)


@dataclass(slots=True)
class FilesystemStats:
    """Counters for `status`."""

    opens: int = 0
    reads: int = 0
    reads_warm: int = 0
    bytes_read: int = 0


class TieredFilesystem:
    """The `Filesystem` over catalog, tiers and origin."""

    def __init__(
        self,
        catalog: Catalog,
        namespace: Namespace,
        store: TierStore,
        fetcher: Fetcher,
        prefetcher: Prefetcher,
        ownership: Ownership,
    ) -> None:
        self.ownership = ownership
        self.stats = FilesystemStats()
        self.on_open: Callable[[Inode], object] | None = None
        self._catalog = catalog
        self._namespace = namespace
        self._store = store
        self._fetcher = fetcher
        self._prefetcher = prefetcher
        self._directories = Directories(catalog)
        self._scratch = memoryview(bytearray(READ_MAX))
        self._inodes: OrderedDict[int, Inode] = OrderedDict()
        self._gone: OrderedDict[int, None] = OrderedDict()
        fetcher.on_changed(self._version_gone)

    # -- names -----------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> MaybeAwaitable[Entry]:
        """As `Filesystem.lookup`."""
        if len(name) > NAME_MAX:
            raise NameTooLongError(f"a name of {len(name)} bytes")
        return self._namespace.lookup(parent, name)

    def getattr(self, ino: int) -> MaybeAwaitable[Entry]:
        """As `Filesystem.getattr`."""
        return self._namespace.attributes(ino)

    def opendir(self, ino: int) -> MaybeAwaitable[int]:
        """As `Filesystem.opendir`."""
        self._namespace.directory(ino)
        if self._namespace.listed(ino):
            return self._directories.open(ino)
        return self._list_and_open(ino)

    async def _list_and_open(self, ino: int) -> int:
        await self._namespace.list(ino)
        return self._directories.open(ino)

    def readdir(self, ino: int, handle: int, offset: int) -> MaybeAwaitable[Iterator[DirEntry]]:
        """As `Filesystem.readdir`."""
        directory = self._namespace.directory(ino)
        if handle not in self._directories:
            self._directories.reopen(ino, handle)
        ttl_s = self._namespace.listing_ttl(ino)
        return self._directories.read(directory, handle, offset, ttl_s)

    def releasedir(self, handle: int) -> None:
        """As `Filesystem.releasedir`."""
        self._directories.release(handle)

    def statfs(self) -> StatFs:
        """As `Filesystem.statfs`."""
        return _STATFS

    # -- files -----------------------------------------------------------------------------------

    def open(self, ino: int) -> MaybeAwaitable[None]:
        """As `Filesystem.open`."""
        obj = self._file(ino)
        if ino in self._gone and not self._store.complete(obj):
            if not self._namespace.leads_to(obj):
                raise ObjectChangedError(f"{obj.key!r} has another version now")
            # Its name was dropped when it went, so the origin has named it again: it is back.
            del self._gone[ino]
        if obj.archived:
            raise ObjectArchivedError(f"{obj.key!r} must be restored before it can be read")
        return None

    def opened(self, ino: int) -> None:
        """As `Filesystem.opened`."""
        obj = self._file(ino)
        self.stats.opens += 1
        if self.on_open is not None:
            self.on_open(obj)
        self._store.touch(obj)
        self._prefetcher.opened(obj, resident=self._store.complete(obj))

    def release(self, ino: int) -> None:
        """As `Filesystem.release`."""
        self._prefetcher.released(ino)

    def backing_fd(self, ino: int) -> int | None:
        """As `Filesystem.backing_fd`."""
        return self._store.backing_fd(self._file(ino))

    def backing_kept(self, ino: int) -> None:
        """As `Filesystem.backing_kept`."""
        self._store.kept(ino)

    def backing_gone(self, ino: int) -> None:
        """As `Filesystem.backing_gone`."""
        self._store.gone(ino)

    def read(self, ino: int, offset: int, size: int) -> MaybeAwaitable[bytes | memoryview]:
        """As `Filesystem.read`."""
        obj = self._file(ino)
        size = min(size, obj.size - offset, READ_MAX)
        if size <= 0:
            return b""
        view = self._scratch[:size]
        if not self._store.read_now(obj, offset, view):
            self._count(size)
            # Before anybody waits: tasks begin in any order, requests arrive in the reader's.
            self._fetcher.demand(obj, offset, size)
            self._prefetcher.read(obj, offset, size)
            return self._fetcher.read(obj, offset, size)
        self._read_locally(obj, offset, size)
        return view

    def locate(self, ino: int, offset: int, size: int) -> LocalRange | None:
        """As `Filesystem.locate`."""
        obj = self._file(ino)
        size = min(size, obj.size - offset)
        fd = self._store.locate(obj, offset, size) if size > 0 else -1
        return LocalRange(fd, offset, size) if fd >= 0 else None

    def was_read(self, ino: int, offset: int, size: int) -> None:
        """As `Filesystem.was_read`."""
        obj = self._file(ino)
        self._store.served(obj, size)
        self._read_locally(obj, offset, size)

    def _count(self, size: int) -> None:
        self.stats.reads += 1
        self.stats.bytes_read += size

    def _read_locally(self, obj: Inode, offset: int, size: int) -> None:
        self._count(size)
        self.stats.reads_warm += 1
        if self._store.complete(obj):
            self._prefetcher.read_local(obj, offset, size)
        else:
            self._prefetcher.read(obj, offset, size)

    def _file(self, ino: int) -> Inode:
        obj = self._inodes.get(ino)
        if obj is None:
            obj = self._namespace.inode(ino)
            if obj.kind is not Kind.FILE:
                raise IsDirectoryError(f"inode {ino} is a directory")
            self._inodes[ino] = obj
            if len(self._inodes) > _INODES_MAX:
                self._inodes.popitem(last=False)
        return obj

    # -- changes ---------------------------------------------------------------------------------

    def _version_gone(self, obj: Inode, error: TierCacheError) -> None:
        """The origin refused this version while it was being fetched."""
        if not isinstance(error, ObjectChangedError | ObjectNotFoundError):
            return
        self._gone[obj.ino] = None
        if len(self._gone) > _GONE_MAX:
            self._gone.popitem(last=False)
        self._prefetcher.forget(obj.ino)
        self._namespace.changed(obj, gone=isinstance(error, ObjectNotFoundError))

    def on_invalidate(self, invalidate: Invalidate) -> None:
        """As `Filesystem.on_invalidate`."""
        self._namespace.on_invalidate(invalidate)

    def on_dropped(self, dropped: Dropped) -> None:
        """As `Filesystem.on_dropped`."""
        self._store.on_evicted(dropped)
