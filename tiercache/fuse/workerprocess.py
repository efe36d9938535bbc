"""A worker as its holder sees it: a process started by exec, with a link.

Nothing is shared by fork: the child is a fresh interpreter that inherits the link, the locks of the
cache directories and nothing else. It gets its own process group, so that a Ctrl-C reaches the
holder alone, which then ends it in good order. Standard library only.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tiercache.fuse.link import Link, Message

#: Arguments after `python -P`: the program every holder starts unless told otherwise.
DAEMON = ("-m", "tiercache.daemon")

#: A killed process ends at once, unless the kernel itself waits for a disk that hangs.
_KILL_TIMEOUT_S = 1.0

_OOM = Path("/proc/self/oom_score_adj")


class WorkerProcess:
    """One run of the worker."""

    def __init__(self, command: Sequence[str], fds: Sequence[int], oom_score_adj: str) -> None:
        """Start it. *fds* are inherited; *oom_score_adj* undoes what the holder set for itself."""
        self.link, theirs = Link.pair()
        self.link_open = True
        number = theirs.fileno()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", *command, "--link-fd", str(number)],
                pass_fds=(number, *fds),
                stdin=subprocess.DEVNULL,
                process_group=0,
                env=_environment(),
            )
        finally:
            theirs.close()
        self.pid = self._process.pid
        try:
            Path(f"/proc/{self.pid}/oom_score_adj").write_text(oom_score_adj)
        except OSError:
            return  # it only raises the chance that the worker is chosen instead of the holder

    def receive_nowait(self) -> Message | None:
        """The next message if there is one. Workers send no descriptors."""
        if not self.link_open or not select.select([self.link], [], [], 0)[0]:
            return None
        received = self.link.recv()
        if received is None:
            self.link_open = False
            return None
        message, fds = received
        for fd in fds:
            os.close(fd)
        return message

    def exit_status(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    def end(self, timeout_s: float = 0.0) -> None:
        """Wait *timeout_s* for its end, then kill it and forget it."""
        for patience in (timeout_s, _KILL_TIMEOUT_S):
            try:
                self._process.wait(patience)
                break
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGKILL)
        self.link_open = False
        self.link.close()


def lower_oom_score(adjustment: int) -> str:
    """Make this process a less likely victim when allowed; returns the value before."""
    try:
        before = _OOM.read_text().strip()
        _OOM.write_text(str(adjustment))
    except OSError:
        return "0"
    return before


def _environment() -> dict[str, str]:
    """Ours, with few malloc arenas (threads would multiply memory) and no systemd socket."""
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2"}
    environment.pop("NOTIFY_SOCKET", None)
    return environment
