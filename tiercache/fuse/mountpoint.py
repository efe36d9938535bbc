"""What is mounted where, and whether it answers.

Everything here must work beside a mount that is dead or hangs, so nothing calls `stat` on a mount
from its own thread: the mount table comes from `/proc/self/mountinfo`, and whether a mount answers
is asked by a child that can be abandoned, since a process that waits for a FUSE reply cannot always
be killed. Standard library only.
"""

from __future__ import annotations

import enum
import errno
import hashlib
import os
import re
import select
import signal
import sys
from pathlib import Path
from typing import NamedTuple

#: How the kernel names our mounts in /proc/mounts.
FSTYPE = "fuse.tiercache"

#: How long a healthy mount may take to answer a stat before it counts as hung.
STAT_TIMEOUT_S = 5.0

#: Symbolic links followed to find a mount point, as in the kernel.
_LINKS_MAX = 40

_ESCAPE = re.compile(rb"\\([0-7]{3})")

#: `stat` alone may be answered from the kernel's cache though nobody serves the mount any more;
#: `statvfs` is not cached, but says nothing of being denied.
_PROBE = """
import os, sys
try:
    os.stat(sys.argv[1])
    os.statvfs(sys.argv[1])
except OSError as e:
    os._exit(e.errno)
os._exit(0)
"""


class Mount(NamedTuple):
    """One line of the mount table. `root` is the mounted part of the file system."""

    mountpoint: Path
    source: str
    st_dev: int
    fstype: str
    root: Path


class Health(enum.Enum):
    """What a mount does when asked."""

    OK = "ok"  # it answers, be it with an error
    DEAD = "dead"  # nobody serves it any more
    HUNG = "hung"  # no answer in time
    DENIED = "denied"  # it belongs to somebody else and tells us nothing


def mount_table(text: bytes | None = None) -> list[Mount]:
    """The mounts this process sees, oldest first; *text* instead of /proc/self/mountinfo."""
    if text is None:
        text = Path("/proc/self/mountinfo").read_bytes()
    return [_parse(line) for line in text.split(b"\n") if line]


def _parse(line: bytes) -> Mount:
    """Fields of proc_pid_mountinfo(5); optional ones end with a lone dash."""
    before, _, after = line.partition(b" - ")
    _, _, device, root, mountpoint, *_ = before.split(b" ")
    fstype, source, *_ = after.split(b" ")
    major, minor = device.split(b":")
    return Mount(
        mountpoint=Path(_unescape(mountpoint)),
        source=_unescape(source),
        st_dev=os.makedev(int(major), int(minor)),
        fstype=_unescape(fstype),
        root=Path(_unescape(root)),
    )


def _unescape(field: bytes) -> str:
    """Undo the octal escapes of space, tab, newline and backslash."""
    return os.fsdecode(_ESCAPE.sub(lambda m: bytes([int(m[1], 8)]), field))


def find_mounts(fstype: str = FSTYPE) -> list[Mount]:
    """All mounts of *fstype*; `health` tells how each is."""
    return [mount for mount in mount_table() if mount.fstype == fstype]


def top_mount(mountpoint: Path) -> Mount | None:
    """The mount that covers *mountpoint* itself, None when nothing is mounted right there."""
    found = [mount for mount in mount_table() if mount.mountpoint == mountpoint]
    return found[-1] if found else None


def canonical(path: Path) -> Path:
    """*path* without symbolic links, found without asking what is mounted on it.

    `realpath` would stat the last component and hang with a mount that hangs; `readlink` of a
    mount's root is answered by the kernel alone.
    """
    for _ in range(_LINKS_MAX):
        if path.name in ("", ".."):
            return Path(os.path.realpath(path))
        path = Path(os.path.realpath(path.parent), path.name)
        try:
            path = path.parent / path.readlink()
        except OSError:
            return path
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def stat_errno(path: Path, timeout_s: float = STAT_TIMEOUT_S) -> int | None:
    """The errno of asking *path*, 0 for success, None when there is no answer in time."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-S", "-E", "-c", _PROBE, os.fspath(path)],
            dict(os.environ),
            file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)],
        )
        os.close(writer)
        return _exit_status(pid, reader, timeout_s)
    finally:
        os.close(reader)


def _exit_status(pid: int, reader: int, timeout_s: float) -> int | None:
    """Wait until the child lets go of its pipe; a child that does not is killed and left behind."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    if poll.poll(timeout_s * 1000):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, os.WNOHANG)
    return None


def health(mountpoint: Path, timeout_s: float = STAT_TIMEOUT_S) -> Health:
    """Ask the mount; takes no longer than *timeout_s*."""
    match stat_errno(mountpoint, timeout_s):
        case None:
            return Health.HUNG
        case errno.ENOTCONN | errno.ECONNABORTED:
            return Health.DEAD
        case errno.EACCES | errno.EPERM:
            return Health.DENIED
        case _:
            return Health.OK


def runtime_dir(mountpoint: Path) -> Path:
    """Where the holder of *mountpoint* keeps its state, socket and log. Need not exist."""
    name = hashlib.blake2b(os.fsencode(canonical(mountpoint))).hexdigest()[:16]
    return runtime_root() / name


def runtime_root() -> Path:
    """Parent of all runtime directories of this user."""
    if os.geteuid() == 0:
        return Path("/run/tiercache")
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session:
        return Path(session) / "tiercache"
    return Path(f"/tmp/tiercache-{os.geteuid()}")


def set_readahead(st_dev: int, size: int) -> str | None:
    """Raise the kernel's readahead of a mount to *size* bytes; returns why not, None when done."""
    knob = f"/sys/class/bdi/{os.major(st_dev)}:{os.minor(st_dev)}/read_ahead_kb"
    try:
        Path(knob).write_text(str(size >> 10))
    except OSError as e:
        return f"kernel readahead stays at its default: {knob}: {e.strerror}"
    return None


def abort_connection(st_dev: int) -> bool:
    """Fail all requests of a FUSE mount at once; False when the control tree is not there."""
    try:
        Path(f"/sys/fs/fuse/connections/{os.minor(st_dev)}/abort").write_text("1")
    except OSError:
        return False
    return True
