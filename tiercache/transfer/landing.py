"""What becomes of a body that has come in.

Its blocks go to a tier: large bodies are written while they are received, small ones in batches
here. Where no tier takes them, the finished fetch is retained for the reads to come (the kernel
asks for a block in pieces, readahead runs before them) until the memory is needed, or until
nothing was fetched for a while: an idle mount holds no buffers.
"""

from __future__ import annotations

from collections import OrderedDict

import trio

from tiercache.tier.store import TierStore
from tiercache.transfer.admission import Admission
from tiercache.transfer.buffers import BufferPool, trim_heap
from tiercache.transfer.fetch import Fetch, Reason
from tiercache.transfer.flights import Flights

#: Small bodies handed to the tier in one thread hop.
_WRITE_BATCH = 64

#: After this long without a fetch all memory that nobody looks at is given back.
IDLE_S = 10.0


class Landing:
    """Owns the memory of all bodies, from `begin` to the moment that nobody looks at it."""

    def __init__(
        self, store: TierStore, flights: Flights, memory: int, *, inline_body: int
    ) -> None:
        self._store = store
        self._flights = flights
        self._inline_body = inline_body
        self._pool = BufferPool(memory // 4)
        self._retained: OrderedDict[Fetch, None] = OrderedDict()
        self._unwritten: list[Fetch] = []
        self._to_write = trio.Event()
        self._used = trio.Event()
        self.admission: Admission  # set by the owner: each needs the other

    async def run(self) -> None:
        """Write small bodies and give idle memory back, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_batches)
            nursery.start_soon(self._rest_when_idle)

    async def _write_batches(self) -> None:
        while True:
            await self._to_write.wait()
            self._to_write = trio.Event()
            while self._unwritten:
                batch, self._unwritten = (
                    self._unwritten[:_WRITE_BATCH],
                    self._unwritten[_WRITE_BATCH:],
                )
                await trio.to_thread.run_sync(_write_all, batch)
                for fetch in batch:
                    self._settle(fetch)

    async def _rest_when_idle(self) -> None:
        while True:
            await self._used.wait()
            while self._used.is_set():
                self._used = trio.Event()
                await trio.sleep(IDLE_S)
            self.release_idle()
            await trio.to_thread.run_sync(trim_heap)

    def begin(self, fetch: Fetch) -> None:
        """Give *fetch*, which was admitted, memory and a place in a tier.

        Where the system has no memory, it has no buffer and its share of the budget is free again.
        """
        self._used.set()
        try:
            fetch.buffer = self._pool.take(fetch.size)
        except (OSError, MemoryError):
            self.admission.memory_used -= fetch.ticket.memory
            return
        place = fetch.obj, fetch.first, fetch.end
        if not fetch.reason.spares or fetch.wanted or self._admits(fetch):
            fetch.reservation = self._store.reserve(*place)
        fetch.writes_inline = fetch.size > self._inline_body

    def _admits(self, fetch: Fetch) -> bool:
        evicts = fetch.reason is not Reason.FILL
        return self._store.warming.admits(fetch.obj, fetch.first, fetch.end, evicts=evicts)

    def end(self, fetch: Fetch) -> None:
        """Take over *fetch*, which is over, well or not."""
        if fetch.error is None and fetch.reservation is not None and not fetch.writes_inline:
            self._unwritten.append(fetch)
            self._to_write.set()
        else:
            self._settle(fetch)

    def recycle(self, fetch: Fetch) -> None:
        """Give the buffer back once nothing can look at it: synchronous and idempotent."""
        if fetch.buffer is None or fetch.readers or not fetch.over or fetch in self._retained:
            return
        if fetch.reservation is not None:
            return  # still to be written
        self._pool.give(fetch.buffer)
        fetch.buffer = None
        self.admission.release_memory(fetch.ticket)

    def reclaim(self, nbytes: int) -> None:
        """Let go of retained bodies, oldest first, until *nbytes* came free or none is left.

        For the dispatcher of `Admission`: takes from `memory_used` without calling it back.
        """
        freed = 0
        for fetch in list(self._retained):
            if freed >= nbytes:
                return
            if fetch.readers:
                continue
            del self._retained[fetch]
            self._flights.remove(fetch)
            freed += fetch.ticket.memory
            if fetch.buffer is not None:
                self._pool.give(fetch.buffer)
                fetch.buffer = None
                self.admission.memory_used -= fetch.ticket.memory

    def release_idle(self) -> None:
        """Let go of all memory that nobody looks at."""
        self.reclaim(self.admission.memory_used)
        self._pool.trim()

    def _settle(self, fetch: Fetch) -> None:
        """Make written blocks resident; keep the buffer only if no tier has the bytes."""
        resident = False
        if fetch.reservation is not None:
            fetch.reservation.commit()
            fetch.reservation.close()
            fetch.reservation = None
            resident = not self._store.missing(fetch.obj, fetch.first, fetch.end)
        if fetch.error is None and not resident:
            self._retained[fetch] = None
        else:
            self._flights.remove(fetch)
            self.recycle(fetch)
        fetch.land()


def _write_all(batch: list[Fetch]) -> None:
    for fetch in batch:
        fetch.write_blocks()
