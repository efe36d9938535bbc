"""What a driver may ask of the tree, and what it gets back.

Every call returns its result when it can and a coroutine when it must wait, so a hot request never
becomes a task. Errors are `TierCacheError`s with their errno. A driver translates; it decides
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tiercache.types import Inode, MaybeAwaitable

#: Drops a name the kernel may still hold. Must return at once and never block on the kernel.
Invalidate = Callable[[int, bytes], None]

#: Told that the cached copy of an inode is gone: idle registrations of it can be given back.
Dropped = Callable[[int], None]


class Entry(NamedTuple):
    """The answer to a lookup. `inode` None: absent, which may be believed for `entry_ttl_s`."""

    inode: Inode | None
    entry_ttl_s: float
    attr_ttl_s: float


class DirEntry(NamedTuple):
    """One name of a directory; `next_offset` continues right after it."""

    name: bytes
    entry: Entry
    next_offset: int


@dataclass(frozen=True, slots=True)
class StatFs:
    """Sizes in units of `block_size` bytes; all fit a signed 64-bit integer and a float."""

    block_size: int
    blocks: int
    blocks_free: int
    files: int
    name_max: int


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who owns every inode and what may be done with it (permission bits only)."""

    uid: int
    gid: int
    file_mode: int
    dir_mode: int


class LocalRange(NamedTuple):
    """Bytes [offset, offset + size) of the file *fd*, all in the page cache.

    Valid until the caller's next call on the tree or its next checkpoint.
    """

    fd: int
    offset: int
    size: int


class Filesystem(Protocol):
    """A read-only tree."""

    ownership: Ownership

    def lookup(self, parent: int, name: bytes) -> MaybeAwaitable[Entry]:
        """Find *name* in directory *parent*. Absence is an Entry, not an error."""

    def getattr(self, ino: int) -> MaybeAwaitable[Entry]:
        """Attributes of *ino*, with how long they may be believed."""

    def open(self, ino: int) -> MaybeAwaitable[None]:
        """Begin to use *ino*. The handle of a file is its inode: reads carry no other state.

        Raises ObjectChangedError (ESTALE) when the version is gone and not wholly cached; the
        kernel then looks the name up again by itself.
        """

    def opened(self, ino: int) -> None:
        """The opener of *ino* has its answer: count it and fetch ahead.

        Apart from `open`, so that nobody waits for it.
        """

    def backing_fd(self, ino: int) -> int | None:
        """A new fd on the complete, verified local copy of *ino*, or None. The caller closes it."""

    def backing_kept(self, ino: int) -> None:
        """The kernel now holds the local copy of *ino*: it may be unlinked, never punched."""

    def backing_gone(self, ino: int) -> None:
        """The registration was given back.

        Mappings may hold the copy for longer and nobody is told: it may be unlinked, never punched.
        """

    def read(self, ino: int, offset: int, size: int) -> MaybeAwaitable[bytes | memoryview]:
        """Up to *size* bytes; fewer only at the end of the file.

        The buffer is valid until the caller's next call on this object or its next checkpoint,
        whichever comes first: reply, or copy, at once.
        """

    def locate(self, ino: int, offset: int, size: int) -> LocalRange | None:
        """Where *size* bytes from *offset*, fewer at the end of the file, lie in memory.

        None: `read` them. Valid until the next call of the tree, and to be told of by `was_read`.
        """

    def was_read(self, ino: int, offset: int, size: int) -> None:
        """*size* bytes from *offset* were taken from where `locate` said."""

    def release(self, ino: int) -> None:
        """One handle of *ino* was closed."""

    def opendir(self, ino: int) -> MaybeAwaitable[int]:
        """Take a snapshot of directory *ino*; returns its handle, unique across restarts."""

    def readdir(self, ino: int, handle: int, offset: int) -> MaybeAwaitable[Iterator[DirEntry]]:
        """Entries from *offset* (0: the start) on, `.` and `..` first.

        Offsets stay valid for the life of the handle. An unknown handle (the worker was restarted)
        is answered from a new snapshot.
        """

    def releasedir(self, handle: int) -> None:
        """Give the snapshot back. Unknown handles are ignored."""

    def statfs(self) -> StatFs:
        """Never asks the origin."""

    def on_invalidate(self, invalidate: Invalidate) -> None:
        """Install how to tell the kernel that a name no longer means what it did."""

    def on_dropped(self, dropped: Dropped) -> None:
        """Install how to tell the driver that a local copy is gone."""
