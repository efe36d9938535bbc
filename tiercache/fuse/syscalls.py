"""mount(2), umount2(2) and who may call them; the standard library lacks both."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MNT_FORCE, MNT_DETACH, UMOUNT_NOFOLLOW = 1, 2, 8

_CAP_SYS_ADMIN = 21

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: Path, fstype: str, flags: int, options: str) -> None:
    """Mount, as the system call does. Raises OSError."""
    arguments = (os.fsencode(source), os.fsencode(target), fstype.encode())
    if _libc.mount(*arguments, ctypes.c_ulong(flags), options.encode()) != 0:
        raise _last_error(target)


def umount(target: Path, flags: int = 0) -> None:
    """Unmount, never through a symbolic link. Raises OSError."""
    if _libc.umount2(os.fsencode(target), flags | UMOUNT_NOFOLLOW) != 0:
        raise _last_error(target)


def _last_error(target: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(target))


def privileged() -> bool:
    """Whether this process may mount by itself: CAP_SYS_ADMIN is in its effective set."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
