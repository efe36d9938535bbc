"""S3 through boto3's own stack, for what the lean client does not speak.

Chosen by itself for HTTP proxies, access point ARNs and S3 Express sessions. Slower, and every call
blocks a pool thread; the checks of replies and the meaning of errors are those of `s3_reply`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from tiercache.config import OriginConfig, TransferConfig
from tiercache.errors import (
    ObjectNotFoundError,
    OriginConfigError,
    OriginReplyError,
    OriginUnavailableError,
)
from tiercache.origin.http_wire import Head
from tiercache.origin.protocol import LIST_PAGE_MAX
from tiercache.origin.s3_check import explain
from tiercache.origin.s3_credentials import NOT_FOUND
from tiercache.origin.s3_list import Cursor, Mode, next_cursor
from tiercache.origin.s3_location import Location
from tiercache.origin.s3_reply import Refusal, error_of, object_of, plan_body
from tiercache.origin.s3_session import AwsSession
from tiercache.origin.s3_xml import ErrorBody, Listing, clean_etag, is_archived
from tiercache.types import KIB, ListPage, ObjectInfo, Progress

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from botocore.response import StreamingBody
    from mypy_boto3_s3 import S3Client as BotoClient
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef

T = TypeVar("T")

_PIECE = 256 * KIB


class BotoOrigin:
    """Implements `tiercache.origin.protocol.Origin`. *reason* says why it is in use."""

    def __init__(
        self, config: OriginConfig, transfer: TransferConfig, location: Location, reason: str
    ) -> None:
        self._config = config
        self._transfer = transfer
        self._location = location
        self._reason = reason
        self._region = ""
        self._client: BotoClient | None = None
        self._lock = threading.Lock()
        self._threads = trio.CapacityLimiter(transfer.threads)
        self._ignored = 0

    @property
    def name(self) -> str:
        """See `Origin`."""
        return self._location.url

    @property
    def identity(self) -> str:
        """See `Origin`; the same as over the lean client."""
        return self._location.identity(self._config.endpoint_url)

    def describe(self) -> dict[str, str]:
        """See `Origin`."""
        facts = {"client": f"boto3 ({self._reason})", "ignored_keys": str(self._ignored)}
        if self._client is not None:
            facts["endpoint"] = str(self._client.meta.endpoint_url)
            facts["region"] = self._region
        return facts

    async def check(self) -> None:
        """See `Origin`."""
        await self._call(self._check)

    def _check(self) -> None:
        from botocore.exceptions import ClientError, ConnectionError, ProxyConnectionError

        try:
            prefix = _text(self._location.root)
            self._connected().list_objects_v2(**self._addressed(Prefix=prefix, MaxKeys=1))
        except ClientError as error:
            refusal = _refusal_of(error)
            raise explain(refusal, self._region, self._location, self._config) from error
        except (ConnectionError, ProxyConnectionError) as error:
            raise OriginConfigError(f"{self.name}: {error}") from error

    async def list(
        self,
        prefix: bytes,
        token: str | None = None,
        *,
        delimiter: bool = True,
        limit: int = LIST_PAGE_MAX,
    ) -> ListPage:
        """See `Origin`."""
        cursor = Cursor.parse(token)
        wanted = self._location.root + prefix
        options: dict[str, Any] = {"Prefix": _text(wanted), "MaxKeys": min(limit, LIST_PAGE_MAX)}
        if delimiter:
            options["Delimiter"] = "/"
        if cursor.mode is not Mode.START:
            name = "ContinuationToken" if cursor.mode is Mode.TOKEN else "StartAfter"
            options[name] = _text(cursor.value)
        page = await self._call(
            lambda: self._connected().list_objects_v2(**self._addressed(**options))
        )
        listing = _listing_of(page, len(self._location.root), wanted)
        self._ignored += listing.ignored
        ahead = next_cursor(listing, cursor)
        return ListPage(listing.objects, listing.prefixes, str(ahead) if ahead else None)

    async def head(self, key: bytes) -> ObjectInfo:
        """See `Origin`."""
        name = _text(self._location.root + key)
        reply = await self._call(lambda: self._connected().head_object(**self._addressed(Key=name)))
        return object_of(key, reply["ResponseMetadata"]["HTTPHeaders"])

    async def get_range(
        self,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress | None = None,
    ) -> None:
        """See `Origin`. An empty *into* sends nothing."""
        if not into:
            await trio.lowlevel.checkpoint()
            return
        sink = _Sink(into, progress)
        options = {
            "Key": _text(self._location.root + key),
            "IfMatch": f'"{etag}"',
            "Range": f"bytes={start}-{start + len(into) - 1}",
        }
        try:
            await self._call(lambda: self._receive(options, etag, start, sink))
        finally:
            sink.close()

    def _receive(self, options: Mapping[str, str], etag: str, start: int, sink: _Sink) -> None:
        reply = self._connected().get_object(**self._addressed(**options))
        with contextlib.closing(reply["Body"]) as body:
            meta = reply["ResponseMetadata"]
            head = Head(int(meta["HTTPStatusCode"]), meta["HTTPHeaders"])
            plan = plan_body(head, etag, start, sink.size)
            to_skip = plan.skip
            while to_skip:
                to_skip -= len(_read(body, min(to_skip, _PIECE)))
            while left := sink.size - sink.filled:
                sink.put(_read(body, min(left, _PIECE)))
            if plan.exact and body.read(1):
                raise OriginReplyError("the body is longer than the range asked for")

    def reconfigure(self, config: TransferConfig) -> None:
        """See `Origin`. Calls that run keep the client they began with."""
        with self._lock:
            self._transfer = config
            self._client = None

    async def aclose(self) -> None:
        """See `Origin`."""
        if self._client is not None:
            self._client.close()
        await trio.lowlevel.checkpoint()

    async def _call(self, work: Callable[[], T]) -> T:
        """Run *work* in a thread; a cancelled call leaves its thread behind, bounded in time."""
        return await trio.to_thread.run_sync(
            _translated, work, abandon_on_cancel=True, limiter=self._threads
        )

    def _addressed(self, **options: object) -> dict[str, Any]:
        """Arguments of every call: the bucket, and who pays."""
        if self._config.requester_pays:
            options["RequestPayer"] = "requester"
        return {"Bucket": self._location.bucket, **options}

    def _connected(self) -> BotoClient:
        with self._lock:
            if self._client is None:
                session = AwsSession(self._config)
                self._region = session.region
                self._client = session.client(
                    self._location,
                    self._region,
                    options={
                        "connect_timeout": self._transfer.connect_timeout_s,
                        "read_timeout": self._transfer.stall_timeout_s,
                        "max_pool_connections": self._transfer.threads,
                        "retries": {"total_max_attempts": 1},  # retries are our caller's
                        "request_checksum_calculation": "when_required",
                        "response_checksum_validation": "when_required",
                    },
                )
            return self._client


class _Sink:
    """The caller's buffer, which a thread left behind can no longer reach once closed."""

    def __init__(self, into: memoryview, progress: Progress | None) -> None:
        self.size = len(into)
        self.filled = 0
        self._into: memoryview | None = into
        self._progress = progress
        self._lock = threading.Lock()

    def put(self, piece: bytes) -> None:
        """Append *piece*. Called on the pool thread."""
        with self._lock:
            if self._into is None:
                raise OriginUnavailableError("the transfer was cancelled")
            self._into[self.filled : self.filled + len(piece)] = piece
            self.filled += len(piece)
            if self._progress is not None:
                self._progress(self.filled)

    def close(self) -> None:
        """Let go of the buffer; waits for one piece at most."""
        with self._lock:
            self._into = None


def _read(body: StreamingBody, size: int) -> bytes:
    piece = body.read(size)
    if not piece:
        raise OriginReplyError("the body ended too early")
    return piece


def _translated(work: Callable[[], T]) -> T:
    """Run *work*, turning botocore's errors into ours."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        return work()
    except ClientError as error:
        raise error_of(_refusal_of(error)) from error
    except NoCredentialsError as error:
        raise OriginConfigError(NOT_FOUND) from error
    except BotoCoreError as error:
        raise OriginUnavailableError(f"boto3: {type(error).__name__}") from error


def _refusal_of(error: ClientError) -> Refusal:
    reply: Any = error.response
    body = ErrorBody(str(reply["Error"].get("Code", "")))
    meta = reply["ResponseMetadata"]
    return Refusal(int(meta["HTTPStatusCode"]), meta["HTTPHeaders"], body)


def _text(key: bytes) -> str:
    """boto3 takes keys as text, and AWS has no others."""
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise ObjectNotFoundError("no key of S3 is other than UTF-8") from error


def _listing_of(page: ListObjectsV2OutputTypeDef, cut: int, wanted: bytes) -> Listing:
    token = page.get("NextContinuationToken")
    listing = Listing(truncated=page["IsTruncated"], token=token.encode() if token else None)
    for entry in page.get("Contents", ()):
        listing.last_key = name = _bytes(entry["Key"])
        etag = clean_etag(entry.get("ETag", ""))
        if not name.startswith(wanted) or etag is None:
            listing.ignored += 1
        elif name[cut:]:
            mtime = int(entry["LastModified"].timestamp()) * 1_000_000_000
            archived = is_archived(entry.get("StorageClass", ""))
            info = ObjectInfo(name[cut:], entry["Size"], etag, mtime, archived)
            listing.objects.append(info)
    for folded in page.get("CommonPrefixes", ()):
        listing.last_prefix = name = _bytes(folded["Prefix"])
        if name.startswith(wanted):
            listing.prefixes.append(name[cut:])
        else:
            listing.ignored += 1
    return listing


def _bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
