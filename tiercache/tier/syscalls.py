"""fallocate(2) and cachestat(2), which the standard library lacks.

`os.posix_fallocate` is no substitute: where a file system cannot allocate, libc writes zeros.
"""

from __future__ import annotations

import ctypes
import os

_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2

#: The same number on every architecture, as of all calls that are younger than 2019.
_SYS_CACHESTAT = 451


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

#: Looking into the page cache takes a microsecond or two, less than letting go of the GIL does.
_kernel = ctypes.PyDLL(None).syscall
_kernel.argtypes = (
    *(ctypes.c_long, ctypes.c_uint),
    *(ctypes.POINTER(_Range), ctypes.POINTER(_CacheStat)),
    ctypes.c_uint,
)


def allocate(fd: int, offset: int, size: int) -> None:
    """Reserve disk space for bytes [offset, offset + size), beyond the end of the file too.

    Raises OSError, EOPNOTSUPP where the file system cannot.
    """
    _fallocate(fd, _FALLOC_FL_KEEP_SIZE, offset, size)


def deallocate(fd: int, offset: int, size: int) -> None:
    """Give the disk space of bytes [offset, offset + size) back; they read as zeros then.

    Space beyond the end of the file may stay.

    Raises OSError, EOPNOTSUPP where the file system cannot.
    """
    _fallocate(fd, _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE, offset, size)


def _fallocate(fd: int, mode: int, offset: int, size: int) -> None:
    if _libc.fallocate(fd, mode, offset, size) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def cached_pages(fd: int, offset: int, size: int) -> int:
    """How many pages of bytes [offset, offset + size) are in the page cache.

    -1 where the kernel does not tell (before Linux 6.5, or under a filter of system calls).
    """
    found = _CacheStat()
    where = _Range(offset, size)
    if _kernel(_SYS_CACHESTAT, fd, where, found, 0) != 0:
        return -1
    return int(found.cached)
