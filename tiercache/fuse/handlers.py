"""One method per request of the kernel: unpack it, ask the tree, pack the answer.

A handler gets the request's unique, its inode and its length; the request itself lies in the
buffer it was read into. What the tree cannot answer at once goes to `later` together with the
method that will send the answer. Handlers raise what the tree raises; the driver turns it into an
errno.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from struct import Struct
from typing import Protocol, TypeAlias, TypeVar

from tiercache.errors import ReadOnlyError
from tiercache.fuse.gone import is_gone
from tiercache.fuse.opens import Opens
from tiercache.fuse.protocol import (
    HEADER_SIZE,
    OPEN_REPLY,
    OUT_HEADER,
    READ_IN,
    Opcode,
    OpenFlag,
    pack_error,
    pack_open_reply,
    pack_reply,
)
from tiercache.fuse.replies import Replies, statfs
from tiercache.fuse.splicing import SPLICE_MIN, Splicer
from tiercache.vfs.api import DirEntry, Entry, Filesystem

T = TypeVar("T")

#: Called with unique, inode and length of the request.
Handler: TypeAlias = Callable[[int, int, int], None]

_CACHED = int(OpenFlag.KEEP_CACHE | OpenFlag.NOFLUSH)
_PASSTHROUGH = int(OpenFlag.PASSTHROUGH | OpenFlag.NOFLUSH)

_ACCESS_MODE = os.O_ACCMODE
_HEADER = OUT_HEADER.size
_OPEN_REPLY_SIZE = OPEN_REPLY.size
_HANDLE = Struct("=Q")

#: A read-only mount lets none of these through; whoever remounts it writable learns it here.
_WRITES = (
    Opcode.SETATTR,
    Opcode.SYMLINK,
    Opcode.MKNOD,
    Opcode.MKDIR,
    Opcode.UNLINK,
    Opcode.RMDIR,
    Opcode.RENAME,
    Opcode.RENAME2,
    Opcode.LINK,
    Opcode.WRITE,
    Opcode.CREATE,
    Opcode.TMPFILE,
    Opcode.FALLOCATE,
)

#: The kernel takes back a name or an inode number; ours outlive its caches. No reply is due.
_FORGETS = (Opcode.FORGET, Opcode.BATCH_FORGET)


class Later(Protocol):
    """Awaits what the tree could not say at once, then sends it."""

    def __call__(
        self, unique: int, result: Awaitable[T], send: Callable[[int, T], None], /
    ) -> None:
        """Answer request *unique* by `send(unique, await result)`."""


class Handlers:
    """The answers to requests that were read from *dev_fd* into *buffer*."""

    def __init__(
        self, fs: Filesystem, dev_fd: int, buffer: bytearray, opens: Opens, later: Later
    ) -> None:
        self._fs = fs
        self._dev = dev_fd
        self._buffer = buffer
        self._opens = opens
        self._later = later
        self._replies = Replies(fs.ownership)
        self._fs_open = fs.open
        self._fs_opened = fs.opened
        self._fs_read = fs.read
        self._fs_locate = fs.locate
        self._fs_was_read = fs.was_read
        self.splicer = Splicer(dev_fd)
        self._fs_release = fs.release

    def table(self) -> dict[Opcode, Handler]:
        """Who answers what. Every other request gets ENOSYS, and most kinds never come again."""
        return {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.OPEN: self._open,
            Opcode.READ: self._read,
            Opcode.RELEASE: self._release,
            Opcode.OPENDIR: self._opendir,
            Opcode.READDIR: partial(self._readdir, self._replies.names),
            Opcode.READDIRPLUS: partial(self._readdir, self._replies.names_and_entries),
            Opcode.RELEASEDIR: self._releasedir,
            Opcode.STATFS: self._statfs,
            Opcode.DESTROY: self._destroy,
            **dict.fromkeys(_FORGETS, _ignore),
            **dict.fromkeys(_WRITES, _refuse_write),
        }

    def unsupported(self, unique: int, _ino: int, _length: int) -> None:
        """Answer ENOSYS, which the kernel remembers for most kinds of requests.

        So ACCESS is left to `default_permissions`, FLUSH and FSYNC have nothing to do, extended
        attributes do not exist, locks are local, and copy_file_range falls back to reading.
        """
        self.write(pack_error(unique, errno.ENOSYS))

    def write(self, reply: bytes) -> bool:
        """Send a whole reply. False: nobody waits for it any more."""
        try:
            os.write(self._dev, reply)
        except OSError as error:
            if not is_gone(error):
                raise
            return False
        return True

    def _lookup(self, unique: int, ino: int, length: int) -> None:
        found = self._fs.lookup(ino, bytes(self._buffer[HEADER_SIZE : length - 1]))
        if isinstance(found, Entry):
            self._send_entry(unique, found)
        else:
            self._later(unique, found, self._send_entry)

    def _send_entry(self, unique: int, entry: Entry) -> None:
        if entry.inode is None and entry.entry_ttl_s <= 0:
            self.write(pack_error(unique, errno.ENOENT))
        else:
            self.write(pack_reply(unique, self._replies.entry(entry)))

    def _getattr(self, unique: int, ino: int, _length: int) -> None:
        found = self._fs.getattr(ino)
        if isinstance(found, Entry):
            self._send_attr(unique, found)
        else:
            self._later(unique, found, self._send_attr)

    def _send_attr(self, unique: int, entry: Entry) -> None:
        if entry.inode is None:
            self.write(pack_error(unique, errno.ENOENT))
        else:
            self.write(pack_reply(unique, self._replies.attr(entry)))

    def _open(self, unique: int, ino: int, _length: int) -> None:
        if self._buffer[HEADER_SIZE] & _ACCESS_MODE:
            # In passthrough the kernel would open the cached copy for writing.
            raise ReadOnlyError("opened for writing")
        waits = self._fs_open(ino)
        if waits is None:
            self._send_open(ino, unique)
        else:
            self._later(unique, waits, partial(self._send_open, ino))

    def _send_open(self, ino: int, unique: int, _opened: None = None) -> None:
        """Count the handle, then answer: the order that `opens` promises."""
        try:
            backing = self._opens.begin(ino)
            flags = _PASSTHROUGH if backing else _CACHED
            reply = OPEN_REPLY.pack(_OPEN_REPLY_SIZE, 0, unique, ino, flags, backing)
        except BaseException:
            self._fs_release(ino)
            raise
        try:
            os.write(self._dev, reply)
        except OSError as error:
            self._opens.end(ino)
            self._fs_release(ino)
            if not is_gone(error):
                raise
        else:
            self._fs_opened(ino)

    def _release(self, unique: int, ino: int, _length: int) -> None:
        """Answer, then uncount the handle: the order that `opens` promises."""
        self.write(OUT_HEADER.pack(_HEADER, 0, unique))
        self._opens.end(ino)
        self._fs_release(ino)

    def _read(self, unique: int, ino: int, _length: int) -> None:
        _, offset, size = READ_IN.unpack_from(self._buffer, HEADER_SIZE)
        if size >= SPLICE_MIN and self._splice(unique, ino, offset, size):
            return
        data = self._fs_read(ino, offset, size)
        if isinstance(data, bytes | memoryview):
            self._send_data(unique, data)
        else:
            self._later(unique, data, self._send_data)

    def _splice(self, unique: int, ino: int, offset: int, size: int) -> bool:
        """Answer a large read from the page cache, if that is where its bytes are."""
        local = self._fs_locate(ino, offset, size) if self.splicer.available else None
        if local is None:
            return False
        if not self.splicer.send(OUT_HEADER.pack(_HEADER + local.size, 0, unique), local):
            return False
        # Only now: what is fetched because of it may take the descriptor's file away.
        self._fs_was_read(ino, offset, local.size)
        return True

    def _send_data(self, unique: int, data: bytes | bytearray | memoryview) -> None:
        try:
            os.writev(self._dev, (OUT_HEADER.pack(_HEADER + len(data), 0, unique), data))
        except OSError as error:
            if not is_gone(error):
                raise

    def _opendir(self, unique: int, ino: int, _length: int) -> None:
        handle = self._fs.opendir(ino)
        if isinstance(handle, int):
            self._send_opendir(unique, handle)
        else:
            self._later(unique, handle, self._send_opendir)

    def _send_opendir(self, unique: int, handle: int) -> None:
        if not self.write(pack_open_reply(unique, handle, 0, 0)):
            self._fs.releasedir(handle)

    def _readdir(
        self,
        pack: Callable[[Iterator[DirEntry], int], bytearray],
        unique: int,
        ino: int,
        _length: int,
    ) -> None:
        handle, offset, size = READ_IN.unpack_from(self._buffer, HEADER_SIZE)
        entries = self._fs.readdir(ino, handle, offset)
        if isinstance(entries, Awaitable):
            self._later(unique, entries, partial(self._send_names, pack, size))
        else:
            self._send_names(pack, size, unique, entries)

    def _send_names(
        self,
        pack: Callable[[Iterator[DirEntry], int], bytearray],
        size: int,
        unique: int,
        entries: Iterator[DirEntry],
    ) -> None:
        self._send_data(unique, pack(entries, size))

    def _releasedir(self, unique: int, _ino: int, _length: int) -> None:
        (handle,) = _HANDLE.unpack_from(self._buffer, HEADER_SIZE)
        self._fs.releasedir(handle)
        self.write(pack_error(unique, 0))

    def _statfs(self, unique: int, _ino: int, _length: int) -> None:
        self.write(pack_reply(unique, statfs(self._fs.statfs())))

    def _destroy(self, unique: int, _ino: int, _length: int) -> None:
        self.write(pack_error(unique, 0))


def _ignore(_unique: int, _ino: int, _length: int) -> None:
    """No reply is due."""


def _refuse_write(_unique: int, _ino: int, _length: int) -> None:
    raise ReadOnlyError("the tree is read-only")
