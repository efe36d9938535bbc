"""One daemon per directory: a flock on `<directory>/lock` that names who holds it.

The kernel gives a lock back with the last process that holds the descriptor open. Workers inherit
it, so a worker that still drains keeps its cache directories even when its holder was killed. The
lock is on the inode: symbolic links and bind mounts lead to the same one. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from tiercache.errors import MountError

NAME = "lock"

#: How often a lock file may be removed under our hands before somebody must be asked.
_ATTEMPTS = 5


class Locks:
    """The locks of one mount; closing gives them back."""

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._inodes: dict[tuple[int, int], Path] = {}

    def take(self, directory: Path, subject: str) -> None:
        """Create *directory* when missing and lock it. Raises MountError, naming the holder's pid.

        *subject* is what the message calls it.
        """
        for _ in range(_ATTEMPTS):
            fd = _open(directory, subject)
            self._fds.append(fd)
            self._refuse_twice(fd, directory, subject)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MountError(f"{subject} is in use by {_owner(fd)}") from None
            # The one before us may have removed the file between our opening and locking it.
            if _is_current(fd, directory / NAME):
                return self._sign_first(subject)
        raise MountError(f"{subject} is being taken and given up by others; try again")

    def _sign_first(self, subject: str) -> None:
        try:
            self.sign([os.getpid()])
        except OSError as e:
            raise MountError(f"cannot use {subject}: {e.strerror}") from None

    def _refuse_twice(self, fd: int, directory: Path, subject: str) -> None:
        state = os.fstat(fd)
        other = self._inodes.setdefault((state.st_dev, state.st_ino), directory)
        if other is not directory:
            raise MountError(f"{subject} is the same directory as {other}")

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors to hand on to a worker."""
        return tuple(self._fds)

    def sign(self, pids: Iterable[int]) -> None:
        """Write down who holds the locks, most important first."""
        text = " ".join(str(pid) for pid in pids).encode() + b"\n"
        for fd in self._fds:
            os.ftruncate(fd, 0)
            os.pwrite(fd, text, 0)

    def close(self) -> None:
        """Give everything back, unless a worker still holds it."""
        self._inodes.clear()
        while self._fds:
            os.close(self._fds.pop())


def _open(directory: Path, subject: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "no permission to write there, or a read-only disk")
        return os.open(directory / NAME, flags, 0o600)
    except OSError as e:
        raise MountError(f"cannot use {subject}: {e.strerror}") from None


def _is_current(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _owner(fd: int) -> str:
    """Who signed the lock and is still alive."""
    for pid in os.pread(fd, 64, 0).split():
        if pid.isdigit() and Path(f"/proc/{int(pid)}").exists():
            return f"pid {int(pid)}"
    return "another process"
