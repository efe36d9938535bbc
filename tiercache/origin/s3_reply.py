"""What a reply of S3 means: pure functions from status and headers to a plan or an error.

Decisions rest on status codes, headers and the error code, never on message text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from tiercache.errors import (
    AccessDeniedError,
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
    OriginConfigError,
    OriginReplyError,
    OriginThrottledError,
    OriginUnavailableError,
    TierCacheError,
)
from tiercache.origin.http_wire import (
    Body,
    Head,
    Steps,
    Wire,
    body_of,
    fill,
    parse_length,
    read_all,
    read_head,
    skip,
)
from tiercache.origin.s3_xml import ERROR_MAX, ErrorBody, clean_etag, is_archived, parse_error
from tiercache.types import MIB, ObjectInfo, Progress

#: Most bytes thrown away to reach the range in a reply that ignored it.
SKIP_MAX = 8 * MIB
RETRY_AFTER_MAX_S = 300.0

EXPIRED_CODES = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"}
)
SKEWED_CODES = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_BUSY_CODES = frozenset({"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable"})
_ABSENT_CODES = frozenset({"NoSuchKey", "KeyTooLongError"})

_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
_RESTORED = 'ongoing-request="false"'


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """How to take the range from the body: bytes to skip, and whether it then must end."""

    skip: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reply other than the one asked for."""

    status: int
    headers: Mapping[str, str]
    body: ErrorBody

    @property
    def code(self) -> str:
        """The error code of S3; empty when the reply has none, as with HEAD."""
        return self.body.code

    @property
    def region(self) -> str:
        """The region that the store names as the right one, if it does."""
        return self.headers.get("x-amz-bucket-region", "") or self.body.region


def plan_body(head: Head, etag: str, start: int, size: int) -> BodyPlan:
    """Check a 200 or 206 reply to the GET of *size* bytes from *start* of version *etag*.

    Raises `ObjectChangedError` for another version and `OriginReplyError` for another range.
    """
    found = clean_etag(head.headers.get("etag", ""))
    if found is None:
        raise OriginReplyError("the reply has no ETag, so it may be of any version")
    if found != etag:
        raise ObjectChangedError(f"the object is now version {found}, not {etag}")
    length = head.headers.get("content-length")
    stated = parse_length(length) if length is not None else None
    content_range = head.headers.get("content-range")
    if content_range is not None:
        _check_range(content_range, start, size)
        if stated not in (None, size):
            raise OriginReplyError(f"{stated} bytes came with a range of {size}")
        return BodyPlan(0, exact=True)
    if head.status == 206:
        raise OriginReplyError("a partial reply says not which part it is")
    return _plan_whole(stated, start, size)


def receive_range(
    wire: Wire, etag: str, start: int, into: memoryview, progress: Progress | None = None
) -> Steps[tuple[Refusal | None, bool]]:
    """Take a whole reply to the GET of a range: the refusal, and if the connection can go on.

    Raises as `plan_body` does.
    """
    refusal = None
    head = yield from read_head(wire)
    body = body_of(wire, head)
    if head.status not in (200, 206):
        refusal = Refusal(head.status, head.headers, parse_error((yield from read_error(body))))
    else:
        plan = plan_body(head, etag, start, len(into))
        yield from skip(body, plan.skip)
        yield from fill(body, into, progress, exact=plan.exact)
    return refusal, body.ended and wire.empty and head.keep_alive


def read_error(body: Body) -> Steps[bytes]:
    """The document of a refusal; empty if it does not come whole, for the status says enough."""
    try:
        return (yield from read_all(body, ERROR_MAX))
    except OriginUnavailableError:
        return b""


def _check_range(text: str, start: int, size: int) -> None:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise OriginReplyError(f"Content-Range {text[:64]!r} cannot be read")
    first, last, total = match.groups()
    if (int(first), int(last)) != (start, start + size - 1):
        raise OriginReplyError(f"asked for {start}-{start + size - 1}, got {first}-{last}")
    if total != "*" and int(total) <= int(last):
        raise OriginReplyError(f"Content-Range {text[:64]!r} contradicts itself")


def _plan_whole(stated: int | None, start: int, size: int) -> BodyPlan:
    """The server ignored Range and sends everything: usable if the range is not far in."""
    if start > SKIP_MAX:
        raise OriginReplyError(f"the store ignores Range; {start} bytes are too many to skip")
    if stated is not None and stated < start + size:
        raise OriginReplyError(f"the object has {stated} bytes, {start + size} were expected")
    return BodyPlan(start, exact=stated == start + size)


def object_of(key: bytes, headers: Mapping[str, str]) -> ObjectInfo:
    """The version that a reply to HEAD describes."""
    etag = clean_etag(headers.get("etag", ""))
    length = headers.get("content-length")
    if etag is None or length is None:
        raise OriginReplyError("the reply to HEAD has no ETag or no Content-Length")
    archived = is_archived(headers.get("x-amz-storage-class", ""))
    if _RESTORED in headers.get("x-amz-restore", ""):
        archived = False
    mtime = http_time(headers.get("last-modified", "")) or 0.0
    return ObjectInfo(key, parse_length(length), etag, int(mtime) * 1_000_000_000, archived)


def error_of(refusal: Refusal) -> TierCacheError:
    """The error that a refused request for an object or listing raises."""
    status, code = refusal.status, refusal.code
    text = f"the store answered {status} {code}".rstrip()
    if status in (429, 408) or status >= 500 or code in _BUSY_CODES:
        throttled = status in (429, 503) or code == "SlowDown"
        kind = OriginThrottledError if throttled else OriginUnavailableError
        return kind(text, retry_after(refusal.headers))
    if code == "NoSuchBucket":
        return OriginConfigError("the bucket does not exist")
    if status in (412, 416):
        return ObjectChangedError(f"the object has changed ({status})")
    if code == "InvalidObjectState":
        return ObjectArchivedError("the object is archived: restore it before it can be read")
    if status == 404 or code in _ABSENT_CODES:
        return ObjectNotFoundError(text)
    if code in EXPIRED_CODES or code in SKEWED_CODES:
        return OriginUnavailableError(text)
    if 400 <= status < 500:
        return AccessDeniedError(text)
    return OriginReplyError(text)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the store asks to wait, bounded; None if it does not ask."""
    text = headers.get("retry-after", "")
    if text.isdigit() and len(text) < 10:
        return min(float(text), RETRY_AFTER_MAX_S)
    moment = http_time(text)
    if moment is None:
        return None
    return min(max(moment - time.time(), 0.0), RETRY_AFTER_MAX_S)


def http_time(text: str) -> float | None:
    """An HTTP date in seconds since the epoch; None for what is not one."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
