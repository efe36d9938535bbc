"""A mount made the way a person makes one: by the `tiercache` command, in processes of its own.

Used by the demo, the benchmarks and the tests of real loaders, which all need the same two things:
the real command line, and an end that leaves nothing behind, whatever happened in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tiercache.errors import MountError
from tiercache.fuse.mountpoint import canonical, runtime_dir, top_mount

#: `-P` keeps the working directory off the module path.
COMMAND = (sys.executable, "-P", "-c", "from tiercache_cli.main import main; main()")

#: Longer than the command's own limits, so that its message and not ours is seen.
COMMAND_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class CommandMount:
    """A tree mounted by `tiercache mount`; `env` is added to the environment of every command."""

    source: str
    mountpoint: Path
    options: Sequence[str] = ()
    env: Mapping[str, str] | None = None

    def mount(self) -> None:
        """Returns when the mount answers; raises `MountError` with the command's own words."""
        self._run("mount", self.source, str(self.mountpoint), *self.options)

    def status(self) -> dict[str, Any]:
        """What `tiercache status MOUNTPOINT --json` says. Raises `MountError`."""
        reply: dict[str, Any] = json.loads(self._run("status", str(self.mountpoint), "--json"))
        return reply

    def unmount(self) -> None:
        """Ask for a clean end. Raises `MountError` when the tree is busy or the command fails."""
        self._run("umount", str(self.mountpoint))

    def end(self) -> None:
        """Unmount by whatever means are left, and wait until its processes are gone."""
        processes = self.processes()
        if self.is_mounted:
            with contextlib.suppress(MountError):
                self.unmount()
        if self.is_mounted:
            subprocess.run(["umount", "-l", os.fspath(self.mountpoint)], check=False)
        alive = _await_end(processes)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _await_end(alive)

    @property
    def is_mounted(self) -> bool:
        """Whether the kernel's mount table holds it; never touches the mount itself."""
        return top_mount(canonical(self.mountpoint)) is not None

    def processes(self) -> list[psutil.Process]:
        """Holder and worker as the holder wrote them down; empty when there are none."""
        try:
            state = json.loads((runtime_dir(self.mountpoint) / "state.json").read_bytes())
        except (OSError, ValueError):
            return []
        found = []
        for name in ("holder_pid", "worker_pid"):
            # There is no worker while one is being restarted; `Process(None)` would be ourselves.
            if state[name] is not None:
                with contextlib.suppress(psutil.Error):
                    found.append(psutil.Process(state[name]))
        return found

    def _run(self, *arguments: str) -> str:
        command = f"tiercache {arguments[0]}"
        with subprocess.Popen(
            [*COMMAND, *arguments],
            env={**os.environ, **(self.env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            try:
                said, errors = process.communicate(timeout=COMMAND_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise MountError(f"{command}: no end after {COMMAND_TIMEOUT_S:g} s") from None
            except BaseException:
                _let_finish(process)
                raise
        if process.returncode:
            words = (errors.strip() or said.strip()).decode(errors="replace")
            words = words.removeprefix("tiercache: ")
            raise MountError(f"{command}: {words or f'exit status {process.returncode}'}")
        return said.decode()


def _await_end(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Wait for their end; returns those that do not come to it in time.

    They are not our children, and whoever reaps them may take a second. That is not waited for.
    """
    deadline = time.monotonic() + _END_TIMEOUT_S
    with contextlib.ExitStack() as opened:
        selector = opened.enter_context(selectors.DefaultSelector())
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(process.pid)
                opened.callback(os.close, descriptor)
                selector.register(descriptor, selectors.EVENT_READ, process)
        while selector.get_map() and (ended := selector.select(deadline - time.monotonic())):
            for key, _ in ended:
                selector.unregister(key.fd)
        return [key.data for key in selector.get_map().values()]


def _let_finish(process: subprocess.Popen[bytes]) -> None:
    """After Ctrl-C: a command cut off half way would leave a mount that comes up later."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_END_TIMEOUT_S)
    process.kill()


@contextlib.contextmanager
def mounted(
    source: str,
    mountpoint: Path,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[CommandMount]:
    """Mount `source` on `mountpoint` (made when missing) until the block ends."""
    mountpoint.mkdir(parents=True, exist_ok=True)
    mount = CommandMount(source, mountpoint, options, env)
    try:
        mount.mount()
        yield mount
    finally:
        mount.end()
