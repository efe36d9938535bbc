"""S3 and everything that speaks its protocol.

The bytes and listings go over the lean client of this package (`s3_client`, `http_*`, `sigv4`):
boto3's response stack costs several times the CPU per byte and twenty times as much per small GET.
botocore keeps what it is best at: credentials, endpoint rules, regions (`s3_session`). Servers are
not believed: status, Content-Range, length and ETag of every reply are checked before a byte of it
counts, no order of listings is assumed, and servers that only know LIST v1 are found out.
"""

from __future__ import annotations

import logging
import os

import trio

from tiercache.config import OriginConfig, TransferConfig
from tiercache.errors import ObjectChangedError, OriginReplyError, TierCacheError
from tiercache.origin.http_client import Reply
from tiercache.origin.http_errors import AskAgainError, ConnectionLostError
from tiercache.origin.http_exchanges import Exchanges
from tiercache.origin.http_wire import Steps
from tiercache.origin.protocol import LIST_PAGE_MAX, Ended, Patience, RangedGet
from tiercache.origin.s3_check import check_bucket
from tiercache.origin.s3_client import Request, S3Client, can_be_put_right
from tiercache.origin.s3_list import Cursor, ListRequest, next_cursor
from tiercache.origin.s3_location import Location
from tiercache.origin.s3_reply import Refusal, error_of, object_of, plan_body, receive_range
from tiercache.origin.s3_xml import PAGE_MAX, Listing, clean_etag, parse_listing
from tiercache.types import KIB, ListPage, ObjectInfo, Progress

log = logging.getLogger(__name__)

#: Pages above this size are parsed off the loop.
_PARSE_INLINE_MAX = 64 * KIB
#: What servers answer that do not know LIST v2.
_UNKNOWN_LIST = frozenset({400, 405, 501})


class S3Origin:
    """Implements `tiercache.origin.protocol.Origin`."""

    def __init__(self, config: OriginConfig, transfer: TransferConfig, location: Location) -> None:
        self._config = config
        self._location = location
        self._root = location.root
        self._client = S3Client(config, transfer, location)
        self._inline_body = transfer.inline_body
        self._exchanges = Exchanges(self._client.threads, transfer.deadline_s)
        self._list_v1 = False
        self._ignored = 0

    @property
    def name(self) -> str:
        """See `Origin`."""
        return self._location.url

    @property
    def identity(self) -> str:
        """See `Origin`. Buckets of AWS have one name space, whatever their region."""
        return self._location.identity(self._config.endpoint_url)

    def describe(self) -> dict[str, str]:
        """See `Origin`."""
        facts = {"client": "lean HTTP/1.1", "listing": "v1" if self._list_v1 else "v2"}
        facts["credentials"] = self._client.credentials_from
        endpoint = self._client.endpoint
        if endpoint is not None:
            facts["endpoint"] = endpoint.url
            facts["region"] = endpoint.region
            facts["addressing"] = "path" if endpoint.path_style else "virtual host"
        facts["ignored_keys"] = str(self._ignored)
        facts["clock_offset_s"] = f"{self._client.clock_offset_s:.0f}"
        return facts

    async def check(self) -> None:
        """See `Origin`."""
        await check_bucket(self._client, self._location, self._config)

    async def list(
        self,
        prefix: bytes,
        token: str | None = None,
        *,
        delimiter: bool = True,
        limit: int = LIST_PAGE_MAX,
    ) -> ListPage:
        """See `Origin`. A server that ignores max-keys may return more than *limit*."""
        request = ListRequest(
            prefix=self._root + prefix,
            cursor=Cursor.parse(token),
            delimiter=delimiter,
            limit=min(limit, LIST_PAGE_MAX),
        )
        listing = await self._page(request, prefix)
        if listing.is_v1:
            self._list_v1 = True
        if listing.ignored:
            self._count_ignored(listing.ignored)
        ahead = next_cursor(listing, request.cursor)
        return ListPage(listing.objects, listing.prefixes, str(ahead) if ahead else None)

    async def _page(self, request: ListRequest, prefix: bytes) -> Listing:
        v1 = self._list_v1
        answer = await self._client.ask(Request("GET", query=request.query(v1=v1)))
        if isinstance(answer, Refusal) and not v1 and answer.status in _UNKNOWN_LIST:
            refused, answer = (
                answer,
                await self._client.ask(Request("GET", query=request.query(v1=True))),
            )
            if isinstance(answer, Refusal):
                answer = refused
            else:
                log.info("%s does not know LIST v2, using v1", self.name)
                self._list_v1 = True
        if isinstance(answer, Refusal):
            if answer.status == 404 and answer.code != "NoSuchBucket":
                raise OriginReplyError("the store answered 404 to LIST")
            raise error_of(answer)
        with answer:
            page = await answer.read(PAGE_MAX)
        if len(page) <= _PARSE_INLINE_MAX:
            return parse_listing(page, self._root, prefix)
        return await trio.to_thread.run_sync(parse_listing, page, self._root, prefix)

    def _count_ignored(self, count: int) -> None:
        if not self._ignored:
            log.warning("%s lists keys that cannot be shown, first seen now", self.name)
        self._ignored += count

    async def head(self, key: bytes) -> ObjectInfo:
        """See `Origin`."""
        with await self._open(Request("HEAD", key=self._root + key)) as reply:
            return object_of(key, reply.head.headers)

    async def get_range(
        self,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress | None = None,
    ) -> None:
        """See `Origin`. An empty *into* sends nothing."""
        if clean_etag(etag) != etag:
            raise ObjectChangedError(f"{os.fsdecode(key)!r} has no version {etag!r}")
        if not into:
            await trio.lowlevel.checkpoint()
            return
        size = len(into)
        with await self._open(self._ranged(key, etag, start, size)) as reply:
            plan = plan_body(reply.head, etag, start, size)
            if plan.skip:
                await reply.skip(plan.skip)
            await reply.fill(into, progress, exact=plan.exact)

    def start_get(self, get: RangedGet, ended: Ended, patience: Patience | None) -> bool:
        """See `EagerOrigin.start_get`."""
        key, etag, start, into, progress = get
        if clean_etag(etag) != etag or not into:
            return False
        ready = self._client.compose_now(self._ranged(key, etag, start, len(into)))
        if ready is None:
            return False
        connection, request = ready
        reusable = False

        def steps() -> Steps[None]:
            nonlocal reusable
            refusal, reusable = yield from receive_range(
                connection.wire, etag, start, into, progress
            )
            if refusal is not None:
                raise AskAgainError("refused") if can_be_put_right(refusal) else error_of(refusal)

        def over(error: TierCacheError | None) -> None:
            self._client.release(connection, reusable=reusable)
            if isinstance(error, ConnectionLostError) and not connection.received:
                error = AskAgainError("the connection had been closed")
            ended(error)

        bulky = len(into) > self._inline_body
        if self._exchanges.start(connection, request, steps(), over, patience, bulky=bulky):
            return True
        self._client.release(connection, reusable=False)
        return False

    async def run(self) -> None:
        """See `EagerOrigin.run`."""
        await self._exchanges.run()

    def _ranged(self, key: bytes, etag: str, start: int, size: int) -> Request:
        pinned = f'range: bytes={start}-{start + size - 1}\r\nif-match: "{etag}"\r\n'
        return Request("GET", key=self._root + key, headers=pinned)

    async def _open(self, request: Request) -> Reply:
        answer = await self._client.ask(request)
        if isinstance(answer, Refusal):
            raise error_of(answer)
        return answer

    def reconfigure(self, config: TransferConfig) -> None:
        """See `Origin`."""
        self._client.reconfigure(config)
        self._exchanges.deadline_s = config.deadline_s

    async def aclose(self) -> None:
        """See `Origin`."""
        self._client.close()
        await trio.lowlevel.checkpoint()
