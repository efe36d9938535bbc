"""Asks disks where a path leads and how large they are, without waiting for one that hangs.

A process that waits for a file system cannot always be killed, so each path is asked by a child
that can be left behind.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

#: A disk that spins up answers within this time, so whoever does not hangs.
TIMEOUT_S = 10.0

#: Largest answer: a path and two numbers.
_ANSWER_MAX = 64 << 10

#: What is not there yet will be made in the nearest directory above that is.
_PROBE = """
import json, os, sys
real = there = os.path.realpath(sys.argv[1])
try:
    while True:
        try:
            device = os.stat(there).st_dev
            break
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            there = os.path.dirname(there)
    facts = os.statvfs(there)
    print(json.dumps([real, device, facts.f_blocks * facts.f_frsize]))
except OSError as error:
    print(json.dumps(error.strerror))
"""


class Disk(NamedTuple):
    """Where links lead, and the device and its size in bytes that a path is or will be on."""

    real: Path
    device: int
    nbytes: int


def ask_disks(paths: Sequence[Path], timeout_s: float = TIMEOUT_S) -> list[Disk | str]:
    """What is known of each path, or why not, after *timeout_s* seconds at the latest."""
    deadline = time.monotonic() + timeout_s
    children = [_spawn(path) for path in paths]
    return [_answer(pid, reader, deadline, timeout_s) for pid, reader in children]


def _spawn(path: Path) -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-S", "-E", "-c", _PROBE, os.fspath(path)],
            dict(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writer, 1),
            ],
        )
    finally:
        os.close(writer)
    return pid, reader


def _answer(pid: int, reader: int, deadline: float, timeout_s: float) -> Disk | str:
    with open(reader, "rb", buffering=0) as pipe:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        # The probe prints once, so one read has all of it.
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
            return f"no answer within {timeout_s:g} s"
        data = pipe.read(_ANSWER_MAX)
    os.waitpid(pid, 0)
    answer = json.loads(data or b'"the probe failed"')
    if isinstance(answer, str):
        return answer
    real, device, nbytes = answer
    return Disk(Path(real), device, nbytes)
