"""A plain parallel client of the object store, at its best: what the cold mount is compared with.

One thread and one kept-alive connection each, presigned requests built before the clock starts,
header and body received together into one buffer that is used over and over, so that nothing is
copied and no fresh memory is touched. It knows what SeaweedFS sends (Content-Length) and
nothing else.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_HEADER_MAX = 16 << 10
_HEADER_END = b"\r\n\r\n"
_TIMEOUT_S = 60.0
_EXPIRES_S = 24 * 3600

#: Called with the offset of a range and its body; the view is valid during the call only.
Sink = Callable[[int, memoryview], None]


class ReplyError(OSError):
    """The server did not send what was asked for."""


@dataclass(frozen=True, slots=True)
class Get:
    """One request, ready to send, and what must come back."""

    request: bytes
    status: int
    offset: int
    length: int


def whole(client: S3Client, bucket: str, key: str, size: int) -> Get:
    """A GET of a whole object."""
    return Get(_request(_presigned(client, bucket, key), ""), 200, 0, size)


def ranges(client: S3Client, bucket: str, key: str, size: int, part: int) -> list[Get]:
    """GETs of `part` bytes each that cover an object."""
    url = _presigned(client, bucket, key)
    gets = []
    for start in range(0, size, part):
        length = min(part, size - start)
        field = f"Range: bytes={start}-{start + length - 1}\r\n"
        gets.append(Get(_request(url, field), 206, start, length))
    return gets


class ParallelClient:
    """`connections` kept-alive connections to one endpoint, opened on entry."""

    def __init__(self, endpoint_url: str, connections: int, body_max: int) -> None:
        address = urlsplit(endpoint_url)
        self._address = (address.hostname or "", address.port or 80)
        self._connections = connections
        self._body_max = body_max
        self._open: list[_Connection] = []

    def __enter__(self) -> ParallelClient:
        for _ in range(self._connections):
            self._open.append(_Connection(self._address, self._body_max))
        return self

    def __exit__(self, *exc: object) -> None:
        for connection in self._open:
            connection.close()
        self._open.clear()

    def fetch(self, gets: Sequence[Get], sink: Sink | None = None) -> int:
        """Send all of `gets`, whichever connection is free; returns the body bytes received.

        Raises `ReplyError` or `OSError` when one of them fails.
        """
        todo = _Shared(gets)
        with ThreadPoolExecutor(len(self._open)) as pool:
            totals = pool.map(lambda connection: connection.drain(todo, sink), self._open)
            return sum(totals)


class _Shared:
    """An iterator that several threads may draw from."""

    def __init__(self, gets: Iterable[Get]) -> None:
        self._iterator = iter(gets)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Get]:
        return self

    def __next__(self) -> Get:
        with self._lock:
            return next(self._iterator)


class _Connection:
    def __init__(self, address: tuple[str, int], body_max: int) -> None:
        self._socket = socket.create_connection(address, timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A Python time-out makes the socket non-blocking and costs a poll() per recv.
        self._socket.settimeout(None)
        self._buffer = bytearray(_HEADER_MAX + body_max)  # zeroed, so its pages exist
        self._view = memoryview(self._buffer)

    def close(self) -> None:
        self._view.release()
        self._socket.close()

    def drain(self, todo: Iterable[Get], sink: Sink | None) -> int:
        total = 0
        for get in todo:
            body = self._get(get)
            total += len(body)
            if sink is not None:
                sink(get.offset, body)
        return total

    def _get(self, get: Get) -> memoryview:
        self._socket.sendall(get.request)
        filled, header = 0, -1
        while header < 0:
            filled += self._receive(filled, 0)
            header = self._buffer.find(_HEADER_END, 0, min(filled, _HEADER_MAX))
            if header < 0 and filled > _HEADER_MAX:
                raise ReplyError("no end of header")
        start = header + len(_HEADER_END)
        length = _content_length(bytes(self._view[:header]), get.status)
        if length != get.length:
            raise ReplyError(f"{length} bytes announced, {get.length} expected")
        while filled < start + length:
            filled += self._receive(filled, socket.MSG_WAITALL, start + length - filled)
        return self._view[start : start + length]

    def _receive(self, at: int, flags: int, count: int | None = None) -> int:
        end = len(self._buffer) if count is None else at + count
        received = self._socket.recv_into(self._view[at:end], 0, flags)
        if not received:
            raise ReplyError("connection closed by the server")
        return received


def _presigned(client: S3Client, bucket: str, key: str) -> str:
    return client.generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=_EXPIRES_S
    )


def _request(url: str, fields: str) -> bytes:
    parts = urlsplit(url)
    return (
        f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n{fields}\r\n"
    ).encode("ascii")


def _content_length(header: bytes, expected_status: int) -> int:
    status, *fields = header.split(b"\r\n")
    if status.split(b" ")[1:2] != [str(expected_status).encode()]:
        raise ReplyError(f"status {expected_status} expected, got {status.decode('latin-1')}")
    for field in fields:
        name, _, value = field.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise ReplyError("no Content-Length")
