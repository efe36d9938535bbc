"""Everything that can be known to be wrong before anything is mounted.

Each check raises MountError with one line that names what is missing and how to get it, so a mount
either comes up or says why not, and never leaves a trace in the mount table. Two things are put
right instead of refused: a dead mount of our own type is cleared away, and the soft limit of open
files is raised. Standard library only.
"""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterable
from pathlib import Path

from tiercache.errors import MountError
from tiercache.fuse import fusermount, syscalls
from tiercache.fuse.mountpoint import (
    FSTYPE,
    Health,
    Mount,
    find_mounts,
    health,
    mount_table,
    stat_errno,
    top_mount,
)

DEVICE = Path("/dev/fuse")

#: Mounts of ours that may lie dead on top of each other before something else must be wrong.
_STACK_MAX = 16


def check_device(device: Path = DEVICE) -> None:
    """The FUSE device exists and may be opened."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        raise MountError(
            f"{device} does not exist: load the module (modprobe fuse); "
            f"in a container start it with --device {device}"
        ) from None
    except PermissionError:
        raise MountError(
            f"no permission to open {device}: as a user ask for mode 0666 (chmod 666 {device}); "
            f"in a container start it with --device {device} --cap-add SYS_ADMIN"
        ) from None
    except OSError as e:
        raise MountError(f"cannot open {device}: {e.strerror} (modprobe fuse)") from None


def check_privileges(allow_other: bool, conf: Path = fusermount.FUSE_CONF) -> None:
    """Mounting is allowed with these options, by itself or through fusermount3."""
    if syscalls.privileged():
        return
    if os.geteuid() == 0:
        raise MountError(
            "root without CAP_SYS_ADMIN cannot mount: start the container with "
            "--cap-add SYS_ADMIN --device /dev/fuse (Docker may also need "
            "--security-opt apparmor=unconfined)"
        )
    fusermount.required_program()
    if allow_other and not fusermount.user_allow_other(conf):
        raise MountError(
            f"allow_other is not allowed to ordinary users: add a line 'user_allow_other' to {conf}"
        )


def clear_dead_mounts(mountpoint: Path) -> None:
    """Unmount dead tiercache mounts from *mountpoint*; refuse live ones and dead strangers."""
    for _ in range(_STACK_MAX):
        found = top_mount(mountpoint)
        if found is None or not _cleared(found):
            return
    raise MountError(f"{mountpoint} holds more than {_STACK_MAX} dead mounts; unmount them first")


def _cleared(found: Mount) -> bool:
    """Whether a dead mount was taken away; False for a healthy one of another kind."""
    state = health(found.mountpoint)
    if found.fstype != FSTYPE:
        if state in (Health.DEAD, Health.HUNG):
            raise MountError(
                f"{found.mountpoint} holds a {state.value} {found.fstype} mount: "
                f"umount -l {found.mountpoint}"
            )
        return False
    if state is Health.HUNG:
        raise MountError(
            f"{found.mountpoint} is a tiercache mount of {found.source} that does not answer: "
            f"tiercache umount --force {found.mountpoint}"
        )
    if state is not Health.DEAD:
        raise MountError(f"{found.mountpoint} is already a tiercache mount of {found.source}")
    fusermount.unmount(found.mountpoint, lazy=True)
    return True


def check_mountpoint(mountpoint: Path, nonempty: bool = False) -> None:
    """*mountpoint* (canonical) is an empty directory outside every tiercache mount."""
    for mount in find_mounts():
        if mountpoint.is_relative_to(mount.mountpoint):
            raise MountError(f"{mountpoint} is inside the tiercache mount {mount.mountpoint}")
    number = stat_errno(mountpoint)
    if number is None:
        raise MountError(f"{mountpoint} does not answer: it lies on a file system that hangs")
    try:
        mode = mountpoint.stat().st_mode
        empty = stat.S_ISDIR(mode) and not any(mountpoint.iterdir())
    except FileNotFoundError:
        raise MountError(
            f"mount point {mountpoint} does not exist: mkdir -p {mountpoint}"
        ) from None
    except OSError as e:
        raise MountError(f"mount point {mountpoint}: {e.strerror}") from None
    if not stat.S_ISDIR(mode):
        raise MountError(f"mount point {mountpoint} is not a directory")
    if not empty and not nonempty:
        raise MountError(
            f"mount point {mountpoint} is not empty: choose another, or hide what it holds "
            "with -o nonempty"
        )


def check_places(mountpoint: Path, cache_dirs: Iterable[Path], log_file: Path | None) -> None:
    """Nothing the daemon writes lies below its own mount, where it would wait for itself.

    Compares places in file systems, not names, so symbolic links and bind mounts hide nothing.
    """
    table = mount_table()
    target = location(mountpoint, table)
    for directory in cache_dirs:
        place = location(directory, table)
        if place == target:
            raise MountError(f"cache directory {directory} is the mount point itself")
        if _inside(place, target):
            raise MountError(f"cache directory {directory} is inside the mount point {mountpoint}")
        if _inside(target, place):
            raise MountError(
                f"mount point {mountpoint} is inside the cache directory {directory}, "
                "which belongs to tiercache alone"
            )
    if log_file is not None and _inside(location(log_file, table), target):
        raise MountError(f"log file {log_file} is inside the mount point {mountpoint}")


def location(path: Path, table: list[Mount]) -> tuple[int, Path]:
    """Device and place within its file system where *path* is or would be created."""
    real = Path(os.path.realpath(path))
    for mount in reversed(table):
        if real.is_relative_to(mount.mountpoint) and _visible(mount, real, table):
            return mount.st_dev, mount.root / real.relative_to(mount.mountpoint)
    return 0, real


def _visible(mount: Mount, path: Path, table: list[Mount]) -> bool:
    """Whether *mount* is the deepest of those that hold *path*."""
    depth = len(mount.mountpoint.parts)
    return not any(
        len(other.mountpoint.parts) > depth and path.is_relative_to(other.mountpoint)
        for other in table
    )


def _inside(place: tuple[int, Path], parent: tuple[int, Path]) -> bool:
    return place[0] == parent[0] and place[1].is_relative_to(parent[1])


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard one: sockets and tier files add up."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
