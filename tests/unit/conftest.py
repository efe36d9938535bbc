"""A mount as commands meet it, without a file system: what is asked of it is written down.

A holder that runs, the state it keeps, and the control socket of a worker are real; behind the
socket, operations that take what the real ones take answer what the test says.
"""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tiercache.control.holdings import HoldingOperations
from tiercache.control.server import serve_control
from tiercache.fuse.mountpoint import runtime_dir
from tiercache.fuse.runtime import STATE
from tiercache.prefetch.plans import Plans
from tiercache.prefetch.warm_jobs import Warmer
from tiercache_cli.main import run, tiercache
from tiercache_cli.mounts import HOLDER_MODULE

OPERATIONS = {
    "warm_start": Warmer.start,
    "warm_wait": Warmer.wait,
    "warm_status": Warmer.status,
    "warm_cancel": Warmer.cancel,
    "plan_follow": Plans.follow,
    "plan_clear": Plans.clear,
    "plan_status": Plans.status,
    "pin": HoldingOperations.pin,
}


class Listener:
    """`asked` lists operations with their arguments; `answers` holds what comes back, in turn.

    The last answer of an operation is given again. An exception is raised, a function called.
    """

    def __init__(self, mountpoint: Path, holder: subprocess.Popen[bytes]) -> None:
        self.mountpoint = mountpoint
        self.holder = holder
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, list[Any]] = {}
        self._left: dict[str, deque[Any]] = {}

    def operation(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """Takes what *real* takes, and nothing else."""

        def answer(**arguments: Any) -> Any:
            self.asked.append((name, arguments))
            left = self._left.setdefault(name, deque(self.answers[name]))
            given = left.popleft() if len(left) > 1 else left[0]
            if isinstance(given, Exception):
                raise given
            return given() if callable(given) else given

        signature = inspect.signature(real)
        _itself, *parameters = signature.parameters.values()
        answer.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return answer

    async def run(self, *arguments: object) -> int:
        """The exit status of `tiercache` with *arguments*."""
        return await trio.to_thread.run_sync(run, tiercache, [*map(str, arguments)], "tiercache")


@pytest.fixture
def unheard(tmp_path: Path) -> Iterator[Listener]:
    """A mount whose worker does not listen."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    runtime = runtime_dir(mountpoint)
    runtime.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", HOLDER_MODULE],
        stdin=subprocess.PIPE,
    ) as holder:
        state = {"mountpoint": str(mountpoint), "source": "s3://x", "holder_pid": holder.pid}
        (runtime / STATE).write_text(json.dumps(state))
        yield Listener(mountpoint, holder)
        holder.kill()
    shutil.rmtree(runtime)


@pytest.fixture
async def mount(unheard: Listener, nursery: trio.Nursery) -> Listener:
    """A mount whose worker listens."""
    operations = {name: unheard.operation(name, real) for name, real in OPERATIONS.items()}
    socket = runtime_dir(unheard.mountpoint) / "control.sock"
    await nursery.start(serve_control, socket, operations)
    return unheard
