"""Metadata calls: first in line, one flight per question.

The call runs as a task of its own, so a caller that is interrupted does not take the answer away
from the others who wait for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio

from tiercache.errors import OriginUnavailableError
from tiercache.origin.protocol import LIST_PAGE_MAX, Origin
from tiercache.transfer.admission import Admission
from tiercache.types import ListPage, ObjectInfo, Priority

T = TypeVar("T")


class _Flight(Generic[T]):
    __slots__ = ("done", "error", "scope", "value", "waiters")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.scope = trio.CancelScope()
        self.waiters = 0
        self.value: T | None = None
        self.error: Exception | None = None


class SingleFlight:
    """Concurrent callers with the same key share one run, which ends with the last of them."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._flights: dict[Hashable, _Flight[object]] = {}

    async def do(self, key: Hashable, run: Callable[[], Awaitable[T]]) -> T:
        """Result of *run*, started unless one with *key* is under way; its error for everyone."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight()
            self._nursery.start_soon(self._fly, key, flight, run)
        flight.waiters += 1
        try:
            await flight.done.wait()
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.done.is_set():
                flight.scope.cancel()
                self._land(key, flight)
        if flight.error is not None:
            raise flight.error.with_traceback(None)
        return flight.value  # type: ignore[return-value]  # set by _fly from run's own T

    async def _fly(
        self, key: Hashable, flight: _Flight[object], run: Callable[[], Awaitable[object]]
    ) -> None:
        flight.error = OriginUnavailableError("the request was abandoned")
        try:
            with flight.scope:
                flight.value = await run()
                flight.error = None
        except Exception as error:  # noqa: BLE001 - handed to every caller, who decides
            flight.error = error
        finally:
            self._land(key, flight)
            flight.done.set()

    def _land(self, key: Hashable, flight: _Flight[object]) -> None:
        """Whoever asks from now on starts another."""
        if self._flights.get(key) is flight:
            del self._flights[key]


class Requests:
    """The origin's metadata, within the connection budget; equal questions share one request."""

    def __init__(self, origin: Origin, admission: Admission, flights: SingleFlight) -> None:
        self._origin = origin
        self._admission = admission
        self._flights = flights
        self.lists = 0
        self.heads = 0

    async def head(self, key: bytes) -> ObjectInfo:
        """As `Origin.head`."""
        return await self._flights.do(("HEAD", key), lambda: self._head(key))

    async def list(
        self,
        prefix: bytes,
        token: str | None = None,
        *,
        delimiter: bool = True,
        limit: int = LIST_PAGE_MAX,
    ) -> ListPage:
        """As `Origin.list`."""
        question = ("LIST", prefix, token, delimiter, limit)
        return await self._flights.do(
            question, lambda: self._list(prefix, token, delimiter=delimiter, limit=limit)
        )

    async def _head(self, key: bytes) -> ObjectInfo:
        await self._admission.connection(Priority.METADATA)
        self.heads += 1
        try:
            return await self._origin.head(key)
        finally:
            self._admission.release_connection()

    async def _list(
        self, prefix: bytes, token: str | None, *, delimiter: bool, limit: int
    ) -> ListPage:
        await self._admission.connection(Priority.METADATA)
        self.lists += 1
        try:
            return await self._origin.list(prefix, token, delimiter=delimiter, limit=limit)
        finally:
            self._admission.release_connection()
