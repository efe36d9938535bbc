"""Asks a running worker: one request, one answer, within a time limit. Standard library only."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tiercache.control.address import short_path
from tiercache.errors import ControlError, ControlTimeoutError

#: A healthy worker answers within milliseconds; a person waits this long for a hung one.
TIMEOUT_S: Final = 2.0

#: Largest answer; that of `status` is a few KiB.
REPLY_MAX: Final = 16 << 20


def ask(
    path: Path,
    operation: str,
    timeout_s: float = TIMEOUT_S,
    arguments: Mapping[str, object] | None = None,
) -> Any:  # noqa: ANN401 - JSON
    """The result of *operation*, with *arguments*, from the worker that listens on *path*.

    Raises `ControlTimeoutError` when there is no whole answer within *timeout_s* seconds,
    `ControlError` when nobody listens or the worker refuses.
    """
    deadline = time.monotonic() + timeout_s
    request = json.dumps({"op": operation, "args": dict(arguments or {})}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            with short_path(path) as name:
                sock.connect(name)
            sock.sendall(request)
            line = _read_line(sock, deadline)
    except (TimeoutError, BlockingIOError) as error:
        raise ControlTimeoutError(f"{path}: no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise ControlError(f"{path}: {error.strerror}") from error
    return _result(path, line)


def _read_line(sock: socket.socket, deadline: float) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n") and len(data) <= REPLY_MAX:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        sock.settimeout(remaining)
        chunk = sock.recv(1 << 16)
        if not chunk:
            break
        data += chunk
    return bytes(data)


def _result(path: Path, line: bytes) -> object:
    try:
        reply = json.loads(line)
        succeeded = reply["ok"]
        content: object = reply["result" if succeeded else "error"]
    except (ValueError, KeyError, TypeError) as error:
        raise ControlError(f"{path}: the answer was cut off or is not understood") from error
    if not succeeded:
        raise ControlError(f"{path}: {content}")
    return content
