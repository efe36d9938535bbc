"""Single flight per block, and the cold read.

At most one fetch covers a block at any time. A fetch outlives the readers that asked for it: it is
bounded by one part, and its blocks go to a tier. Where no tier takes them, the finished fetch is
retained for the reads to come (the kernel asks for a block in pieces, readahead runs before them)
until the memory is needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import trio

from tiercache.config import TransferConfig
from tiercache.errors import OriginUnavailableError, TierCacheError
from tiercache.origin.protocol import Origin
from tiercache.tier.store import TierStore
from tiercache.transfer.admission import Admission
from tiercache.transfer.buffers import BufferPool, rounded
from tiercache.transfer.fetch import Fetch
from tiercache.types import BLOCK_SIZE, Inode, Priority

#: A block that was dropped between two looks is asked for again this often before giving up.
_READ_ATTEMPTS = 4

#: Small bodies handed to the tier in one thread hop.
_WRITE_BATCH = 64

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
    ) -> None:
        self._origin = origin
        self._store = store
        self._config = config
        self._nursery = nursery
        self._pool = BufferPool(config.memory // 2)
        self._in_flight: dict[tuple[int, int], Fetch] = {}
        self._retained: OrderedDict[Fetch, None] = OrderedDict()
        self._unwritten: list[Fetch] = []
        self._to_write = trio.Event()
        self._on_changed: Changed = lambda _obj, _error: None
        self.admission = Admission(
            config.connections, config.connections_reserved, config.memory, self._reclaim
        )
        self.bytes_fetched = 0
        self.gets = 0

    def on_changed(self, changed: Changed) -> None:
        """Install who is told when a version turns out to be gone."""
        self._on_changed = changed

    async def run(self) -> None:
        """Write small bodies to the tier in batches, until cancelled."""
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

    # -- reading ---------------------------------------------------------------------------------

    def demand(self, obj: Inode, offset: int, size: int) -> None:
        """Have whatever of bytes [offset, offset + size) is missing on its way, ahead of others."""
        first, end = offset // BLOCK_SIZE, -(-(offset + size) // BLOCK_SIZE)
        for run in self._absent(obj, first, end):
            self._start(obj, *run, Priority.DEMAND)
        for block in range(first, end):
            fetch = self._in_flight.get((obj.ino, block))
            if fetch is not None:
                self.admission.promote(fetch.ticket, Priority.DEMAND)

    def prefetch(self, obj: Inode, offset: int, end: int) -> None:
        """Start parts for what is missing of bytes [offset, end), behind every demand."""
        part = self._config.part // BLOCK_SIZE
        for first, stop in self._absent(obj, offset // BLOCK_SIZE, -(-end // BLOCK_SIZE)):
            while first < stop:
                cut = min(stop, (first // part + 1) * part)
                self._start(obj, first, cut, Priority.PREFETCH)
                first = cut

    async def read(self, obj: Inode, offset: int, size: int) -> bytes | memoryview:
        """Bytes [offset, offset + size) of *obj*, which must lie within it.

        The result is valid until the caller's next checkpoint. Raises what the origin raised.
        """
        for _ in range(_READ_ATTEMPTS):
            self.demand(obj, offset, size)
            fetch = self._in_flight.get((obj.ino, offset // BLOCK_SIZE))
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
            self._recycle(fetch)

    async def _gather(self, obj: Inode, offset: int, out: memoryview) -> bool:
        """Fill *out* from fetches and tiers; False when a block went away meanwhile."""
        done = 0
        while done < len(out):
            position = offset + done
            block = position // BLOCK_SIZE
            fetch = self._in_flight.get((obj.ino, block))
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
            run = start
            for block in range(start, stop):
                if (obj.ino, block) in self._in_flight:
                    if run < block:
                        yield run, block
                    run = block + 1
            if run < stop:
                yield run, stop

    def _start(self, obj: Inode, first: int, end: int, priority: Priority) -> None:
        size = min(end * BLOCK_SIZE, obj.size) - first * BLOCK_SIZE
        fetch = Fetch(obj, first, end, self.admission.request(priority, rounded(size)))
        for block in range(first, end):
            self._in_flight[obj.ino, block] = fetch
        self._nursery.start_soon(self._run, fetch)

    async def _run(self, fetch: Fetch) -> None:
        error: TierCacheError | None = OriginUnavailableError("the transfer was abandoned")
        try:
            await fetch.ticket.granted.wait()
        except trio.Cancelled:
            self.admission.withdraw(fetch.ticket)
            self._forget(fetch)
            fetch.finish(error)
            raise
        try:
            await self._transfer(fetch)
            error = None
        except TierCacheError as failure:
            error = failure
        finally:
            self.admission.release_connection()
            fetch.finish(error)
            self._account(fetch, error)

    async def _transfer(self, fetch: Fetch) -> None:
        fetch.buffer = self._pool.take(fetch.size)
        fetch.reservation = self._store.reserve(fetch.obj, fetch.first, fetch.end)
        fetch.writes_inline = fetch.size > self._config.inline_body
        self.gets += 1
        await self._origin.get_range(
            fetch.obj.key, fetch.obj.etag, fetch.start, fetch.buffer, fetch.progress
        )
        if fetch.filled != fetch.size:
            raise OriginUnavailableError("the origin's reply ended early")

    def _account(self, fetch: Fetch, error: TierCacheError | None) -> None:
        self.bytes_fetched += fetch.filled
        if error is not None and not isinstance(error, OriginUnavailableError):
            self._on_changed(fetch.obj, error)
        if error is None and fetch.reservation is not None and not fetch.writes_inline:
            self._unwritten.append(fetch)
            self._to_write.set()
        else:
            self._settle(fetch)

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
            return
        self._forget(fetch)
        self._recycle(fetch)

    def _forget(self, fetch: Fetch) -> None:
        for block in range(fetch.first, fetch.end):
            if self._in_flight.get((fetch.obj.ino, block)) is fetch:
                del self._in_flight[fetch.obj.ino, block]

    def _recycle(self, fetch: Fetch) -> None:
        """Give the buffer back once nothing can look at it: synchronous and idempotent."""
        if fetch.buffer is None or fetch.readers or not fetch.over or fetch in self._retained:
            return
        if fetch.reservation is not None:
            return  # still to be written
        self._pool.give(fetch.buffer)
        fetch.buffer = None
        self.admission.release_memory(fetch.ticket)

    def _reclaim(self, nbytes: int) -> None:
        """Let go of retained bodies, oldest first, until *nbytes* came free or none is left."""
        freed = 0
        for fetch in list(self._retained):
            if freed >= nbytes:
                return
            if fetch.readers:
                continue
            del self._retained[fetch]
            self._forget(fetch)
            freed += fetch.ticket.nbytes
            if fetch.buffer is not None:
                self._pool.give(fetch.buffer)
                fetch.buffer = None
                # Not through release_memory: the caller is the dispatcher itself.
                self.admission.memory_used -= fetch.ticket.nbytes


def _write_all(batch: list[Fetch]) -> None:
    for fetch in batch:
        fetch.write_blocks()
