"""Mounting and unmounting without privileges, through the setuid helper of libfuse.

`fusermount3` opens /dev/fuse, mounts, and passes the device back over the socket whose number is in
`_FUSE_COMMFD`. Older systems call it `fusermount`; both speak the same protocol. Unmounting goes
through it too, because umount(2) is refused to ordinary users. Standard library only.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tiercache.errors import MountError
from tiercache.fuse import syscalls
from tiercache.fuse.link import receive_fds
from tiercache.fuse.mountpoint import FSTYPE, top_mount

PROGRAMS = ("fusermount3", "fusermount")

FUSE_CONF = Path("/etc/fuse.conf")

#: The helper does nothing that takes long; one that does is stuck.
_TIMEOUT_S = 10.0


def find_program(path: str | None = None) -> str | None:
    """The helper's full name, looked up in *path* (default: $PATH); None when there is none."""
    folders = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    for name in PROGRAMS:
        for folder in folders:
            if folder and os.access(f"{folder}/{name}", os.X_OK):
                return f"{folder}/{name}"
    return None


def required_program() -> str:
    """The helper's full name. Raises MountError that says how to get it."""
    program = find_program()
    if program is None:
        raise MountError(
            "fusermount3 not found: install it (Debian, Ubuntu: apt install fuse3; "
            "Fedora: dnf install fuse3) or mount as root"
        )
    return program


def user_allow_other(conf: Path = FUSE_CONF) -> bool:
    """Whether the administrator lets ordinary users mount with allow_other."""
    try:
        lines = conf.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)


def mount(mountpoint: Path, options: Sequence[str]) -> int:
    """Mount and return the open /dev/fuse. Raises MountError."""
    program = required_program()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [program, "-o", ",".join(options), "--", os.fspath(mountpoint)]
        environment = {**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}
        _run(command, environment, (theirs.fileno(),))
        theirs.close()
        return _receive(ours)


def _receive(comm: socket.socket) -> int:
    comm.settimeout(_TIMEOUT_S)
    try:
        _, fds = receive_fds(comm, 1, 1)
    except OSError as e:
        raise MountError(f"fusermount did not hand over /dev/fuse: {e}") from e
    if not fds:
        raise MountError("fusermount did not hand over /dev/fuse")
    return fds[0]


def escape_option(value: str) -> str:
    """*value* as part of a comma-separated option list."""
    return value.replace("\\", "\\\\").replace(",", "\\,")


def unmount(mountpoint: Path, lazy: bool = False) -> None:
    """Unmount by the means this process has. Raises MountError, for instance when busy.

    *lazy* takes the mount out of the tree at once and lets open files live on.
    """
    if syscalls.privileged():
        try:
            syscalls.umount(mountpoint, syscalls.MNT_DETACH if lazy else 0)
        except OSError as e:
            raise MountError(f"cannot unmount {mountpoint}: {e.strerror}") from e
    else:
        flags = ["-u", "-z"] if lazy else ["-u"]
        _run([required_program(), *flags, "--", os.fspath(mountpoint)], dict(os.environ))


def detach(mountpoint: Path, st_dev: int | None = None) -> bool:
    """Take our mount out of the tree: cleanly, or lazily when it is busy.

    Does nothing and returns False when *mountpoint* holds no tiercache mount, or not the one whose
    device number is *st_dev*. Raises MountError when it stays. The worker calls this when its
    holder was killed.
    """
    found = top_mount(mountpoint)
    if found is None or found.fstype != FSTYPE or st_dev not in (None, found.st_dev):
        return False
    try:
        unmount(mountpoint)
    except MountError:
        unmount(mountpoint, lazy=True)
    return True


def _run(command: list[str], environment: dict[str, str], fds: tuple[int, ...] = ()) -> None:
    try:
        done = subprocess.run(
            command,
            env=environment,
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise MountError(f"{command[0]} failed: {e}") from e
    if done.returncode != 0:
        text = " ".join(done.stderr.decode(errors="replace").split())
        raise MountError(f"{command[0]} failed: {text or f'exit status {done.returncode}'}")
