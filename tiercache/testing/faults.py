"""What can go wrong with a reply of an S3 server, and which requests it goes wrong for."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tiercache.testing.proxyhttp import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong with one reply. Fields combine; offsets count bytes of the body."""

    #: Answer with this status, `headers` and `body`, without asking the server.
    status: int | None = None
    body: bytes = b""
    #: Set in the reply, whoever made it; None removes a header.
    headers: Mapping[str, str | None] = field(default_factory=dict)
    #: Send the client to this URL, with 307 or `status`, without asking the server.
    redirect: str | None = None
    #: Wait before the request is passed on.
    delay_s: float = 0.0
    #: Say nothing until the rule is released.
    hang: bool = False
    #: Stop after this many bytes until the rule is released; 0 is after the headers.
    stall_after: int | None = None
    #: RST instead of a reply; the server is not asked.
    reset_before: bool = False
    #: RST after this many bytes.
    reset_after: int | None = None
    #: Close in order after this many bytes, whatever Content-Length promised.
    truncate_after: int | None = None
    #: Close after the whole reply without having said so: the keep-alive race.
    close_after: bool = False
    #: Ask the server for everything: 200 and the full body.
    ignore_range: bool = False
    #: Add this to both ends of Content-Range.
    shift_content_range: int = 0
    drop_content_range: bool = False
    #: Send so many bytes more (`x`) or fewer, with a Content-Length that agrees.
    length_delta: int = 0
    #: Flip a bit of this byte.
    corrupt_at: int | None = None
    #: Send the body in chunks, without Content-Length.
    chunked: bool = False
    #: Bytes per second, shared by all replies of the rule.
    bandwidth: float | None = None


def s3_error(code: str, message: str = "injected", **elements: str) -> bytes:
    """An S3 error body, e.g. `s3_error("SlowDown")`; *elements* are added to it."""
    fields = {"Code": code, "Message": message, **elements}
    inner = "".join(f"<{name}>{text}</{name}>" for name, text in fields.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{inner}</Error>'.encode()


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests a rule is for; None fits everything."""

    method: str | None = None
    path: re.Pattern[str] | None = None
    range: re.Pattern[str] | None = None

    @classmethod
    def of(cls, method: str | None, path: str | None, range: str | None) -> Match:
        """Compile the regular expressions *path* and *range*."""
        return cls(
            method,
            None if path is None else re.compile(path),
            None if range is None else re.compile(range),
        )

    def fits(self, request: Request) -> bool:
        """Whether all that is given is found in *request*."""
        if self.method is not None and request.method != self.method:
            return False
        if self.path is not None and not self.path.search(request.path):
            return False
        return self.range is None or bool(self.range.search(request.range or ""))


class Pacer:
    """Spreads bytes over time; any number of threads share one rate. None is no limit."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self.bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def reserve(self, size: int) -> float:
        """Seconds to wait after sending *size* bytes."""
        if self.bytes_per_s is None:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + size / self.bytes_per_s
            return self._free_at - now


class Rule:
    """A fault and the requests it is for. All methods run under the proxy's lock."""

    def __init__(self, fault: Fault, match: Match, *, times: int | None, skip: int) -> None:
        self.fault = fault
        self.pacer = Pacer(fault.bandwidth)
        self.released = False
        self._match = match
        self._times = times
        self._skip = skip
        self._hits = 0

    @property
    def hits(self) -> int:
        """Number of requests the fault was applied to."""
        return self._hits

    def claim(self, request: Request) -> bool:
        """Whether this rule decides *request*; counts it if so."""
        if self._hits == self._times or not self._match.fits(request):
            return False
        if self._skip > 0:
            self._skip -= 1
            return False
        self._hits += 1
        return True
