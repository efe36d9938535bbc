"""Which mount a path lies in, and how its worker is asked."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tiercache.control.client import ask
from tiercache.errors import ControlError, MountError
from tiercache_cli.mounts import KnownMount, find_mount, known_mounts, why_not

#: The worker may be busy with a long list of files.
TIMEOUT_S = 20.0


def mount_of(paths: Iterable[str]) -> tuple[KnownMount, list[str]]:
    """The one mount that holds all *paths*, and the paths below it. Raises MountError.

    Nothing is looked up in the mount: a path may be a pattern, and the mount may hang.
    """
    mounts = known_mounts()
    found = [_split(path, mounts) for path in paths]
    places = {mount.mountpoint for mount, _ in found}
    if len(places) > 1:
        raise MountError(f"the paths are in different mounts: {', '.join(map(str, places))}")
    return found[0][0], [inner for _, inner in found]


def _split(path: str, mounts: Iterable[KnownMount]) -> tuple[KnownMount, str]:
    # By name first; `resolve` would ask the mount.
    for absolute in (os.path.abspath(path), os.path.realpath(path)):  # noqa: PTH100
        inside = [mount for mount in mounts if Path(absolute).is_relative_to(mount.mountpoint)]
        if inside:
            mount = max(inside, key=lambda mount: len(mount.mountpoint.parts))
            return mount, os.path.relpath(absolute, mount.mountpoint)
    raise MountError(f"{path} is not inside a tiercache mount")


def the_mount(mountpoint: Path | None) -> KnownMount:
    """The mount on *mountpoint*; without one, the only mount there is. Raises MountError."""
    if mountpoint is not None:
        known = find_mount(mountpoint)
        if known is None:
            raise MountError(why_not(mountpoint))
        return known
    mounts = known_mounts()
    if len(mounts) != 1:
        places = ", ".join(str(mount.mountpoint) for mount in mounts)
        raise MountError(f"say which mount: {places}" if mounts else "nothing is mounted")
    return mounts[0]


def ask_mount(mount: KnownMount, operation: str, **arguments: object) -> object:
    """What the worker of *mount* answers. Raises ControlError in words for a person."""
    try:
        return ask(mount.runtime / "control.sock", operation, TIMEOUT_S, arguments)
    except ControlError as error:
        text = str(error).removeprefix(f"{mount.runtime / 'control.sock'}: ")
        raise type(error)(f"{mount.mountpoint}: {text}") from error
