"""Signed requests to one bucket over the lean HTTP client.

What a store may refuse for reasons that pass is put right here, each reason once per request:
expired credentials are renewed, a wrong clock learns its offset from the reply, a bucket elsewhere
is followed to its region. All three are remembered, a move only once it led to an answer: a stray
redirect must not take a mount to where nothing is. Everything else is for the caller to judge.
"""

from __future__ import annotations

import enum
import logging
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import trio

import tiercache
from tiercache.config import OriginConfig, TransferConfig
from tiercache.errors import OriginUnavailableError
from tiercache.origin import s3_endpoint
from tiercache.origin.http_client import HttpClient, HttpLimits, Reply
from tiercache.origin.http_connection import Connection
from tiercache.origin.http_threads import ReceiveThreads
from tiercache.origin.s3_credentials import CredentialSource
from tiercache.origin.s3_endpoint import Endpoint
from tiercache.origin.s3_location import Location
from tiercache.origin.s3_reply import EXPIRED_CODES, SKEWED_CODES, Refusal, http_time
from tiercache.origin.s3_session import AwsSession
from tiercache.origin.s3_xml import ERROR_MAX, parse_error
from tiercache.origin.sigv4 import Credentials, Signer

log = logging.getLogger(__name__)

_REDIRECTS = frozenset({301, 302, 307, 308})
#: Redirects that hold for later requests too.
_LASTING = frozenset({301, 308})
#: A clock this far off explains a 403 without a code; S3 tolerates 15 minutes.
_SKEW_MIN_S = 300.0
# Identity: stored bytes as they are, whatever their Content-Encoding says.
_FIXED_HEADERS = (
    f"accept-encoding: identity\r\nuser-agent: tiercache/{tiercache.__version__}\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request for an object, or with *key* None for the bucket. *headers* end in CRLF each."""

    method: str
    key: bytes | None = None
    query: str = ""
    headers: str = ""


@dataclass(frozen=True, slots=True)
class _Link:
    """How to talk to the bucket at the moment."""

    endpoint: Endpoint
    signer: Signer
    signed_headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Move:
    """A redirect from *origin* to *link*; a *lasting* one is remembered once it proved right."""

    origin: _Link
    link: _Link
    lasting: bool


class _Cause(enum.Enum):
    """Why a request was refused, when that can be put right."""

    CREDENTIALS = enum.auto()
    CLOCK = enum.auto()
    PLACE = enum.auto()


class S3Client:
    """A bucket. Requests may run at the same time; nothing is retried but what is put right."""

    def __init__(self, config: OriginConfig, transfer: TransferConfig, location: Location) -> None:
        self._config = config
        self._location = location
        self._http = HttpClient(_limits(transfer), self._tls_context)
        self._lock = trio.Lock()
        self._session: AwsSession | None = None
        self._tls: ssl.SSLContext | None = None
        self._link: _Link | None = None
        self._credentials = None if config.anonymous else CredentialSource(self._open_session)
        self.clock_offset_s = 0.0

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the bucket is; None before the first request."""
        return self._link.endpoint if self._link else None

    @property
    def credentials_from(self) -> str:
        """Which part of the chain gave the credentials."""
        return self._credentials.method if self._credentials else "anonymous"

    @property
    def threads(self) -> ReceiveThreads:
        """Where large bodies are received."""
        return self._http.threads

    async def ask(self, request: Request) -> Reply | Refusal:
        """The reply if its status is 200 or 206, to be released, else what it says.

        Raises `OriginUnavailableError` when there is none and `OriginConfigError` when none can
        be asked for.
        """
        answer = await self._ask(request)
        if request.method != "HEAD" or not isinstance(answer, Refusal) or not self._hides(answer):
            return answer
        # A reply to HEAD has no error document. One to GET does, and putting that right helps both.
        told = await self._ask(replace(request, method="GET", headers="range: bytes=0-0\r\n"))
        if isinstance(told, Refusal):
            return told if told.code else answer
        with told:
            pass
        return await self._ask(request)

    def compose_now(self, request: Request) -> tuple[Connection, bytes] | None:
        """An idle connection and what to send on it, None when either takes waiting.

        The connection must be given back by `release`.
        """
        link, credentials = self._link, None
        if link is None:
            return None
        if self._credentials is not None:
            credentials = self._credentials.get_now()
            if credentials is None:
                return None
        connection = self._http.take_now(link.endpoint.address)
        if connection is None:
            return None
        return connection, self._compose(link, credentials, request)

    def release(self, connection: Connection, *, reusable: bool) -> None:
        """Give back what `compose_now` took."""
        self._http.release(connection, reusable=reusable)

    async def _ask(self, request: Request) -> Reply | Refusal:
        tried: set[_Cause] = set()
        move: _Move | None = None
        while True:
            link = move.link if move else self._link or await self._connect()
            credentials = await self._credentials.get() if self._credentials else None
            reply = await self._http.exchange(
                link.endpoint.address,
                self._compose(link, credentials, request),
                bodiless=request.method == "HEAD",
            )
            if reply.head.status in (200, 206):
                if move:
                    self._settle(move)
                return reply
            refusal = await _read_refusal(reply)
            cause = _cause_of(refusal)
            if cause is None or cause in tried:
                return refusal
            tried.add(cause)
            if cause is _Cause.PLACE:
                move = await self._follow(refusal, link)
                if move is None:
                    return refusal
            elif not await self._put_right(cause, refusal, credentials):
                return refusal

    def reconfigure(self, transfer: TransferConfig) -> None:
        """Take on other bounds."""
        self._http.reconfigure(_limits(transfer))

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    async def _connect(self) -> _Link:
        async with self._lock:
            if self._link is None:
                self._link = await trio.to_thread.run_sync(self._open_link)
            return self._link

    def _open_link(self) -> _Link:
        self._session = self._open_session()
        endpoint = self._session.endpoint(self._location, self._session.region)
        if endpoint.address.tls:
            self._tls = self._session.tls_context()
        return self._link_to(endpoint)

    def _open_session(self) -> AwsSession:
        return AwsSession(self._config)

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            # Only after a redirect from plain HTTP on the same host.
            self._tls = self._open_session().tls_context()
        return self._tls

    def _link_to(self, endpoint: Endpoint) -> _Link:
        headers = {"host": endpoint.host_header}
        if self._config.requester_pays:
            headers["x-amz-request-payer"] = "requester"
        return _Link(endpoint, Signer(endpoint.region), headers)

    def _compose(self, link: _Link, credentials: Credentials | None, request: Request) -> bytes:
        endpoint, query = link.endpoint, request.query
        key = request.key
        path = endpoint.bucket_path if key is None else endpoint.key_path(key)
        headers = link.signed_headers
        if credentials is not None:
            # Range and If-Match stay unsigned, so a cache in between may widen the range.
            now = time.time() + self.clock_offset_s
            headers = link.signer.sign(credentials, (request.method, path, query), headers, now)
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        target = f"{path}?{query}" if query else path
        return (
            f"{request.method} {target} HTTP/1.1\r\n{lines}{request.headers}{_FIXED_HEADERS}"
        ).encode("latin-1")

    def _hides(self, refusal: Refusal) -> bool:
        """Whether a refused HEAD may have a cause that only an error document would name."""
        if self._credentials is None or refusal.status not in (400, 403):
            return False
        return refusal.status == 400 or self._credentials.temporary or self._is_skewed(refusal)

    def _is_skewed(self, refusal: Refusal) -> bool:
        date = http_time(refusal.headers.get("date", ""))
        return date is not None and abs(date - time.time() - self.clock_offset_s) > _SKEW_MIN_S

    async def _put_right(
        self, cause: _Cause, refusal: Refusal, credentials: Credentials | None
    ) -> bool:
        """Whether the request should be sent again, for its cause of refusal is gone."""
        if cause is _Cause.CREDENTIALS:
            if self._credentials is None or credentials is None:
                return False
            return await self._credentials.renew(credentials)
        return self._learn_clock(refusal)

    def _learn_clock(self, refusal: Refusal) -> bool:
        date = http_time(refusal.headers.get("date", ""))
        if date is None:
            return False
        self.clock_offset_s = date - time.time()
        log.warning("clock skew %.0f s: signing with the time of the store", self.clock_offset_s)
        return True

    async def _follow(self, refusal: Refusal, link: _Link) -> _Move | None:
        """Where the bucket is, within the rules of the endpoint; None when that says nothing."""
        if self._link is not None and self._link is not link:
            return _Move(link, self._link, lasting=False)  # another request has moved meanwhile
        location = refusal.headers.get("location", "")
        region = s3_endpoint.region_of(refusal.region, location)
        lasting = refusal.status in _LASTING
        if region is not None and region != link.endpoint.region:
            lasting = True
            moved = await trio.to_thread.run_sync(self._endpoint_in, region, link.endpoint)
        else:
            moved = s3_endpoint.relocated(link.endpoint, location)
        if moved is None:
            log.warning("redirect of %s is not followed", link.endpoint.url)
            return None
        return _Move(link, self._link_to(moved), lasting=lasting)

    def _settle(self, move: _Move) -> None:
        """Remember a move that proved right, unless another request was quicker."""
        if move.lasting and self._link is move.origin:
            endpoint = move.link.endpoint
            log.info("%s is served by %s in %s", self._location.url, endpoint.url, endpoint.region)
            self._link = move.link

    def _endpoint_in(self, region: str, current: Endpoint) -> Endpoint | None:
        """The endpoint of *region*; None outside the partition that credentials are for."""
        if current.custom:
            return replace(current, region=region)
        assert self._session is not None
        if self._session.partition_of(region) != self._session.partition_of(current.region):
            return None
        return self._session.endpoint(self._location, region)


def _limits(transfer: TransferConfig) -> HttpLimits:
    return HttpLimits(
        connections=transfer.connections,
        threads=transfer.threads,
        inline_body=transfer.inline_body,
        connect_timeout_s=transfer.connect_timeout_s,
        stall_timeout_s=transfer.stall_timeout_s,
    )


def can_be_put_right(refusal: Refusal) -> bool:
    """Whether `S3Client.ask` may get another answer to the same request."""
    return _cause_of(refusal) is not None


def _cause_of(refusal: Refusal) -> _Cause | None:
    if refusal.code in EXPIRED_CODES or refusal.code == "InvalidAccessKeyId":
        return _Cause.CREDENTIALS
    if refusal.code in SKEWED_CODES:
        return _Cause.CLOCK
    if refusal.status in _REDIRECTS or refusal.code == "AuthorizationHeaderMalformed":
        return _Cause.PLACE
    return None


async def _read_refusal(reply: Reply) -> Refusal:
    with reply:
        try:
            body = await reply.read(ERROR_MAX)
        except OriginUnavailableError:
            body = b""  # the status says enough
        return Refusal(reply.head.status, reply.head.headers, parse_error(body))
