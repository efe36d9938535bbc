"""The runtime directory of a mount: state file, log, control socket.

Only the holder writes here, apart from the control socket of the worker. The state file is replaced
as a whole, so that a reader never sees half of it. Standard library only.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiercache.errors import MountError

STATE = "state.json"
LOG = "log"

#: A log larger than this is set aside once when a mount begins.
LOG_MAX = 16 << 20


class RuntimeDir:
    """`/run/tiercache/<id>` or its like for a user; private to the mounting user."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        """Create *path*, mode 0700. Raises MountError when somebody else owns it or its parent."""
        self.path = path
        for directory in (path.parent, path):
            _make_private(directory)

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace the state file."""
        fresh = self.path / f"{STATE}.new"
        # The directory is private already; a copy or a backup of the file is to stay so.
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            file.write(json.dumps(state, indent=1) + "\n")
        fresh.replace(self.path / STATE)

    def remove(self, keep_log: bool = False) -> None:
        """Take the directory away; *keep_log* leaves the log for somebody who asks what failed."""
        kept = {LOG, f"{LOG}.1"} if keep_log else set()
        for entry in list(self.path.iterdir()):
            if entry.name not in kept:
                _ignore_errors(entry.unlink)
        _ignore_errors(self.path.rmdir)


def open_log(path: Path) -> int:
    """Open *path* for appending, after setting a large old log aside. Raises MountError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        if path.exists() and path.stat().st_size > LOG_MAX:
            path.replace(path.with_name(f"{path.name}.1"))
        return os.open(path, flags, 0o600)
    except OSError as e:
        raise MountError(f"cannot write the log file {path}: {e.strerror}") from None


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        state = directory.lstat()
    except OSError as e:
        raise MountError(f"cannot create the runtime directory {directory}: {e.strerror}") from None
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise MountError(f"{directory} is not a private directory of this user; remove it")


def _ignore_errors(action: Callable[[], None]) -> None:
    """Tidying up must not turn a clean end into a failed one."""
    try:
        action()
    except OSError:
        return
