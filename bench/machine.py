"""Facts about the machine a figure was measured on."""

from __future__ import annotations

import mmap
import os
import platform
from pathlib import Path
from typing import Any

import psutil


def facts(workspace: Path) -> dict[str, Any]:
    """What a reader needs to judge the figures; `workspace` is where the data lies."""
    memory = psutil.virtual_memory()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": list(os.getloadavg()),
        "memory": memory.total,
        "memory_available": memory.available,
        "filesystem": filesystem(workspace),
    }


def populate(size: int) -> None:
    """Have the hypervisor back *size* bytes of free memory, at most half of what is free.

    A page that a virtual machine never touched, or gave back, costs its first user more than what
    is measured: 1.1 to 1.8 CPU seconds per GB instead of 0.2 for a write into the page cache.
    """
    size = min(size, psutil.virtual_memory().free // 2)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=flags).close()


def filesystem(path: Path) -> str:
    """Type of the file system that holds `path`, as the mount table names it."""
    resolved = path.resolve()
    best = ("", "unknown")
    for part in psutil.disk_partitions(all=True):
        if resolved.is_relative_to(part.mountpoint) and len(part.mountpoint) >= len(best[0]):
            best = (part.mountpoint, part.fstype)
    return best[1]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
