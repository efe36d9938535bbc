"""Mounting for the raw driver: /dev/fuse, the mount, the INIT handshake.

The device stays open in the holder, so the mount outlives any worker. Root mounts with mount(2), a
user through fusermount3; from then on there is no difference, except that the kernel refuses
passthrough without CAP_SYS_ADMIN. Standard library only.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import NamedTuple

from tiercache.errors import MountError
from tiercache.fuse import fusermount, syscalls
from tiercache.fuse.mountpoint import FSTYPE
from tiercache.fuse.preflight import DEVICE
from tiercache.fuse.protocol import MIN_READ_BUFFER
from tiercache.fuse.session import Session, Wants, negotiate

#: The kernel queues INIT while it mounts, so it is there at once.
_INIT_TIMEOUT_S = 10.0

_FLAGS = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV


class Attached(NamedTuple):
    """A mount that nobody serves yet. `dev` is the open device."""

    dev: int
    session: Session


class UnsupportedKernelError(MountError):
    """The kernel speaks a protocol the raw driver does not; libfuse may."""


def attach(mountpoint: Path, source: str, allow_other: bool, wants: Wants) -> Attached:
    """Mount on *mountpoint* (canonical). Raises MountError and leaves no mount behind."""
    mount = _mount_directly if syscalls.privileged() else _mount_through_helper
    dev = mount(mountpoint, source, allow_other)
    try:
        return Attached(dev, _handshake(dev, wants))
    except BaseException:
        fusermount.detach(mountpoint)
        os.close(dev)
        raise


def _mount_directly(mountpoint: Path, source: str, allow_other: bool) -> int:
    dev = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options = [f"fd={dev}", "rootmode=40000", f"user_id={os.geteuid()}", f"group_id={os.getegid()}"]
    try:
        joined = ",".join(options + _common_options(allow_other))
        syscalls.mount(source, mountpoint, FSTYPE, _FLAGS, joined)
    except OSError as e:
        os.close(dev)
        raise MountError(f"cannot mount on {mountpoint}: {e.strerror}") from e
    return dev


def _mount_through_helper(mountpoint: Path, source: str, allow_other: bool) -> int:
    subtype = FSTYPE.removeprefix("fuse.")
    named = [f"fsname={fusermount.escape_option(source)}", f"subtype={subtype}"]
    flags = ["ro", "nosuid", "nodev"]
    return fusermount.mount(mountpoint, [*flags, *named, *_common_options(allow_other)])


def _common_options(allow_other: bool) -> list[str]:
    return ["default_permissions", "allow_other"] if allow_other else ["default_permissions"]


def _handshake(dev: int, wants: Wants) -> Session:
    poll = select.poll()
    poll.register(dev, select.POLLIN)
    if not poll.poll(_INIT_TIMEOUT_S * 1000):
        raise MountError("the kernel sent no INIT request")
    try:
        reply, session = negotiate(os.read(dev, MIN_READ_BUFFER), wants)
    except MountError as e:
        raise UnsupportedKernelError(str(e)) from e
    os.write(dev, reply)
    return session
