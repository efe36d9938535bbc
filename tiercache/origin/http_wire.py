"""HTTP/1.1 replies without sockets: heads, framing and bodies.

Parsing is written once, as generators (`Steps`) that yield the buffer to receive into and are sent
the number of bytes received, 0 at the end of the stream. A connection drives them on the loop or
in a thread. Bodies go straight into the caller's buffer; only what arrived together with the head
is copied. Replies are hostile input: heads are bounded and matched against one strict pattern,
anything ambiguous about framing is refused.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from tiercache.origin.http_errors import ConnectionLostError, FramingError
from tiercache.types import MIB, Progress

T = TypeVar("T")
Steps: TypeAlias = Generator[memoryview, int, T]

#: Largest reply head; S3 sends 8 KiB of headers at most.
HEAD_MAX = 16 << 10
#: Most bytes asked of one receive, so that progress is told at least once per block.
RECEIVE_MAX = MIB
_LINE_MAX = 1 << 10
_SCRATCH = 64 << 10
_INTERIM_MAX = 8

# Token, colon, no control bytes in the value; a folded line starts with a space and so fails.
_HEAD = re.compile(
    r"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n\0]*)?"
    r"((?:\r\n[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\r\n\0]*)*)"
)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]*)?")
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers; names are lower case, repeated headers joined by `, `."""

    status: int
    headers: dict[str, str]
    http10: bool = False

    @property
    def keep_alive(self) -> bool:
        """Whether the server lets the connection carry another request."""
        options = self.headers.get("connection", "").lower()
        return "close" not in options and (not self.http10 or "keep-alive" in options)


class Wire:
    """Bytes that were received and not used yet."""

    __slots__ = ("_buffer", "_end", "_start", "_view")

    def __init__(self) -> None:
        self._buffer = bytearray(HEAD_MAX)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    @property
    def empty(self) -> bool:
        """Whether everything received was used: nothing but this may precede a next request."""
        return self._start == self._end

    def read_until(self, mark: bytes, limit: int) -> Steps[bytes]:
        """The bytes before *mark*, which is used up; at most *limit* of them."""
        while True:
            at = self._buffer.find(mark, self._start, self._end)
            if at >= 0 and at - self._start <= limit:
                data = bytes(self._view[self._start : at])
                self._start = at + len(mark)
                return data
            if at >= 0 or self._end - self._start >= limit + len(mark):
                raise FramingError(f"reply head or chunk line is over {limit} bytes")
            yield from self._receive_more()

    def _receive_more(self) -> Steps[None]:
        if self._start:
            left = self._end - self._start
            self._buffer[:left] = self._buffer[self._start : self._end]
            self._start, self._end = 0, left
        received = yield self._view[self._end :]
        if not received:
            raise ConnectionLostError("the connection was closed before the reply was complete")
        self._end += received

    def read_some(self, into: memoryview) -> Steps[int]:
        """Fill the beginning of *into*, which is not empty; 0 at the end of the stream."""
        if self._start == self._end:
            return (yield into[:RECEIVE_MAX])
        count = min(self._end - self._start, len(into))
        into[:count] = self._view[self._start : self._start + count]
        self._start += count
        return count


class Body(Protocol):
    """A message body as its framing delimits it."""

    def read_some(self, into: memoryview) -> Steps[int]:
        """Fill the beginning of *into*, which is not empty; 0 at the end of the body only."""

    @property
    def ended(self) -> bool:
        """Whether the end of the body was seen and the connection can carry on."""


class SizedBody:
    """Content-Length, or no body at all."""

    __slots__ = ("_wire", "left")

    def __init__(self, wire: Wire, size: int) -> None:
        self._wire = wire
        self.left = size

    def read_some(self, into: memoryview) -> Steps[int]:
        """See `Body`."""
        if not self.left:
            return 0
        count = yield from self._wire.read_some(into[: self.left])
        if not count:
            raise ConnectionLostError(f"the connection was closed {self.left} bytes too early")
        self.left -= count
        return count

    @property
    def ended(self) -> bool:
        """See `Body`."""
        return not self.left


class ChunkedBody:
    """Transfer-Encoding: chunked. Extensions and trailers are ignored."""

    __slots__ = ("_chunk", "_wire", "ended")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._chunk = -1  # bytes left of the chunk; -1 before the first
        self.ended = False

    def read_some(self, into: memoryview) -> Steps[int]:
        """See `Body`."""
        if self._chunk <= 0 and not self.ended:
            yield from self._next_chunk()
        if self.ended:
            return 0
        count = yield from self._wire.read_some(into[: self._chunk])
        if not count:
            raise ConnectionLostError("the connection was closed inside a chunk")
        self._chunk -= count
        return count

    def _next_chunk(self) -> Steps[None]:
        if self._chunk == 0 and (yield from self._wire.read_until(b"\r\n", 0)):
            raise FramingError("a chunk does not end where it should")
        line = yield from self._wire.read_until(b"\r\n", _LINE_MAX)
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise FramingError("a chunk has no valid size")
        self._chunk = int(match[1], 16)
        if self._chunk == 0:
            yield from self._skip_trailers()

    def _skip_trailers(self) -> Steps[None]:
        left = HEAD_MAX
        while line := (yield from self._wire.read_until(b"\r\n", min(left, _LINE_MAX))):
            left -= len(line)
        self.ended = True


class OpenBody:
    """Delimited by the end of the connection, which thus ends with it."""

    __slots__ = ("_wire", "ended")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.ended = False

    def read_some(self, into: memoryview) -> Steps[int]:
        """See `Body`."""
        if self.ended:
            return 0
        count = yield from self._wire.read_some(into)
        self.ended = not count
        return count


def read_head(wire: Wire) -> Steps[Head]:
    """The head of the reply, interim ones skipped."""
    for _ in range(_INTERIM_MAX):
        head = parse_head((yield from wire.read_until(b"\r\n\r\n", HEAD_MAX - 4)))
        if head.status >= 200:
            return head
        if head.status == 101:
            raise FramingError("the server switches protocols unasked")
    raise FramingError("too many interim replies")


def parse_head(data: bytes) -> Head:
    """Status line and headers, or `FramingError`."""
    match = _HEAD.fullmatch(data.decode("latin-1"))
    if match is None:
        raise FramingError("the reply does not start with a valid HTTP/1.1 head")
    minor, status, fields = match.groups()
    headers: dict[str, str] = {}
    for line in fields.split("\r\n")[1:]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        # Differing repeats of a header that must be single fail where it is parsed.
        if headers.setdefault(name, value) != value:
            headers[name] = f"{headers[name]}, {value}"
    return Head(int(status), headers, minor == "0")


def body_of(
    wire: Wire, head: Head, *, bodiless: bool = False
) -> SizedBody | ChunkedBody | OpenBody:
    """The body that follows *head*; *bodiless* for replies to HEAD."""
    coding = head.headers.get("transfer-encoding")
    length = head.headers.get("content-length")
    if bodiless or head.status in (204, 304):
        return SizedBody(wire, 0)
    if coding is not None:
        if coding.lower() != "chunked" or length is not None or head.http10:
            raise FramingError(f"transfer coding {coding[:32]!r} leaves the body's end in doubt")
        return ChunkedBody(wire)
    return OpenBody(wire) if length is None else SizedBody(wire, parse_length(length))


def parse_length(text: str) -> int:
    """A Content-Length; conflicting repeats do not parse."""
    if not _NUMBER.fullmatch(text):
        raise FramingError(f"Content-Length {text[:32]!r} is not a number")
    return int(text)


def skip(body: Body, count: int) -> Steps[None]:
    """Receive and forget *count* bytes."""
    scratch = memoryview(bytearray(min(count, _SCRATCH)))
    while count:
        received = yield from body.read_some(scratch[:count])
        if not received:
            raise FramingError(f"the body ends {count} bytes before the range asked for")
        count -= received


def fill(body: Body, into: memoryview, progress: Progress | None, *, exact: bool) -> Steps[None]:
    """Fill *into*; with *exact* the body must end right there.

    The last bytes are reported once that is known, so a body that is too long never counts whole.
    """
    size, filled = len(into), 0
    while filled < size:
        received = yield from body.read_some(into[filled:])
        if not received:
            raise FramingError(f"the body ends {size - filled} bytes too early")
        filled += received
        if progress is not None and filled < size:
            progress(filled)
    if exact and not body.ended and (yield from body.read_some(memoryview(bytearray(1)))):
        raise FramingError("the body is longer than the range asked for")
    if progress is not None:
        progress(size)


def read_all(body: Body, limit: int) -> Steps[bytes]:
    """The rest of the body, or `FramingError` if it is over *limit* bytes."""
    data = bytearray()
    scratch = memoryview(bytearray(_SCRATCH))
    while received := (yield from body.read_some(scratch)):
        data += scratch[:received]
        if len(data) > limit:
            raise FramingError(f"the body is over {limit} bytes")
    return bytes(data)
