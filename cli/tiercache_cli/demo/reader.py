"""The loader program as a process: started, told to go on, listened to, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tiercache.errors import TierCacheError

PROGRAM = Path(__file__).with_name("loader.py")


class ReaderError(TierCacheError):
    """The loader ended early, or says nothing for too long."""


class Reader:
    """A running loader. In a session of its own, so that Ctrl-C reaches only us, who end it."""

    def __init__(self, root: Path, manifest: Path, *, epochs: int, workers: int, log: Path) -> None:
        self._log = log
        arguments = [str(root), str(manifest), f"--epochs={epochs}", f"--workers={workers}"]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    def proceed(self) -> None:
        """Let it do its next step."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `expect` tells why it ended
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

    def expect(self, event: str, timeout_s: float) -> dict[str, Any]:
        """Wait for its next word, which must be `event`. Raises `ReaderError`.

        It says one line per step and then waits, so nothing is ever left in our buffer.
        """
        assert self._process.stdout is not None
        poll = select.poll()
        poll.register(self._process.stdout, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise ReaderError(f"the loader says nothing for {timeout_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise ReaderError(f"the loader ended early: {self._last_words()}")
        said: dict[str, Any] = json.loads(line)
        if said["event"] != event:
            raise ReaderError(f"the loader said {said['event']}, not {event}")
        return said

    def end(self) -> None:
        """Kill it with its workers, unless it has ended by itself, and reap it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process.wait()

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no message")
