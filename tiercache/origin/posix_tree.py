"""A directory tree read as a store of objects; synchronous, for pool threads.

Keys are paths below the root, byte for byte. The tree is hostile input like any other origin's:
nothing outside the root is ever opened. A path is located with O_PATH, which touches nothing, then
judged by its descriptor (kind, and real path by /proc), and only then opened through that same
descriptor; whatever is swapped in meanwhile changes a name, not what was judged. Symbolic links
count only while they stay inside the root and do not lead back to a directory above themselves.
Devices, pipes, sockets and dangling links are not shown.

The ETag is a hash of device, inode number, size, mtime and ctime, and bytes count only if it is
still the same after they were read. Two writes of equal size within one tick of the file system's
clock (4 ms on most kernels before 6.13) look like one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tiercache.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    OriginReplyError,
    OriginUnavailableError,
)
from tiercache.types import MIB, ObjectInfo, Progress

#: Read at once; cancellation and the ETag are looked at in between.
READ_PIECE = MIB

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})
_REFUSED = frozenset({errno.EACCES, errno.EPERM})

#: A key and its attributes; None stands for a directory.
Entry: TypeAlias = tuple[bytes, ObjectInfo | None]


@dataclass(frozen=True, slots=True)
class Located:
    """Something inside the root: an O_PATH descriptor, its attributes and its real path."""

    descriptor: int
    attributes: os.stat_result
    real_path: bytes

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self.attributes.st_mode)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.attributes.st_mode)


class PosixTree:
    """The objects below *root*. Methods block, and raise only `tiercache.errors`."""

    def __init__(self, root: bytes) -> None:
        self._root = os.path.realpath(root)
        self._device: int | None = None

    @property
    def root(self) -> bytes:
        """The real path of the root."""
        return self._root

    def head(self, key: bytes) -> ObjectInfo:
        """The file *key* as it is now."""
        with self.located(key) as found:
            return file_info(key, _file(key, found).attributes)

    def read(self, key: bytes, etag: str, start: int, into: memoryview, advance: Progress) -> None:
        """Fill *into* from offset *start*; *advance* is told after each piece and may raise."""
        with self.located(key) as found, _opened(key, _file(key, found)) as descriptor:
            filled = _read_piece(key, etag, descriptor, start, into[:0])
            while filled < len(into):
                piece = into[filled : filled + READ_PIECE]
                count = _read_piece(key, etag, descriptor, start + filled, piece)
                if count == 0:
                    raise OriginReplyError(f"{key!r} ends at offset {start + filled}")
                filled += count
                advance(filled)

    def names(self, directory: bytes) -> Sequence[bytes]:
        """The names in *directory*, sorted; those that are no objects included."""
        with (
            self.located(directory) as found,
            _opened(directory, found, os.O_DIRECTORY) as descriptor,
            _translated(directory),
        ):
            return sorted(map(os.fsencode, os.listdir(descriptor)))  # noqa: PTH208

    def look(self, directory: bytes, names: Sequence[bytes]) -> Sequence[Entry]:
        """Key and attributes of each of *names* in *directory*.

        Names that are gone by now, or that are neither file nor directory, are left out.
        """
        with self.located(directory) as found:
            inside = directory + b"/" if directory else b""
            looked = (self._entry(found.descriptor, inside, name) for name in names)
            return [entry for entry in looked if entry is not None]

    def _entry(self, directory: int, inside: bytes, name: bytes) -> Entry | None:
        key = inside + name
        try:
            attributes = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except OSError:
            return None
        if stat.S_ISREG(attributes.st_mode):
            return key, file_info(key, attributes)
        if stat.S_ISDIR(attributes.st_mode):
            return key, None
        return self._link(key) if stat.S_ISLNK(attributes.st_mode) else None

    def _link(self, key: bytes) -> Entry | None:
        """What the symbolic link *key* stands for, if anything that may be shown."""
        with (
            contextlib.suppress(ObjectNotFoundError, AccessDeniedError),
            self.located(key) as found,
        ):
            if found.is_file:
                return key, file_info(key, found.attributes)
            if found.is_directory and not self._leads_back(key, found.real_path):
                return key, None
        return None

    def _leads_back(self, key: bytes, target: bytes) -> bool:
        """Whether a directory on the way to *key* lies in *target*: walking in would not end."""
        parts = key.split(b"/")[:-1]
        for depth in range(len(parts) + 1):
            with self.located(b"/".join(parts[:depth])) as above:
                if _is_inside(above.real_path, target):
                    return True
        return False

    @contextlib.contextmanager
    def located(self, key: bytes) -> Iterator[Located]:
        """What *key* names, links followed; the root for an empty key.

        `ObjectNotFoundError` also for what lies outside.
        """
        if key and not _is_plain(key):
            raise ObjectNotFoundError(f"{key!r} is no path below the root")
        with self._opened_root() as root:
            with _translated(key):
                descriptor = os.open(key or b".", os.O_PATH | os.O_CLOEXEC, dir_fd=root)
            with _closing(descriptor):
                with _translated(key):
                    found = Located(descriptor, os.fstat(descriptor), _real_path(descriptor))
                    inside = _is_inside(found.real_path, _real_path(root))
                if not inside:
                    raise ObjectNotFoundError(f"{key!r} leads out of the root")
                yield found

    @contextlib.contextmanager
    def _opened_root(self) -> Iterator[int]:
        """The root's descriptor; `OriginUnavailableError` if it is not what it was at first.

        A share that is no longer mounted leaves an empty directory of another device behind: that
        must never look like a tree without files.
        """
        try:
            descriptor = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise OriginUnavailableError(f"cannot open the root: {error.strerror}") from error
        with _closing(descriptor):
            device = os.fstat(descriptor).st_dev
            self._device = self._device or device
            if device != self._device:
                raise OriginUnavailableError("the root lies on another device than at first")
            yield descriptor


def file_info(key: bytes, attributes: os.stat_result) -> ObjectInfo:
    """*key* as an object."""
    return ObjectInfo(key, attributes.st_size, _etag(attributes), attributes.st_mtime_ns)


def _etag(attributes: os.stat_result) -> str:
    version = (
        attributes.st_dev,
        attributes.st_ino,
        attributes.st_size,
        attributes.st_mtime_ns,
        attributes.st_ctime_ns,
    )
    return hashlib.blake2b(repr(version).encode(), digest_size=16).hexdigest()


def _read_piece(key: bytes, etag: str, descriptor: int, offset: int, into: memoryview) -> int:
    """Bytes read into *into*; `ObjectChangedError` unless they are of version *etag*."""
    with _translated(key):
        count = os.preadv(descriptor, [into], offset)
        attributes = os.fstat(descriptor)
    if _etag(attributes) != etag:
        raise ObjectChangedError(f"{key!r} has changed")
    return count


@contextlib.contextmanager
def _opened(key: bytes, found: Located, flags: int = 0) -> Iterator[int]:
    """A descriptor to read the very thing that was located."""
    with _translated(key):
        link = b"/proc/self/fd/%d" % found.descriptor
        descriptor = os.open(link, os.O_RDONLY | os.O_CLOEXEC | flags)
    with _closing(descriptor):
        yield descriptor


def _file(key: bytes, found: Located) -> Located:
    if not found.is_file:
        raise ObjectNotFoundError(f"{key!r} is not a regular file")
    return found


def _is_plain(key: bytes) -> bool:
    """Whether every component is a name of its own and not a way around."""
    return not any(part in {b"", b".", b".."} for part in key.split(b"/")) and b"\0" not in key


def _is_inside(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory.rstrip(b"/") + b"/")


def _real_path(descriptor: int) -> bytes:
    # Path.readlink would decode what need not be text.
    return os.readlink(b"/proc/self/fd/%d" % descriptor)  # noqa: PTH115


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translated(key: bytes) -> Iterator[None]:
    """Operating system errors as errors of an origin."""
    try:
        yield
    except OSError as error:
        text = f"{key!r}: {error.strerror}"
        if error.errno in _ABSENT:
            raise ObjectNotFoundError(text) from error
        if error.errno in _REFUSED:
            raise AccessDeniedError(text) from error
        raise OriginUnavailableError(text) from error
