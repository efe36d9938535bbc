"""Writes down which objects a mount is asked for, so that caches can be tried out on it later.

A use is an open: the daemon sees one whichever way the reads that follow are served, and the
policies of the mount count the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import trio

from tiercache.control.recording import Recording
from tiercache.errors import ControlError, TraceError
from tiercache.simulation.tracefile import HEADER, create
from tiercache.types import Inode

#: Smallest limit of a file that makes sense.
LIMIT_MIN: Final = 64 << 10


class Opened(Protocol):
    """Who tells of opens."""

    on_open: Callable[[Inode], object] | None


class Recorder:
    """At most one recording at a time, begun and ended over the control socket."""

    def __init__(
        self,
        opened: Opened,
        group_of: Callable[[bytes], int],
        nursery: trio.Nursery,
        now: Callable[[], float],
    ) -> None:
        """*group_of*: the dataset of a key. *now*: seconds since the epoch."""
        self._opened = opened
        self._group_of = group_of
        self._nursery = nursery
        self._now = now
        self._recording: Recording | None = None
        self._starting = False

    async def start(self, file: str, limit: int) -> dict[str, Any]:
        """Control operation: begin a *file* of *limit* bytes at most. Raises ControlError."""
        if not isinstance(file, str) or not Path(file).is_absolute() or "\0" in file:
            raise ControlError("trace_start: the file must be an absolute path")
        if type(limit) is not int or limit < LIMIT_MIN:
            raise ControlError(f"trace_start: the limit must be at least {LIMIT_MIN} bytes")
        if self._starting or self._running is not None:
            raise ControlError("a recording is running; stop it first")
        self._starting = True
        try:
            opened = await trio.to_thread.run_sync(_begin, Path(file), abandon_on_cancel=True)
        except TraceError as error:
            raise ControlError(str(error)) from error
        finally:
            self._starting = False
        self._recording = recording = Recording(Path(file), limit)
        self._opened.on_open = self._note
        self._nursery.start_soon(recording.run, opened)
        return recording.status()

    async def stop(self) -> dict[str, Any]:
        """Control operation: end the recording, once all of it is written. Raises ControlError."""
        recording = self._running
        if recording is None:
            raise ControlError("no recording is running")
        recording.end("stopped")
        await recording.over.wait()
        return recording.status()

    def status(self) -> dict[str, Any] | None:
        """The recording that runs, or the last one; None before the first."""
        return None if self._recording is None else self._recording.status()

    def operations(self) -> Mapping[str, Callable[..., Any]]:
        """For the control socket."""
        return {"trace_start": self.start, "trace_stop": self.stop}

    @property
    def _running(self) -> Recording | None:
        recording = self._recording
        return None if recording is None or recording.ended is not None else recording

    def _note(self, obj: Inode) -> None:
        recording = self._running
        if recording is None:
            self._opened.on_open = None
        else:
            time_ms = round(self._now() * 1000)
            recording.use(time_ms, obj.ino, obj.size, self._group_of(obj.key))


def _begin(path: Path) -> BinaryIO:
    """The new file, with its header in it. Raises TraceError."""
    file = create(path)
    try:
        file.write(HEADER)
        file.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            file.close()
        raise TraceError(f"{path}: {error.strerror}") from error
    return file
