"""The little HTTP/1.1 a fault proxy needs: read a request, ask a server, frame a reply.

Headers and targets pass through byte for byte, Host included, so that signatures made for the
proxy's address still verify behind it.
"""

from __future__ import annotations

import http.client
import itertools
import urllib.parse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

PIECE = 1 << 16
_LINE_MAX = 1 << 16
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "expect", "transfer-encoding", "te"})
_BODILESS = frozenset({204, 304})


@dataclass(slots=True, eq=False)
class Request:
    """One request as it came and what became of it. `headers` have lower-case names.

    `body` is the number of bytes received, `sent` the number of body bytes given to the client,
    `status` what it was told (0: nothing). Both grow while the reply is under way.
    """

    method: str
    target: str
    headers: dict[str, str]
    raw_headers: list[tuple[str, str]] = field(repr=False)
    body: int = 0
    payload: bytes = field(default=b"", repr=False)
    status: int = 0
    sent: int = 0

    @property
    def path(self) -> str:
        """The path with percent escapes undone."""
        return urllib.parse.unquote(self.target.partition("?")[0], errors="surrogateescape")

    @property
    def query(self) -> dict[str, str]:
        """The query parameters; of a repeated one, the last."""
        text = self.target.partition("?")[2]
        return dict(urllib.parse.parse_qsl(text, keep_blank_values=True, errors="surrogateescape"))

    @property
    def range(self) -> str | None:
        """The Range header, e.g. `bytes=0-99`."""
        return self.headers.get("range")


@dataclass(slots=True)
class Reply:
    """A reply on its way to the client; `length` is None when the body is sent in chunks."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: Iterable[bytes]
    length: int | None

    def header(self, name: str) -> str | None:
        """The value of *name*, whatever its case."""
        return next((v for n, v in self.headers if n.lower() == name.lower()), None)

    def set_header(self, name: str, value: str | None) -> None:
        """Replace *name*; None removes it."""
        self.headers = [(n, v) for n, v in self.headers if n.lower() != name.lower()]
        if value is not None:
            self.headers.append((name, value))


def read_head(stream: BinaryIO) -> Request | None:
    """The next request without its body; None at the end of the connection."""
    words = stream.readline(_LINE_MAX).decode("latin-1").split()
    if len(words) != 3:
        return None
    lines = iter(lambda: stream.readline(_LINE_MAX).decode("latin-1").rstrip("\r\n"), "")
    pairs = [(n, v.strip()) for n, _, v in (line.partition(":") for line in lines)]
    return Request(words[0], words[1], {n.lower(): v for n, v in pairs}, pairs)


def read_body(stream: BinaryIO, request: Request) -> None:
    """Take the body of *request* off the connection."""
    request.payload = stream.read(int(request.headers.get("content-length", "0")))
    request.body = len(request.payload)


def ask(netloc: str, request: Request) -> tuple[Reply, http.client.HTTPConnection]:
    """Send *request* on to the server at *netloc*.

    Returns the reply, its body still to be read from the connection, which the caller closes.
    """
    connection = http.client.HTTPConnection(netloc, timeout=60.0)
    try:
        connection.putrequest(
            request.method, request.target, skip_host=True, skip_accept_encoding=True
        )
        for name, value in request.raw_headers:
            if name.lower() not in _HOP_BY_HOP:
                connection.putheader(name, value)
        connection.endheaders(request.payload or None)
        return _reply(connection.getresponse(), request.method), connection
    except BaseException:
        connection.close()
        raise


def _reply(response: http.client.HTTPResponse, method: str) -> Reply:
    headers = [(n, v) for n, v in response.getheaders() if n.lower() not in _HOP_BY_HOP]
    stated = response.getheader("Content-Length")
    length = int(stated) if stated is not None else None
    if method == "HEAD" or response.status in _BODILESS:
        return Reply(response.status, response.reason, headers, (), length or 0)
    pieces = iter(lambda: response.read(PIECE), b"")
    return Reply(response.status, response.reason, headers, pieces, length)


def head_bytes(reply: Reply) -> bytes:
    """Status line and headers of *reply* as sent."""
    lines = [f"HTTP/1.1 {reply.status} {reply.reason}"]
    lines += [f"{name}: {value}" for name, value in reply.headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(piece: bytes) -> bytes:
    """*piece* as one chunk; the empty piece ends the body."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def split_at(pieces: Iterable[bytes], marks: Iterable[int]) -> Iterator[bytes]:
    """The same bytes, with a piece boundary at each offset in *marks*."""
    ahead = sorted(set(marks))
    offset = 0
    for piece in pieces:
        inside = [mark - offset for mark in ahead if offset < mark < offset + len(piece)]
        for start, end in itertools.pairwise([0, *inside, len(piece)]):
            yield piece[start:end]
        offset += len(piece)


def resized(pieces: Iterable[bytes], length: int) -> Iterator[bytes]:
    """*pieces* cut, or filled up with `x`, to *length* bytes."""
    left = length
    for piece in pieces:
        yield piece[:left]
        left -= len(piece[:left])
    yield b"x" * left


def with_flipped_bit(pieces: Iterable[bytes], position: int) -> Iterator[bytes]:
    """*pieces* with the lowest bit of the byte at *position* flipped."""
    offset = 0
    for piece in pieces:
        at = position - offset
        offset += len(piece)
        if 0 <= at < len(piece):
            yield piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
        else:
            yield piece
