"""The worker's ear: one JSON object per line in, one per line out, on a Unix socket.

`{"op": "status"}` is answered by `{"ok": true, "result": ...}` or `{"ok": false, "error": "one
line"}`. Operations are given as plain functions or coroutine functions; `"args"`, an object, holds
their keyword arguments, whose values they check themselves. Only the owner of the socket may
connect (mode 0600). Requests, connections and idle time are bounded, and nothing a client does, nor
a bug in an operation, ends the worker.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import trio

from tiercache.control.address import short_path
from tiercache.errors import TierCacheError

log = logging.getLogger(__name__)

Operation: TypeAlias = Callable[..., Any | Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ControlLimits:
    """What one client, and all of them together, may take."""

    request_bytes: int = 64 << 10
    connections: int = 16
    idle_s: float = 30.0


async def serve_control(
    path: Path,
    operations: Mapping[str, Operation],
    limits: ControlLimits | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer on *path* until cancelled; started once it can be connected to.

    A socket left there by a worker that was killed is replaced. Raises OSError when *path* cannot
    be bound.
    """
    listener = _listen(path)
    server = _Server(operations, limits or ControlLimits())
    try:
        task_status.started()
        await trio.serve_listeners(server.serve, [listener])
    finally:
        _forget(path)


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)


def _listen(path: Path) -> trio.SocketListener:
    """Bind under another name, close to others, then take the place of what is there."""
    staged = path.with_name(f"{path.name}.{os.getpid()}")
    staged.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with short_path(staged) as name:
            sock.bind(name)
        staged.chmod(0o600)
        sock.listen()
        staged.rename(path)
    except BaseException:
        sock.close()
        staged.unlink(missing_ok=True)
        raise
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


class _Server:
    """All connections of one socket."""

    def __init__(self, operations: Mapping[str, Operation], limits: ControlLimits) -> None:
        self._operations = operations
        self._limits = limits
        self._connections = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """One client, from its first line to its end. Never raises for what a client does."""
        self._connections += 1
        try:
            async with stream:
                if self._connections > self._limits.connections:
                    await self._send(stream, _failure("too many connections"))
                else:
                    await self._converse(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("a control client went away")
        finally:
            self._connections -= 1

    async def _converse(self, stream: trio.SocketStream) -> None:
        buffer = bytearray()
        while (line := await self._line(stream, buffer)) is not None:
            if len(line) > self._limits.request_bytes:
                await self._send(stream, _failure("the request is too long"))
                return
            if not await self._send(stream, await self._answer(line)):
                return

    async def _line(self, stream: trio.SocketStream, buffer: bytearray) -> bytes | None:
        """The next line, more than the limit when it is too long, None at the end or when idle."""
        with trio.move_on_after(self._limits.idle_s):
            while (end := buffer.find(b"\n")) < 0:
                if len(buffer) > self._limits.request_bytes:
                    return bytes(buffer)
                chunk = await stream.receive_some(self._limits.request_bytes)
                if not chunk:
                    return None
                buffer += chunk
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            return line
        return None

    async def _send(self, stream: trio.SocketStream, reply: bytes) -> bool:
        """Send *reply*; False when the client does not read it in time."""
        with trio.move_on_after(self._limits.idle_s) as scope:
            await stream.send_all(reply)
        return not scope.cancelled_caught

    async def _answer(self, line: bytes) -> bytes:
        name, arguments = _request(line)
        operation = self._operations.get(name)
        if operation is None:
            return _failure(f"unknown operation; known: {', '.join(sorted(self._operations))}")
        if not _takes(operation, arguments):
            return _failure(f"{name} does not take these arguments")
        try:
            result = operation(**arguments)
            if inspect.isawaitable(result):
                result = await result
            return _encode({"ok": True, "result": result})
        except TierCacheError as error:
            return _failure(str(error))
        except Exception:  # a bug in an operation must not end the mount
            log.exception("control operation failed")
            return _failure("internal error; see the log of the mount")


def _request(line: bytes) -> tuple[str, dict[str, Any]]:
    """The `op` and the `args` of a request; no name when it is not one."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        return "", {}
    name = request.get("op") if isinstance(request, dict) else None
    arguments = request.get("args", {}) if isinstance(name, str) else None
    return (str(name), arguments) if isinstance(arguments, dict) else ("", {})


def _takes(operation: Operation, arguments: dict[str, Any]) -> bool:
    try:
        inspect.signature(operation).bind(**arguments)
    except TypeError:
        return False
    return True


def _failure(text: str) -> bytes:
    return _encode({"ok": False, "error": text})


def _encode(reply: dict[str, Any]) -> bytes:
    return json.dumps(reply, allow_nan=False).encode() + b"\n"
