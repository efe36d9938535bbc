"""Starts the holder of a mount and waits until the mount answers.

The configuration travels in an anonymous file and the answer comes back through a pipe, so nothing
shows up in a process list or is left on disk. The holder is a session of its own and outlives this
command. What it writes before it has opened its log is kept in memory, so that even a holder that
cannot begin does not die without a word.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Sequence
from typing import Final, NoReturn

from tiercache.config import Config
from tiercache.config_file import config_to_json
from tiercache.config_given import Given
from tiercache.errors import MountError
from tiercache.fuse.mountpoint import runtime_dir
from tiercache.fuse.runtime import LOG
from tiercache_cli.patience import Patience
from tiercache_cli.processes import await_pids

#: The program that holds mounts, after `python -P`.
HOLDER: Final = ("-m", "tiercache.fuse.holder")

#: Beyond the holder's own limit, for it to say what went wrong.
MARGIN_S: Final = 10.0

#: What a holder gets to end after it has said why it cannot begin.
GRACE_S: Final = 1.0

#: What a holder gets to take the mount away again after it was told to.
END_TIMEOUT_S: Final = 10.0

#: What the holder says when the mount answers; anything else is why not.
READY: Final = "ready"

#: Longest answer, a line.
ANSWER_MAX: Final = 64 << 10


def run_in_place(config: Config, given: Given | None = None) -> NoReturn:
    """Become the holder; used where a supervisor like systemd watches this process."""
    number = _config_fd(config, given)
    os.set_inheritable(number, True)
    program = [sys.executable, "-P", *HOLDER, "--config-fd", str(number), "--foreground"]
    os.execv(sys.executable, program)


def start(config: Config, program: Sequence[str] = HOLDER, *, given: Given | None = None) -> None:
    """Start the holder and return when the mount answers; *given*: for it to reload.

    Raises MountError with one line for a person; then nothing is mounted and nothing runs.
    """
    words = os.memfd_create("tiercache-stderr", os.MFD_CLOEXEC)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with os.fdopen(words, "r+b", buffering=0), os.fdopen(reader, "rb", buffering=0):
        try:
            holder = _spawn(_config_fd(config, given), program, writer, words)
        finally:
            os.close(writer)
        timeout_s = config.mount.ready_timeout_s + MARGIN_S
        try:
            answer = _read_line(reader, timeout_s, f"mounting {config.origin.url}")
        except BaseException:
            _end(holder)
            raise
        if answer != READY:
            status = _end(holder)
            raise MountError(answer or _silence(status, words, config))


def _spawn(number: int, program: Sequence[str], writer: int, words: int) -> int:
    """Start the holder in a session of its own; it is not waited for when all goes well.

    Closes *number*, where the configuration is.
    """
    try:
        for inherited in (number, writer):
            os.set_inheritable(inherited, True)
        descriptors = ("--config-fd", str(number), "--ready-fd", str(writer))
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", *program, *descriptors],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, words, 1),
                (os.POSIX_SPAWN_DUP2, words, 2),
            ],
            setsid=True,
        )
    finally:
        os.close(number)


def _config_fd(config: Config, given: Given | None) -> int:
    """An anonymous file that holds *config* and what made it, to be read from its start."""
    document = {**config_to_json(config), **({"given": given.to_json()} if given else {})}
    number = os.memfd_create("tiercache-config", os.MFD_CLOEXEC)
    with open(number, "wb", closefd=False) as file:
        file.write(json.dumps(document).encode())
    os.lseek(number, 0, os.SEEK_SET)
    return number


def _read_line(reader: int, timeout_s: float, doing: str) -> str:
    """What the holder says, empty when it ended without a word. Raises MountError when late."""
    deadline = time.monotonic() + timeout_s
    data = b""
    with selectors.DefaultSelector() as selector, Patience(doing) as patience:
        selector.register(reader, selectors.EVENT_READ)
        while b"\n" not in data and len(data) < ANSWER_MAX:
            if not patience.wait(selector, deadline):
                raise MountError(f"no answer from the mount within {timeout_s:g} s")
            chunk = os.read(reader, ANSWER_MAX)
            if not chunk:
                break
            data += chunk
    return data.decode(errors="replace").strip()


def _silence(status: int, words: int, config: Config) -> str:
    """Why a holder that said nothing may have ended: its last words and where to read more."""
    text = os.pread(words, os.fstat(words).st_size, 0).decode(errors="replace").strip()
    last = f": {text.splitlines()[-1]}" if text else ""
    log = config.mount.log_file or runtime_dir(config.mount.mountpoint) / LOG
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return f"the mount ended before it was ready ({how}){last}; log: {log}"


def _end(holder: int) -> int:
    """Wait for *holder* to go, tell it to, kill it; returns its exit status."""
    doing = "taking the mount back"
    for patience_s, number in ((GRACE_S, signal.SIGTERM), (END_TIMEOUT_S, signal.SIGKILL)):
        if not await_pids([holder], patience_s, doing):
            break
        os.kill(holder, number)
    return os.waitstatus_to_exitcode(os.waitpid(holder, 0)[1])
