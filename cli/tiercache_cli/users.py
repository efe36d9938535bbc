"""Who keeps a mount busy: open files, working directories, mappings and running programs.

Read from the links in /proc, which the kernel answers without asking the file system, so a mount
that hangs can be asked about too. Other users' processes are invisible to an ordinary user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil


class User(NamedTuple):
    """One process and one way in which it uses the mount."""

    pid: int
    command: str
    use: str


def users_of(mountpoint: Path) -> list[User]:
    """Every process that keeps *mountpoint* (canonical) busy, ordered by pid."""
    found = []
    for process in psutil.process_iter():
        uses = dict.fromkeys(_uses(Path(f"/proc/{process.pid}"), mountpoint))
        found += [User(process.pid, _command(process), use) for use in uses]
    return found


def _uses(process: Path, mountpoint: Path) -> Iterator[str]:
    """How *process* uses the mount; nothing when it is gone or somebody else's."""
    for name, use in (("cwd", "working directory"), ("root", "root"), ("exe", "running program")):
        if (target := _target(process / name, mountpoint)) is not None:
            yield f"{use} {target}"
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            if (target := _target(link, mountpoint)) is not None:
                yield f"open {target}"
    with suppress(OSError):
        for line in (process / "maps").read_bytes().splitlines():
            mapped = os.fsdecode(line.split(maxsplit=5)[-1])
            if _inside(mapped, mountpoint):
                yield f"mapping of {mapped}"


def _target(link: Path, mountpoint: Path) -> str | None:
    """Where *link* leads, None unless that is inside *mountpoint*."""
    try:
        target = str(link.readlink())
    except OSError:
        return None
    return target if _inside(target, mountpoint) else None


def _inside(path: str, mountpoint: Path) -> bool:
    return path == str(mountpoint) or path.startswith(f"{mountpoint}/")


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "?"
