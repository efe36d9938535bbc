"""The driver over libfuse, by pyfuse3: for kernels and systems the raw driver does not fit.

Slower and without passthrough, otherwise the same tree: every handler asks the tree and translates
the answer. Where it differs from the raw driver:

* libfuse owns the device, so the mount dies with its worker. The holder clears it away and starts
  another worker with a fresh mount; files that were open then fail with ENOTCONN for ever.
* pyfuse3 ends its loop on any exception that is not a FUSEError, so all handlers go through one
  boundary, `_answers`.
* pyfuse3 keeps its session in module globals: one driver per process.
* `max_background` stays at the kernel's default: libfuse offers no way to set it from outside.

Names are dropped from the kernel's cache by a task of their own, in a thread: the kernel takes the
lock of the directory, and whoever holds it may be waiting for an answer of ours.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
    StatvfsData,
)

from tiercache.config import MountConfig
from tiercache.errors import MountError, ReadOnlyError, TierCacheError
from tiercache.fuse import fusermount
from tiercache.fuse.bugs import Bugs, innermost
from tiercache.fuse.mountpoint import FSTYPE, top_mount
from tiercache.types import MIB, Inode, Kind, MaybeAwaitable
from tiercache.vfs.api import Entry, Filesystem, Ownership

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Names that may wait to be dropped from the kernel's cache; further ones live until their TTL.
INVALIDATIONS_MAX = 16384

#: Handlers at a time per background request the kernel may have: foreground ones come on top.
_TASKS_PER_BACKGROUND = 4

#: What the device says when the mount is gone or was aborted.
_GONE = frozenset({errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED})

_ROOT_OPTIONS = ("default_permissions", "ro", "nosuid", "nodev")

Handler = Callable[Concatenate["TreeOperations", P], Coroutine[Any, Any, T]]


class LibfuseDriver:
    """Mounts *fs* and serves it. `on_mounted` is called when the mount exists."""

    def __init__(
        self,
        fs: Filesystem,
        config: MountConfig,
        source: str,
        on_mounted: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._source = source
        self._on_mounted = on_mounted
        self._operations = TreeOperations(fs)
        self._names, self._stale_names = trio.open_memory_channel[tuple[int, bytes]](
            INVALIDATIONS_MAX
        )
        #: A thread is inside the kernel with the session, which must then outlive it.
        self._dropping = False
        self._invalidations_skipped = 0
        self._st_dev: int | None = None
        fs.on_invalidate(self._invalidate)

    def status(self) -> dict[str, Any]:
        """Facts for `status` and metrics; counters since this worker started."""
        operations = self._operations
        return {
            "requests": dict(operations.requests),
            "in_flight": operations.in_flight,
            "passthrough": False,
            "passthrough_reason": "the libfuse driver has none",
            "passthrough_opens": 0,
            "cached_opens": operations.requests["open"],
            "invalidations_skipped": self._invalidations_skipped,
            "bugs": operations.bugs.seen,
        }

    async def run(self) -> None:
        """Mount, serve until the mount is gone or this is cancelled, then leave no mount behind.

        Raises MountError when mounting fails.
        """
        self._mount()
        try:
            self._on_mounted()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drop_names)
                await self._serve()
                nursery.cancel_scope.cancel()
        finally:
            self._close()

    def _mount(self) -> None:
        options = set(_ROOT_OPTIONS)
        options.add(f"fsname={fusermount.escape_option(self._source)}")
        options.add(f"subtype={FSTYPE.removeprefix('fuse.')}")
        if self._config.allow_other:
            options.add("allow_other")
        try:
            pyfuse3.init(self._operations, str(self._config.mountpoint), options)
        except RuntimeError as e:
            raise MountError(f"libfuse cannot mount on {self._config.mountpoint}: {e}") from e
        found = top_mount(self._config.mountpoint)
        self._st_dev = found.st_dev if found else None

    async def _serve(self) -> None:
        tasks = self._config.max_background * _TASKS_PER_BACKGROUND
        try:
            await pyfuse3.main(max_tasks=tasks)
        except Exception as e:
            cause = innermost(e)
            if not isinstance(cause, OSError) or cause.errno not in _GONE:
                raise
            log.info("the mount is gone: %s", cause)

    def _close(self) -> None:
        """Unmount if it is still ours: libfuse would detach whatever sits there."""
        try:
            fusermount.detach(self._config.mountpoint, self._st_dev)
        except MountError as e:
            log.warning("%s", e)
        if not self._dropping:
            pyfuse3.close(unmount=False)

    def _invalidate(self, parent: int, name: bytes) -> None:
        """Drop a name soon; when too many wait, it is believed until its TTL ends."""
        try:
            self._names.send_nowait((parent, name))
        except trio.WouldBlock:
            self._invalidations_skipped += 1

    async def _drop_names(self) -> None:
        async for parent, name in self._stale_names:
            self._dropping = True
            await trio.to_thread.run_sync(self._drop_name, parent, name, abandon_on_cancel=True)

    def _drop_name(self, parent: int, name: bytes) -> None:
        try:
            pyfuse3.invalidate_entry(InodeT(parent), FileNameT(name))
        except OSError as e:
            if e.errno != errno.ENOENT:  # ENOENT: the kernel did not hold it
                log.info("the kernel did not drop a name: %s", e.strerror)
        finally:
            self._dropping = False


def _answers(handler: Handler[P, T]) -> Handler[P, T]:
    """The errno boundary: our errors carry theirs, anything else is a bug and answers EIO."""
    name = handler.__name__

    async def answer(self: TreeOperations, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.requests[name] += 1
        self.in_flight += 1
        try:
            return await handler(self, *args, **kwargs)
        except FUSEError:
            raise
        except Exception as e:  # noqa: BLE001 - the one place where a bug must not end the mount
            raise FUSEError(self.errno_of(name, e)) from None
        finally:
            self.in_flight -= 1

    return answer


async def _settled(result: MaybeAwaitable[T]) -> T:
    """What the tree said; no checkpoint when it said it at once."""
    return await result if isinstance(result, Awaitable) else result


class TreeOperations(pyfuse3.Operations):
    """The requests of pyfuse3, answered by a tree. The handle of a file is its inode."""

    enable_writeback_cache = False
    supports_dot_lookup = False
    enable_acl = False

    def __init__(self, fs: Filesystem) -> None:
        super().__init__()
        self._fs = fs
        self._attributes = Attributes(fs.ownership)
        self._directories: dict[int, int] = {}
        self.requests: Counter[str] = Counter()
        self.in_flight = 0
        self.bugs = Bugs()

    def errno_of(self, request: str, error: Exception) -> int:
        """What the reader sees of *error*; a bug is reported."""
        cause = innermost(error)
        if isinstance(cause, TierCacheError):
            return cause.errno
        self.bugs.report(request, error)
        return errno.EIO

    @_answers
    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Absence is an entry without inode, which the kernel believes for the TTL."""
        entry = await _settled(self._fs.lookup(parent_inode, name))
        if entry.inode is None:
            return self._attributes.absent(entry)
        return self._attributes.of(entry.inode, entry)

    @_answers
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        """Attributes of an inode."""
        entry = await _settled(self._fs.getattr(inode))
        if entry.inode is None:
            raise FUSEError(errno.ENOENT)
        return self._attributes.of(entry.inode, entry)

    @_answers
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        """Pages stay valid for ever: an inode is one version of one object."""
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise ReadOnlyError("the tree is read-only")
        await _settled(self._fs.open(inode))
        self._fs.opened(inode)
        return FileInfo(fh=FileHandleT(inode), keep_cache=True)

    @_answers
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """A copy: the tree may use a buffer again that it did not make us wait for."""
        return bytes(await _settled(self._fs.read(fh, off, size)))

    @_answers
    async def release(self, fh: FileHandleT) -> None:
        """One handle was closed."""
        self._fs.release(fh)

    @_answers
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        """Take a snapshot."""
        handle = await _settled(self._fs.opendir(inode))
        self._directories[handle] = inode
        return FileHandleT(handle)

    @_answers
    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        """Entries until the reply is full; the one that did not fit comes again next time."""
        entries = await _settled(self._fs.readdir(self._directories[fh], fh, start_id))
        for name, entry, next_offset in entries:
            if entry.inode is None:
                continue
            attributes = self._attributes.of(entry.inode, entry)
            if not pyfuse3.readdir_reply(token, FileNameT(name), attributes, next_offset):
                return

    @_answers
    async def releasedir(self, fh: FileHandleT) -> None:
        """Give the snapshot back."""
        del self._directories[fh]
        self._fs.releasedir(fh)

    @_answers
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        """Sizes of the tree; none of it is used."""
        found, result = self._fs.statfs(), StatvfsData()
        result.f_bsize = result.f_frsize = found.block_size
        result.f_blocks = found.blocks
        result.f_bfree = result.f_bavail = found.blocks_free
        result.f_files = result.f_ffree = result.f_favail = found.files
        result.f_namemax = found.name_max
        return result


class Attributes:
    """Makes pyfuse3's attributes; owner and permissions are the mount's."""

    __slots__ = ("_ownership",)

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership

    def absent(self, entry: Entry) -> EntryAttributes:
        """A name that does not exist. Raises ENOENT when that may not be believed."""
        if entry.entry_ttl_s <= 0:
            raise FUSEError(errno.ENOENT)
        attributes = EntryAttributes()
        attributes.st_ino = InodeT(0)
        attributes.entry_timeout = entry.entry_ttl_s
        return attributes

    def of(self, inode: Inode, entry: Entry) -> EntryAttributes:
        """*inode*, believed as long as *entry* says."""
        attributes = EntryAttributes()
        attributes.st_ino = InodeT(inode.ino)
        attributes.entry_timeout = entry.entry_ttl_s
        attributes.attr_timeout = entry.attr_ttl_s
        attributes.st_mode = self._mode(inode.kind)
        attributes.st_nlink = 1
        attributes.st_uid = self._ownership.uid
        attributes.st_gid = self._ownership.gid
        attributes.st_size = inode.size
        attributes.st_blksize = MIB
        attributes.st_blocks = (inode.size + 511) // 512
        attributes.st_mtime_ns = inode.mtime_ns
        attributes.st_ctime_ns = inode.mtime_ns
        attributes.st_atime_ns = inode.mtime_ns
        return attributes

    def _mode(self, kind: Kind) -> ModeT:
        if kind is Kind.DIRECTORY:
            return ModeT(stat.S_IFDIR | self._ownership.dir_mode)
        return ModeT(stat.S_IFREG | self._ownership.file_mode)
