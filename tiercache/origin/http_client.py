"""A pool of kept-alive HTTP/1.1 connections for requests without a body.

    with await client.exchange(address, request) as reply:
        await reply.fill(buffer, progress)

A reply is released synchronously when its block ends; its connection goes back to the pool only if
the reply was read to its end, else it is closed. A reused connection that dies before the first
byte of a reply lost the keep-alive race with the server: the request goes out once more, at once,
on a fresh connection. Nothing else is retried here.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import trio

from tiercache.origin import http_wire
from tiercache.origin.http_connection import Address, Connection, connect
from tiercache.origin.http_errors import ConnectionLostError
from tiercache.origin.http_threads import ReceiveThreads
from tiercache.origin.http_wire import Head
from tiercache.types import Progress

#: Idle connections are dropped at the next use of the pool after this time: S3 closes its end
#: after some 5 to 20 s, and each lost race costs a round trip.
IDLE_MAX_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bounds of the client; `inline_body` is the largest body received on the loop."""

    connections: int
    threads: int
    inline_body: int
    connect_timeout_s: float
    stall_timeout_s: float


class Reply:
    """A reply whose head was read. Use as a context manager, by one task."""

    def __init__(
        self, client: HttpClient, connection: Connection, head: Head, *, bodiless: bool
    ) -> None:
        self.head = head
        self._client = client
        self._connection = connection
        self._body = http_wire.body_of(connection.wire, head, bodiless=bodiless)

    async def fill(
        self, into: memoryview, progress: Progress | None = None, *, exact: bool = True
    ) -> None:
        """Fill *into*; with *exact*, raise `FramingError` unless the body ends right there.

        Over `inline_body` bytes a thread receives and calls *progress*.
        """
        steps = http_wire.fill(self._body, into, progress, exact=exact)
        if len(into) > self._client.limits.inline_body:
            await self._connection.run_in_thread(steps, self._client.threads)
        else:
            await self._connection.run(steps)

    async def skip(self, count: int) -> None:
        """Receive and forget *count* bytes."""
        await self._connection.run(http_wire.skip(self._body, count))

    async def read(self, limit: int) -> bytes:
        """The rest of the body, at most *limit* bytes."""
        return await self._connection.run(http_wire.read_all(self._body, limit))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        wire = self._connection.wire
        reusable = self._body.ended and wire.empty and self.head.keep_alive and exc[0] is None
        self._client.release(self._connection, reusable=reusable)


class HttpClient:
    """At most `limits.connections` exchanges at a time; the rest wait in order of arrival."""

    def __init__(self, limits: HttpLimits, tls: Callable[[], ssl.SSLContext]) -> None:
        self.limits = limits
        self.threads = ReceiveThreads(limits.threads)
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._slots = trio.Semaphore(limits.connections)
        self._excess = 0  # exchanges that run beyond a limit that was lowered
        self._idle: dict[Address, list[Connection]] = {}
        self._closed = False

    async def exchange(self, address: Address, request: bytes, *, bodiless: bool = False) -> Reply:
        """Send *request* and read the head of its reply; *bodiless* if it is a HEAD request.

        The reply must be released. A checkpoint.
        """
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            await self._slots.acquire()
        try:
            return await self._converse(address, request, bodiless)
        except BaseException:
            self._release_slot()
            raise

    def take_now(self, address: Address) -> Connection | None:
        """An idle connection, to be given back by `release`; None if there is none to be had."""
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            return None
        connection = self._take_idle(address)
        if connection is None:
            self._release_slot()
        return connection

    def reconfigure(self, limits: HttpLimits) -> None:
        """Bound what begins from now on by *limits*, but for the number of threads.

        Connections made with another time-out are not used again.
        """
        more = limits.connections - self.limits.connections
        self.limits = limits
        for _ in range(more):
            self._release_slot()
        for _ in range(-more):
            try:
                self._slots.acquire_nowait()
            except trio.WouldBlock:
                self._excess += 1
        self._close_idle()

    def _release_slot(self) -> None:
        if self._excess:
            self._excess -= 1
        else:
            self._slots.release()

    async def _converse(self, address: Address, request: bytes, bodiless: bool) -> Reply:
        reused = self._take_idle(address)
        if reused is not None:
            try:
                return await self._ask(reused, request, bodiless)
            except ConnectionLostError:
                if reused.received:
                    raise
        fresh = await connect(
            address,
            self._tls_context() if address.tls else None,
            timeout_s=self.limits.connect_timeout_s,
            stall_timeout_s=self.limits.stall_timeout_s,
        )
        return await self._ask(fresh, request, bodiless)

    async def _ask(self, connection: Connection, request: bytes, bodiless: bool) -> Reply:
        try:
            await connection.send(request)
            await connection.wait_reply()
            head = await connection.run(http_wire.read_head(connection.wire))
            return Reply(self, connection, head, bodiless=bodiless)
        except BaseException:
            connection.close()
            raise

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = self._make_tls()
        return self._tls

    def _take_idle(self, address: Address) -> Connection | None:
        self._drop_old()
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()  # the warmest; the others age and go
            if connection.is_quiet:
                return connection
            connection.close()
        return None

    def _drop_old(self) -> None:
        oldest = trio.current_time() - IDLE_MAX_S
        for idle in self._idle.values():
            while idle and idle[0].idle_since < oldest:
                idle.pop(0).close()

    def release(self, connection: Connection, *, reusable: bool) -> None:
        """Give back what `exchange` or `take_now` took; a reply does it."""
        current = connection.stall_timeout_s == self.limits.stall_timeout_s
        if reusable and current and not self._closed:
            connection.idle_since = trio.current_time()
            self._idle.setdefault(connection.address, []).append(connection)
        else:
            connection.close()
        self._release_slot()

    def close(self) -> None:
        """Close idle connections now and the others as they are released."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
            idle.clear()
