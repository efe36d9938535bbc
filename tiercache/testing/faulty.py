"""Origins that fail or dawdle on demand, in front of any other.

    faulty = FaultyOrigin(MemoryOrigin())
    faulty.fail("get_range", OriginUnavailableError("reset"), nth=2, after_bytes=100_000)

    slow = SlowOrigin(origin, latency_s=0.05)
    gate = slow.hold("get_range")
    await gate.arrived(8)  # eight readers wait
    gate.release()

Waiting is done by trio alone, so a mock clock passes over it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import trio

from tiercache.origin.protocol import LIST_PAGE_MAX, Origin, RangedGet
from tiercache.origin.wrapper import OriginWrapper
from tiercache.types import ListPage, ObjectInfo, Progress


@dataclass(slots=True)
class _Failure:
    operation: str
    error: Exception
    key: bytes | None
    skip: int
    times: int | None
    after_bytes: int | None

    def claim(self, operation: str, key: bytes) -> bool:
        if self.times == 0 or operation != self.operation or self.key not in (None, key):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class _Interposed(OriginWrapper):
    """Has its say before each call but `get_range`."""

    async def _before(self, operation: str, key: bytes) -> None:
        """*operation* is the method's name, *key* what it is about: a key, a prefix or nothing."""
        raise NotImplementedError

    async def check(self) -> None:
        """See `Origin.check`."""
        await self._before("check", b"")
        await self.inner.check()

    async def list(
        self,
        prefix: bytes,
        token: str | None = None,
        *,
        delimiter: bool = True,
        limit: int = LIST_PAGE_MAX,
    ) -> ListPage:
        """See `Origin.list`."""
        await self._before("list", prefix)
        return await self.inner.list(prefix, token, delimiter=delimiter, limit=limit)

    async def head(self, key: bytes) -> ObjectInfo:
        """See `Origin.head`."""
        await self._before("head", key)
        return await self.inner.head(key)


class FaultyOrigin(_Interposed):
    """Fails chosen calls. `calls` and `failures` count by operation."""

    def __init__(self, inner: Origin) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._planned: list[_Failure] = []

    def fail(
        self,
        operation: str,
        error: Exception,
        *,
        nth: int = 1,
        times: int | None = 1,
        key: bytes | None = None,
        after_bytes: int | None = None,
    ) -> None:
        """Raise *error* in *times* calls (None: all) of *operation*, from the *nth* from now on.

        *operation* is the method's name; *key* (a listing's prefix) narrows it. *after_bytes* lets
        a `get_range` deliver that many bytes first; without it the inner origin is not asked.
        """
        self._planned.append(_Failure(operation, error, key, nth - 1, times, after_bytes))

    def heal(self) -> None:
        """Forget every planned failure."""
        self._planned.clear()

    def _due(self, operation: str, key: bytes) -> _Failure | None:
        self.calls[operation] += 1
        failure = next((f for f in self._planned if f.claim(operation, key)), None)
        if failure is not None:
            self.failures[operation] += 1
        return failure

    async def _before(self, operation: str, key: bytes) -> None:
        failure = self._due(operation, key)
        if failure is not None:
            await trio.lowlevel.checkpoint()
            raise failure.error.with_traceback(None)

    async def get_range(
        self,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress | None = None,
    ) -> None:
        """See `Origin.get_range`."""
        failure = self._due("get_range", key)
        if failure is None:
            await self.inner.get_range(key, etag, start, into, progress)
            return
        if failure.after_bytes is not None:
            await self.inner.get_range(key, etag, start, into[: failure.after_bytes], progress)
        await trio.lowlevel.checkpoint()
        raise failure.error.with_traceback(None)


class Gate:
    """Holds calls until released."""

    def __init__(self, after_bytes: int) -> None:
        self.after_bytes = after_bytes
        self.waiting = 0
        self._released = trio.Event()
        self._arrival = trio.Event()

    def release(self) -> None:
        """Let every call through, now and from now on."""
        self._released.set()

    async def arrived(self, count: int = 1) -> None:
        """Wait until *count* calls wait at the gate."""
        while self.waiting < count:
            await self._arrival.wait()

    async def pass_through(self) -> None:
        """Wait at the gate."""
        self.waiting += 1
        self._arrival.set()
        self._arrival = trio.Event()
        try:
            await self._released.wait()
        finally:
            self.waiting -= 1


class SlowOrigin(_Interposed):
    """Adds *latency_s* to each call and moves *bytes_per_s*; both may be set at any time."""

    def __init__(
        self, inner: Origin, *, latency_s: float = 0.0, bytes_per_s: float | None = None
    ) -> None:
        super().__init__(inner)
        self.latency_s = latency_s
        self.bytes_per_s = bytes_per_s
        self._gates: dict[str, Gate] = {}

    def hold(self, operation: str, *, after_bytes: int = 0) -> Gate:
        """Make calls of *operation* wait, a `get_range` once it delivered *after_bytes*."""
        gate = Gate(after_bytes)
        self._gates[operation] = gate
        return gate

    async def _before(self, operation: str, key: bytes) -> None:
        await trio.sleep(self.latency_s)
        if operation in self._gates:
            await self._gates[operation].pass_through()

    async def get_range(
        self,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress | None = None,
    ) -> None:
        """See `Origin.get_range`."""
        gate = self._gates.get("get_range")
        first = min(gate.after_bytes, len(into)) if gate else 0
        if first:
            await self.inner.get_range(key, etag, start, into[:first], progress)
        await self._before("get_range", key)
        if self.bytes_per_s is not None:
            await trio.sleep((len(into) - first) / self.bytes_per_s)
        await self.inner.get_range(*RangedGet(key, etag, start, into, progress).behind(first))
