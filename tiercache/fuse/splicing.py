"""Large replies whose bytes lie in the page cache: from there to the kernel without a copy of ours.

Header and file go into a pipe and from the pipe to the device. The pages are only referred to on
the way, so their one copy is the kernel's own into those of the mount. A reply must be in the pipe
as a whole before it is sent, which bounds its size: a pipe of 1 MiB, the most a process gets
without privileges, holds 256 pages of a file or parts of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from tiercache.fuse.gone import is_gone
from tiercache.types import KIB, MIB
from tiercache.vfs.api import LocalRange

#: A smaller reply is cheaper to copy.
SPLICE_MIN = 128 * KIB

_PIPE = 1 * MIB


class Splicer:
    """Sends replies to *dev_fd*. On the loop: one reply at a time is in the pipe.

    `available` is False where pipes cannot hold a reply (a user's pipes took all that
    `/proc/sys/fs/pipe-user-pages-soft` allows), and after the device refused one.
    """

    def __init__(self, dev_fd: int) -> None:
        self._dev = dev_fd
        self._pipe: tuple[int, int] | None = None
        self.replies = 0
        self.available = self._reset()

    def send(self, header: bytes, data: LocalRange) -> bool:
        """Send *header*, which announces *data*, and *data*. False: nothing was sent.

        Nobody waiting for the reply any more counts as sent.
        """
        assert self._pipe is not None
        _, write_end = self._pipe
        with contextlib.suppress(OSError):
            os.write(write_end, header)
            taken = os.splice(
                *(data.fd, write_end, data.size), offset_src=data.offset, flags=os.SPLICE_F_NONBLOCK
            )
            if taken == data.size:
                return self._pass_on(len(header) + taken)
        self.available = self._reset()
        return False

    def _pass_on(self, size: int) -> bool:
        """Send the *size* bytes that are in the pipe."""
        assert self._pipe is not None
        try:
            os.splice(self._pipe[0], self._dev, size)
        except OSError as error:
            if not is_gone(error):
                self.close()
                return False
            self.available = self._reset()
        else:
            self.replies += 1
        return True

    def close(self) -> None:
        """Close the pipe; nothing can be sent any more."""
        self.available = False
        for fd in self._pipe or ():
            os.close(fd)
        self._pipe = None

    def _reset(self) -> bool:
        """Have an empty pipe that holds a whole reply; whether there is one."""
        self.close()
        with contextlib.suppress(OSError):
            self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            return fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, _PIPE) >= _PIPE
        return False
