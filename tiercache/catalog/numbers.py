"""Numbers that are never handed out twice, whatever happens to the database.

The kernel remembers inode numbers for as long as it is mounted, longer than any worker. So a number
must not come back after a crash, after an older database was restored, or after a damaged one was
thrown away. What was handed out is therefore not read from the database: a file beside it holds a
limit, durable before any number below it is used, and every run starts at that limit. What a run
reserved and did not use is skipped: 2^63 numbers last for 2^43 runs.

Should that file be lost too, the clock stands in. Counting in units of 1024 ns, it is ahead of any
number handed out before unless more than 976,000 were handed out per second ever since, several
times what this daemon can do. The larger of both counts, so each one covers for the other: the file
for a clock that was set back, the clock for a file that was restored from a backup.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from tiercache.types import ROOT_INO

#: Numbers reserved per write of the file: one fsync for a million new names.
RESERVED = 1 << 20

_LIMIT = struct.Struct(">QQ")  # limit and its complement, which tells a torn or foreign file
_MASK = (1 << 64) - 1


class Numbers:
    """An endless, durable, ascending sequence of numbers above ROOT_INO."""

    def __init__(self, path: Path, now_ns: int) -> None:
        """Raises OSError when *path* cannot be written."""
        # Updated in place: no new block is needed, so a full disk does not stop a restart.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._next = max(_read(self._fd), now_ns >> 10, ROOT_INO + 1)
            self._limit = self._next
            self._reserve()
        except OSError:
            os.close(self._fd)
            raise

    def take(self) -> int:
        """The next number. Raises OSError when no more can be reserved."""
        if self._next >= self._limit:
            self._reserve()
        number = self._next
        self._next += 1
        return number

    def skip_past(self, number: int) -> None:
        """Hand out only numbers above *number* from now on."""
        self._next = max(self._next, number + 1)

    def close(self) -> None:
        """Give back the file."""
        os.close(self._fd)

    def _reserve(self) -> None:
        limit = self._next + RESERVED
        os.pwrite(self._fd, _LIMIT.pack(limit, limit ^ _MASK), 0)
        os.fsync(self._fd)
        self._limit = limit


def _read(fd: int) -> int:
    data = os.pread(fd, _LIMIT.size, 0)
    if len(data) != _LIMIT.size:
        return 0
    limit, complement = _LIMIT.unpack(data)
    return int(limit) if limit ^ _MASK == complement else 0
