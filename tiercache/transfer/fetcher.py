"""Single flight per block, and the cold read.

At most one fetch covers a block at any time. A fetch outlives the readers that asked for it: it is
bounded by one part, and what becomes of its bytes is decided by `landing`. Wants that are adjacent
while they queue become one GET. How many GETs run at a time follows what the origin can do.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import trio

from tiercache.config import TransferConfig
from tiercache.errors import (
    BypassedError,
    OriginThrottledError,
    OriginUnavailableError,
    OutOfMemoryError,
    TierCacheError,
)
from tiercache.origin.eager import EagerGets
from tiercache.origin.protocol import FirstAttempt, Origin, RangedGet
from tiercache.tier.store import TierStore
from tiercache.transfer.admission import Admission
from tiercache.transfer.concurrency import Concurrency
from tiercache.transfer.fetch import Fetch, Reason
from tiercache.transfer.flights import Flights
from tiercache.transfer.landing import Landing
from tiercache.transfer.rates import Rates
from tiercache.types import BLOCK_SIZE, Inode, Priority

#: A block that was dropped between two looks is asked for again this often before giving up.
_READ_ATTEMPTS = 4

#: Told that the origin no longer serves this version, and why.
Changed = Callable[[Inode, TierCacheError], None]


class Fetcher:
    """Brings blocks from the origin to readers and tiers. Lives in one nursery."""

    def __init__(
        self,
        origin: Origin,
        store: TierStore,
        config: TransferConfig,
        nursery: trio.Nursery,
        eager: EagerGets | None = None,
    ) -> None:
        self._origin = origin
        self._eager = eager
        self._store = store
        self._part = config.part // BLOCK_SIZE
        self._nursery = nursery
        self._flights = Flights()
        self._landing = Landing(store, self._flights, config.memory, inline_body=config.inline_body)
        self._concurrency = Concurrency(config.connections_min, config.connections)
        self.admission = self._landing.admission = Admission(
            self._concurrency.limit,
            config.connections_reserved,
            config.memory,
            self._landing.reclaim,
            Rates(config.bandwidth, config.requests_per_s),
        )
        self._on_changed: Changed = lambda _obj, _error: None
        self.fetched = dict.fromkeys(Reason, 0)
        self.gets = 0
        self.abandoned_bytes = 0
        self.throttled = 0

    def on_changed(self, changed: Changed) -> None:
        """Install who is told when a version turns out to be gone."""
        self._on_changed = changed

    def reconfigure(self, config: TransferConfig) -> None:
        """Take on other numbers of connections and other rates; transfers that run go on."""
        self._concurrency.reconfigure(config.connections_min, config.connections)
        self.admission.reconfigure(self._concurrency.limit, config)

    async def run(self) -> None:
        """The background work, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._landing.run)
            nursery.start_soon(self.admission.run)

    @property
    def bytes_fetched(self) -> int:
        """All bytes of bodies so far."""
        return sum(self.fetched.values())

    @property
    def concurrency(self) -> int:
        """How many requests at a time the origin gets at the moment."""
        return self._concurrency.limit

    def release_idle(self) -> None:
        """Give all memory back that nobody looks at; happens by itself on an idle mount."""
        self._landing.release_idle()

    def attempt_failed(self, error: OriginUnavailableError) -> None:
        """One attempt at the origin failed; another may follow."""
        self.admission.charge()
        if isinstance(error, OriginThrottledError):
            self.throttled += 1
            self._concurrency.throttled(trio.current_time())
            self.admission.resize(self._concurrency.limit)

    # -- reading ---------------------------------------------------------------------------------

    def demand(self, obj: Inode, offset: int, size: int) -> None:
        """Have whatever of bytes [offset, offset + size) is missing on its way, ahead of others."""
        first, end = offset // BLOCK_SIZE, -(-(offset + size) // BLOCK_SIZE)
        for run in self._absent(obj, first, end):
            self._start(obj, *run, Priority.DEMAND, Reason.DEMAND, self._part)
        for fetch in self._flights.of(obj.ino, first, end):
            self.admission.promote(fetch.ticket, Priority.DEMAND)

    def prefetch(
        self, obj: Inode, offset: int, end: int, reason: Reason, part: int | None = None
    ) -> int:
        """Start GETs for what is missing of bytes [offset, end), behind every demand.

        They bring *part* bytes at most, or what is configured if that is less. Returns how many
        blocks that is.
        """
        step = self._part if part is None else min(self._part, part // BLOCK_SIZE)
        started = 0
        begin, limit = offset // BLOCK_SIZE, -(-end // BLOCK_SIZE)
        self._share(obj, begin, limit, reason)
        for first, stop in self._absent(obj, begin, limit):
            started += stop - first
            while first < stop:
                cut = min(stop, (first // step + 1) * step)
                self._start(obj, first, cut, Priority.PREFETCH, reason, step)
                first = cut
        return started

    async def warm(self, obj: Inode, first: int, end: int, reason: Reason = Reason.WARM) -> None:
        """Have what is missing of blocks [first, end) in a tier, behind everybody else.

        At most one part, for one caller at a time. Returns when all of it was settled, resident or
        not; raises what the origin raised, BypassedError when no tier takes it. Cancelled, it takes
        back what is still queued.
        """
        self._share(obj, first, end, reason)
        for start, stop in self._absent(obj, first, end):
            self._start(obj, start, stop, Priority.BACKGROUND, reason, self._part)
        try:
            await _all_landed(list(self._flights.of(obj.ino, first, end)))
        except trio.Cancelled:
            self.abandon(reason, obj.ino, first * BLOCK_SIZE, end * BLOCK_SIZE)
            raise

    def _share(self, obj: Inode, first: int, end: int, reason: Reason) -> None:
        """Blocks [first, end) are wanted for *reason* too: what brings them is not abandoned."""
        for fetch in self._flights.of(obj.ino, first, end):
            fetch.shared |= fetch.reason is not reason

    def abandon(self, reason: Reason, ino: int, offset: int, end: int) -> None:
        """Take back what *reason* alone queued of bytes [offset, end) and nobody waits for."""
        first, stop = -(-offset // BLOCK_SIZE), -(-end // BLOCK_SIZE)
        for fetch in list(self._flights.of(ino, first, stop)):
            relied_on = fetch.ticket.granted or fetch.wanted or fetch.awaiting or fetch.shared
            own = fetch.reason is reason and first <= fetch.first and fetch.end <= stop
            if own and not relied_on:
                self.admission.withdraw(fetch.ticket)
                self._flights.remove(fetch)
                self.abandoned_bytes += fetch.size
                fetch.finish(OriginUnavailableError("the transfer was abandoned"))
                fetch.land()

    def read(self, obj: Inode, offset: int, size: int) -> Coroutine[Any, Any, bytes | memoryview]:
        """Bytes [offset, offset + size) of *obj*, which must lie within it.

        The result is valid until the caller's next checkpoint. Raises what the origin raised, also
        if it does so before the result is awaited: nobody would ask for that once more.
        """
        return self._read(obj, offset, size, self._flights.get(obj.ino, offset // BLOCK_SIZE))

    async def _read(
        self, obj: Inode, offset: int, size: int, asked: Fetch | None
    ) -> bytes | memoryview:
        if asked is not None and asked.refused and asked.start + asked.filled <= offset:
            raise asked.refused
        for _ in range(_READ_ATTEMPTS):
            self.demand(obj, offset, size)
            fetch = self._flights.get(obj.ino, offset // BLOCK_SIZE)
            if fetch is not None and fetch.covers(offset, offset + size):
                return await self._from_fetch(fetch, offset, offset + size)
            out = memoryview(bytearray(size))
            if await self._gather(obj, offset, out):
                return out
        raise OriginUnavailableError("cached blocks kept disappearing while they were read")

    async def _from_fetch(self, fetch: Fetch, offset: int, end: int) -> memoryview:
        fetch.readers += 1
        try:
            await fetch.wait(end)
            return fetch.view(offset, end)
        finally:
            fetch.readers -= 1
            self._landing.recycle(fetch)

    async def _gather(self, obj: Inode, offset: int, out: memoryview) -> bool:
        """Fill *out* from fetches and tiers; False when a block went away meanwhile."""
        done = 0
        while done < len(out):
            position = offset + done
            block = position // BLOCK_SIZE
            fetch = self._flights.get(obj.ino, block)
            if fetch is None:
                stop = min(len(out), (block + 1) * BLOCK_SIZE - offset)
                if not await self._store.read(obj, position, out[done:stop]):
                    return False
            else:
                stop = min(len(out), fetch.start + fetch.size - offset)
                out[done:stop] = await self._from_fetch(fetch, position, offset + stop)
            done = stop
        return True

    # -- fetching --------------------------------------------------------------------------------

    def _absent(self, obj: Inode, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Maximal runs of blocks that are neither resident nor on their way."""
        for start, stop in self._store.missing(obj, first, min(end, obj.blocks)):
            yield from self._flights.gaps(obj, start, stop)

    def _start(
        self, obj: Inode, first: int, end: int, priority: Priority, reason: Reason, part: int
    ) -> None:
        """Fetch blocks [first, end), by the GET of those before it if that has *part* at most."""
        before = self._flights.get(obj.ino, first - 1)
        if (
            before is not None
            and before.ticket.priority == priority
            and before.reason is reason
            and not before.ticket.granted
            and end - before.first <= part
        ):
            before.extend(end)
            self.admission.grow(before.ticket, before.size)
            self._flights.add(before, first, end)
            return
        fetch = Fetch(obj, first, end, reason)
        self._flights.add(fetch, first, end)

        def run() -> None:
            self._landing.begin(fetch)
            if self._refusal(fetch) or not self._start_eagerly(fetch):
                self._nursery.start_soon(self._run, fetch)

        fetch.ticket = self.admission.ticket(priority, fetch.size, run)
        self.admission.queue(fetch.ticket)

    def _start_eagerly(self, fetch: Fetch) -> bool:
        """Begin a GET without a task, if the origin can; only its failure takes one."""
        if self._eager is None:
            return False
        assert fetch.buffer is not None
        obj, began = fetch.obj, trio.current_time()

        def ended(error: TierCacheError | None) -> None:
            if isinstance(error, OriginUnavailableError):
                self._nursery.start_soon(self._run, fetch, FirstAttempt(began, fetch.filled, error))
                return
            if error is None and progress is None:
                fetch.progress(fetch.size)
            self._conclude(fetch, began, error)

        # What is small is told of at its end: that saves its reader a turn of the loop.
        progress = fetch.progress if fetch.writes_inline else None
        get = RangedGet(obj.key, obj.etag, fetch.start, fetch.buffer, progress)
        if not self._eager.start(get, ended):
            return False
        self.gets += 1
        return True

    async def _run(self, fetch: Fetch, first: FirstAttempt | None = None) -> None:
        """Carry out what was admitted; *first* is how it went without a task."""
        error: TierCacheError | None = OriginUnavailableError("the transfer was abandoned")
        began = trio.current_time()
        fetch.first_byte_at = None  # of what begins now
        try:
            await self._transfer(fetch, first)
            error = None
        except TierCacheError as failure:
            error = failure
        finally:
            self._conclude(fetch, began, error)

    def _conclude(self, fetch: Fetch, began: float, error: TierCacheError | None) -> None:
        if error is None:
            self._learn(fetch, began)
        self.admission.release_connection()
        fetch.finish(error)
        self.fetched[fetch.reason] += fetch.filled
        if error is not None and not isinstance(error, OriginUnavailableError):
            self._on_changed(fetch.obj, error)
        self._landing.end(fetch)

    async def _transfer(self, fetch: Fetch, first: FirstAttempt | None) -> None:
        if refusal := self._refusal(fetch):
            raise refusal
        assert fetch.buffer is not None
        obj = fetch.obj
        get = RangedGet(obj.key, obj.etag, fetch.start, fetch.buffer, fetch.progress)
        if first is not None and self._eager is not None:
            await self._eager.go_on(get, first)
        else:
            self.gets += 1
            await self._origin.get_range(*get)
        if fetch.filled != fetch.size:
            raise OriginUnavailableError("the origin's reply ended early")

    @staticmethod
    def _refusal(fetch: Fetch) -> TierCacheError | None:
        """Why no request is sent: no memory, or it was to fill a tier and none takes it."""
        if fetch.buffer is None:
            return OutOfMemoryError(f"no memory to receive {fetch.size} bytes")
        if fetch.reason.spares and fetch.reservation is None and not fetch.wanted:
            return BypassedError("no tier takes it now")
        return None

    def _learn(self, fetch: Fetch, began: float) -> None:
        now = trio.current_time()
        latency_s = (fetch.first_byte_at or now) - began
        full = self.admission.waiting > 0
        self._concurrency.finished(fetch.size, latency_s, now, full=full)
        self.admission.resize(self._concurrency.limit)


async def _all_landed(fetches: list[Fetch]) -> None:
    """Until all of *fetches* have landed; raises what one of them failed with."""
    for fetch in fetches:
        fetch.awaiting += 1
    try:
        for fetch in fetches:
            await fetch.landed()
            if fetch.error is not None:
                raise fetch.error
    finally:
        for fetch in fetches:
            fetch.awaiting -= 1
