"""What of ours is mounted, and which processes serve it.

Two sources are put together: the kernel's mount table, which is always right about what is mounted,
and the state file each holder keeps, which names the processes. Nothing here touches a mount, so a
mount that hangs cannot make these commands hang.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from tiercache.fuse.mountpoint import (
    FSTYPE,
    canonical,
    find_mounts,
    runtime_dir,
    runtime_root,
    top_mount,
)
from tiercache.fuse.runtime import STATE

#: What the command lines of our processes hold, so that a number used again is not taken for ours.
HOLDER_MODULE: Final = "tiercache.fuse.holder"
WORKER_MODULE: Final = "tiercache.daemon"


@dataclass(frozen=True, slots=True)
class KnownMount:
    """A mount of ours. `state` is what its holder wrote down, empty when we cannot know.

    `holder_pid` and `worker_pid` are those of processes that run. `mounted` is false for a mount
    that comes up, goes down, or was detached while in use.
    """

    mountpoint: Path
    source: str
    mounted: bool
    runtime: Path
    state: Mapping[str, Any] = field(default_factory=dict)
    holder_pid: int | None = None
    worker_pid: int | None = None

    @property
    def pids(self) -> list[int]:
        """The processes that serve it, the one that ends first being first."""
        return [pid for pid in (self.worker_pid, self.holder_pid) if pid is not None]


def known_mounts() -> list[KnownMount]:
    """Every mount of this user, and those of others that the mount table shows."""
    found = {mount.mountpoint: mount.source for mount in find_mounts()}
    table = [_known(mountpoint, source, True) for mountpoint, source in found.items()]
    return table + [mount for mount in _unmounted() if mount.mountpoint not in found]


def find_mount(path: Path) -> KnownMount | None:
    """The mount at *path*, None when nothing of ours is there."""
    mountpoint = canonical(path)
    top = top_mount(mountpoint)
    if top is not None and top.fstype == FSTYPE:
        return _known(mountpoint, top.source, True)
    return next((mount for mount in _unmounted() if mount.mountpoint == mountpoint), None)


def why_not(path: Path) -> str:
    """One line on why `find_mount` found nothing at *path*."""
    mountpoint = canonical(path)
    for mount in reversed(find_mounts()):
        if mountpoint.is_relative_to(mount.mountpoint):
            return (
                f"{mountpoint} is inside a tiercache mount; its mount point is {mount.mountpoint}"
            )
    return f"{mountpoint} is not a tiercache mount"


def _unmounted() -> Iterator[KnownMount]:
    """Mounts that are not in the mount table, though their holder runs."""
    root = runtime_root()
    for runtime in sorted(root.iterdir()) if root.is_dir() else ():
        state = _read_state(runtime)
        if state and _running(state.get("holder_pid"), HOLDER_MODULE):
            mountpoint = Path(state["mountpoint"])
            if mountpoint not in {mount.mountpoint for mount in find_mounts()}:
                yield _known(mountpoint, str(state.get("source")), False)


def _known(mountpoint: Path, source: str, mounted: bool) -> KnownMount:
    runtime = runtime_dir(mountpoint)
    state = _read_state(runtime)
    return KnownMount(
        mountpoint=mountpoint,
        source=source,
        mounted=mounted,
        runtime=runtime,
        state=state,
        holder_pid=_running(state.get("holder_pid"), HOLDER_MODULE),
        worker_pid=_running(state.get("worker_pid"), WORKER_MODULE),
    )


def _read_state(runtime: Path) -> Mapping[str, Any]:
    """The state file; empty when there is none, or none of ours."""
    try:
        state = json.loads((runtime / STATE).read_bytes())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) and "mountpoint" in state else {}


def _running(pid: object, module: str) -> int | None:
    """*pid* if that process runs *module*, else None."""
    if not isinstance(pid, int):
        return None
    try:
        return pid if module in psutil.Process(pid).cmdline() else None
    except (psutil.Error, ValueError):
        return None
