"""The operating system as the tiers use it: one object, so that a test can make its n-th call fail.

The calls are plain `os` functions held as attributes; going through the object costs nothing that
can be measured.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tiercache.tier import syscalls


class System:
    """Every call that touches a cache directory."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    fstat = staticmethod(os.fstat)
    stat = staticmethod(os.stat)
    ftruncate = staticmethod(os.ftruncate)
    allocate = staticmethod(syscalls.allocate)
    deallocate = staticmethod(syscalls.deallocate)
    cached_pages = staticmethod(syscalls.cached_pages)
    pwrite = staticmethod(os.pwrite)
    preadv = staticmethod(os.preadv)
    fdatasync = staticmethod(os.fdatasync)
    unlink = staticmethod(os.unlink)
    rename = staticmethod(os.rename)
    mkdir = staticmethod(os.mkdir)
    makedirs = staticmethod(os.makedirs)
    statvfs = staticmethod(os.statvfs)
    rmtree = staticmethod(shutil.rmtree)

    @staticmethod
    def scandir(path: str | Path) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        """The entries of a directory."""
        return os.scandir(path)


def close(system: System, fd: int) -> None:
    """Close *fd* whatever it says: the descriptor is gone in any case.

    An error here is about bytes on their way to the disk, and those prove themselves when read.
    """
    with contextlib.suppress(OSError):
        system.close(fd)


def write_all(system: System, fd: int, data: memoryview, offset: int) -> None:
    """Write all of *data* at *offset*; OSError otherwise."""
    done = system.pwrite(fd, data, offset)
    while done < len(data):
        # A short write is followed by the error that caused it.
        done += system.pwrite(fd, data[done:], offset + done)


def read_whole(system: System, fd: int, into: memoryview, offset: int) -> bool:
    """Fill *into* from *offset*; False when the file ends before."""
    done = 0
    while done < len(into):
        got = system.preadv(fd, [into[done:]], offset + done)
        if not got:
            return False
        done += got
    return True
