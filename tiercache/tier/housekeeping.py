"""What the tiers do when nobody waits: persist, write sidecars, verify, unlink, audit, probe.

One task each, all in one nursery, all idle unless there is work; every queue is bounded, and what
does not fit is found again when the object is next loaded.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import trio

from tiercache.tier.audit import Audit, list_shard, unlink_names
from tiercache.tier.layout import SHARDS
from tiercache.tier.limits import Surroundings
from tiercache.tier.place import Place, write_usage
from tiercache.tier.reader import Reader
from tiercache.tier.records import Header
from tiercache.tier.removal import Removal
from tiercache.tier.residency import Residency
from tiercache.tier.room import Room
from tiercache.tier.sidecar import encode
from tiercache.tier.system import System, write_all
from tiercache.tier.table import Table
from tiercache.tier.tier import Tier
from tiercache.types import Inode

T = TypeVar("T")

#: Stored records looked at, or sidecars written, between two looks at the rest of the world.
_SLICE = 64

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


class Housekeeping:
    """The background of a store. On the loop, with threads for what blocks."""

    def __init__(
        self,
        tiers: list[Tier],
        parts: tuple[Table, Removal, Room, Reader],
        audit: Audit,
        unclean: Iterable[Place],
        around: Surroundings,
    ) -> None:
        self._tiers = tiers
        self._table, self._removal, self._room, self._reader = parts
        self._audit = audit
        self._unclean = list(unclean)
        self._around = around
        self._limits = around.limits
        self._system = around.system
        self._to_describe: deque[tuple[Residency, Inode]] = deque()
        self._to_verify: dict[Residency, None] = {}
        self._dirty, self._describe, self._verify = trio.Event(), trio.Event(), trio.Event()
        self._unlink, self._wanted = trio.Event(), trio.Event()
        self._usage: dict[Place, int] = {}
        self.on_interval: Callable[[], None] = lambda: None
        self._table.on_dirty = lambda: self._dirty.set()
        self._removal.on_queue = lambda: self._unlink.set()
        self._room.on_wanted = self.hurry

    def describe(self, item: Residency, obj: Inode) -> None:
        """Write a sidecar for the complete *item* some time soon."""
        if len(self._to_describe) < self._limits.queue:
            item.queued += 1
            self._to_describe.append((item, obj))
            self._describe.set()

    def verify(self, item: Residency) -> None:
        """Verify the complete *item* some time soon."""
        if item not in self._to_verify and len(self._to_verify) < self._limits.queue:
            item.queued += 1
            self._to_verify[item] = None
            self._verify.set()

    async def run(self) -> None:
        """Everything, until cancelled."""
        async with trio.open_nursery() as nursery:
            for task in (self._flusher, self._describer, self._verifier, self._unlinker):
                nursery.start_soon(task)
            nursery.start_soon(self._janitor)
            nursery.start_soon(self._usage_writer)
            nursery.start_soon(self._claims)

    # -- persisting ------------------------------------------------------------------------------

    async def _flusher(self) -> None:
        while True:
            await self._dirty.wait()
            # The pause makes one batch of what a burst of small objects changes.
            await trio.sleep(self._limits.flush_interval_s)
            self._dirty = trio.Event()
            self._table.flush()
            self._keep_headroom()

    async def _usage_writer(self) -> None:
        while True:
            await trio.sleep(self._limits.usage_interval_s)
            self.on_interval()
            await self._in_thread(partial(self.write_usage, self.usage()))

    def usage(self) -> dict[Place, int]:
        """Bytes of each place that another origin's daemon must count as ours."""
        return {
            place: place.used - sum(place.foreign.values())
            for tier in self._tiers
            for place in tier.places
        }

    def write_usage(self, usage: dict[Place, int]) -> None:
        """Leave word of what changed; on any thread."""
        for place, nbytes in usage.items():
            if self._usage.get(place) != nbytes:
                with contextlib.suppress(OSError):
                    write_usage(place.home, nbytes)
                    self._usage[place] = nbytes

    async def _claims(self) -> None:
        await trio.sleep(self._limits.claim_s)
        self._removal.give_up_unclaimed()

    # -- sidecars and verification ---------------------------------------------------------------

    async def _describer(self) -> None:
        while True:
            await self._describe.wait()
            self._describe = trio.Event()
            while self._to_describe:
                count = min(_SLICE, len(self._to_describe))
                await self._describe_batch([self._to_describe.popleft() for _ in range(count)])

    async def _describe_batch(self, batch: list[tuple[Residency, Inode]]) -> None:
        work = [
            (item.place.meta(item.name), obj, item.sums.tobytes())
            for item, obj in batch
            if item.place is not None and item.complete and not item.dead
        ]
        written = await self._in_thread(partial(write_sidecars, self._system, work))
        for item, _obj in batch:
            item.queued -= 1
            if item.place is None or item.place.meta(item.name) not in written:
                continue
            if item.dead:
                # Evicted while the thread wrote: nobody else would unlink it.
                with contextlib.suppress(OSError):
                    self._system.unlink(item.place.meta(item.name))
            elif item.complete:
                item.sidecar = True
                self._table.mark(item)

    async def _verifier(self) -> None:
        while True:
            await self._verify.wait()
            self._verify = trio.Event()
            while self._to_verify:
                item = next(iter(self._to_verify))
                await self._verify_paced(item)
                del self._to_verify[item]
                item.queued -= 1

    async def _verify_paced(self, item: Residency) -> None:
        while nbytes := await self._reader.verify_some(item):
            pause = nbytes / self._limits.verify_bytes_per_s
            await trio.sleep(pause)

    # -- making room -----------------------------------------------------------------------------

    async def _unlinker(self) -> None:
        while True:
            await self._unlink.wait()
            self._unlink = trio.Event()
            while self._removal.queue:
                path, item = self._removal.queue.popleft()
                await self._in_thread(partial(self._removal.unlink_queued, path))
                self._removal.unlinked(item)

    def _keep_headroom(self) -> None:
        for tier in self._tiers:
            headroom = self._limits.headroom(tier.capacity)
            if (
                tier.health.writable
                and tier.free < headroom
                and not (tier.disposable or tier.demotes)
            ):
                self._room.evict(tier, headroom - tier.free)

    def hurry(self) -> None:
        """Have the janitor look around now."""
        self._wanted.set()

    async def _shrink(self) -> None:
        """Bring tiers whose capacity was lowered below it, as far as their policies let go."""
        for tier in self._tiers:
            evictions = -1
            while tier.free < 0 and not tier.demotes and tier.evictions != evictions:
                evictions = tier.evictions
                self._room.evict(tier, -tier.free)
                await trio.lowlevel.checkpoint()

    async def _janitor(self) -> None:
        await self._introduce()
        for place in self._unclean:
            await self._sweep(place)
        if not any(tier.disposable for tier in self._tiers):
            self._audit.finish()
        while True:
            with trio.move_on_after(self._limits.probe_min_s):
                await self._wanted.wait()
            self._wanted = trio.Event()
            self._table.lift_bars()
            for tier in self._tiers:
                if tier.health.probe_due:
                    await self._probe(tier)
                if tier.wanted:
                    await self._dispose(tier)
            await self._shrink()

    async def _introduce(self) -> None:
        """Tell the policies who is here, and the audit which names have a record."""

        def introduce(ino: int, header: Header, place: Place) -> None:
            self._audit.note(place, header.digest.hex())
            if not header.pinned:
                policy = place.tier.policy
                policy.admit(ino, header.charged, header.group, self._around.now())

        await self.each_stored(introduce)

    async def each_stored(self, tell: Callable[[int, Header, Place], None]) -> None:
        """*tell* of every record in the catalog whose place is one of ours, in slices."""
        places = {place.ident: place for place in self._table.places}
        for count, (ino, header) in enumerate(self._table.stored()):
            place = places.get(header.place)
            if place is not None:
                tell(ino, header, place)
            if count % _SLICE == 0:
                await trio.lowlevel.checkpoint()

    async def _sweep(self, place: Place) -> None:
        await self._in_thread(partial(self._empty_trash, place, self._queued()))
        for shard in range(SHARDS):
            await self._sweep_shard(place, shard, purge=False)

    async def _sweep_shard(self, place: Place, shard: int, *, purge: bool) -> None:
        found = await self._in_thread(partial(list_shard, place, shard, self._system))
        doomed = self._audit.judge(place, shard, found, purge=purge)
        if doomed:
            await self._in_thread(partial(unlink_names, place, doomed, self._system))

    def _queued(self) -> set[str]:
        return {path for path, _item in self._removal.queue}

    def _empty_trash(self, place: Place, spare: set[str]) -> None:
        with contextlib.suppress(OSError), self._system.scandir(place.base) as entries:
            for entry in entries:
                if entry.name.startswith("trash-") and entry.path not in spare:
                    self._removal.unlink_queued(entry.path)

    async def _dispose(self, tier: Tier) -> None:
        """Remove what belongs to nobody until the newcomers would fit."""
        for place in tier.places:
            while tier.free < tier.wanted and place.foreign:
                await self._remove_foreign(place)
            for shard in range(SHARDS):
                if tier.free < tier.wanted and place.unclaimed[shard]:
                    await self._sweep_shard(place, shard, purge=True)
        tier.wanted = 0

    async def _remove_foreign(self, place: Place) -> None:
        """Remove the other origin that was not used for the longest time."""
        name = await self._in_thread(partial(least_recent, place))
        # Abandoned when cancelled: a large tree must not hold up the end of the mount.
        await trio.to_thread.run_sync(
            partial(self._system.rmtree, place.root / name, ignore_errors=True),
            abandon_on_cancel=True,
            limiter=self._around.threads,
        )
        place.foreign.pop(name, None)

    # -- failed tiers ----------------------------------------------------------------------------

    async def _probe(self, tier: Tier) -> None:
        error = await self._in_thread(partial(probe, self._system, tier))
        if error is None:
            self._table.unload_tier(tier)
            for place in tier.places:
                place.ask_disk()
            if not tier.capacity:
                tier.settle_capacity()
        tier.health.probed(error)

    async def _in_thread(self, work: partial[T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._around.threads)


def least_recent(place: Place) -> str:
    """The foreign origin whose usage note is oldest; in a thread."""

    def used_at(name: str) -> float:
        try:
            return (place.root / name / "usage").stat().st_mtime
        except OSError:
            return 0.0

    return min(place.foreign, key=used_at)


def write_sidecars(system: System, work: list[tuple[str, Inode, bytes]]) -> set[str]:
    """Write sidecars; the paths of those that are there now. In a thread."""
    written = set()
    for path, obj, sums in work:
        temporary = path + ".tmp"
        try:
            fd = system.open(temporary, _CREATE, 0o600)
            try:
                write_all(system, fd, memoryview(encode(obj, sums)), 0)
            finally:
                system.close(fd)
            system.rename(temporary, path)
        except OSError:
            # The cache works without: only a lost catalog would miss it.
            with contextlib.suppress(OSError):
                system.unlink(temporary)
        else:
            written.add(path)
    return written


def probe(system: System, tier: Tier) -> OSError | None:
    """Whether every place of *tier* takes a block and keeps it; in a thread."""
    for place in tier.places:
        path = f"{place.base}/probe"
        try:
            place.prepare()
            fd = system.open(path, _CREATE, 0o600)
            try:
                write_all(system, fd, memoryview(bytes(1 << 16)), 0)
                system.fdatasync(fd)
            finally:
                system.close(fd)
                system.unlink(path)
        except OSError as error:
            return error
    return None
