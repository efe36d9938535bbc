"""The reading side of the store: what may be read where, and what a read teaches about the disk."""

from __future__ import annotations

import errno

import trio

from tiercache.tier.files import OpenFiles
from tiercache.tier.layout import PAGE
from tiercache.tier.limits import Surroundings
from tiercache.tier.place import Place
from tiercache.tier.reading import Outcome, Plan, plan, read_planned, verify_planned
from tiercache.tier.removal import Removal
from tiercache.tier.residency import Residency
from tiercache.tier.system import close
from tiercache.tier.table import Table
from tiercache.types import BLOCK_SIZE, Inode

_SHIFT = BLOCK_SIZE.bit_length() - 1

#: Blocks verified in one thread hop in the background.
_VERIFY_BATCH = 8


class Reader:
    """Reads mirror files. On the loop."""

    def __init__(
        self, table: Table, files: OpenFiles, removal: Removal, around: Surroundings
    ) -> None:
        self._table = table
        self._files = files
        self._removal = removal
        self._system = around.system
        self._threads = around.threads

    def read_now(self, obj: Inode, offset: int, into: memoryview) -> bool:
        """Fill *into* if that needs no disk and no verification."""
        size = len(into)
        found = self._ready(obj, offset, size)
        if found is None:
            return False
        place, fd = found
        try:
            if self._system.preadv(fd, [into], offset, place.read_flags) != size:
                return False
        except OSError:
            return False
        place.tier.hit_bytes += size
        return True

    def locate(self, obj: Inode, offset: int, size: int) -> int:
        """The descriptor to take bytes [offset, offset + size) from without a disk, else -1.

        Valid until the next checkpoint.
        """
        found = self._ready(obj, offset, size)
        if found is None:
            return -1
        place, fd = found
        return fd if self._in_memory(fd, place, offset, size) else -1

    async def read(self, obj: Inode, offset: int, into: memoryview) -> bool:
        """Fill *into* in a thread, verifying what was not; False when it must be fetched."""
        item = self._table.get(obj)
        first, end = offset >> _SHIFT, (offset + len(into) - 1 >> _SHIFT) + 1
        if item is None or item.tier is None or not item.holds_range(first, end):
            return False
        tier, fd = item.tier, self._open(item)
        if fd < 0 or item.dead:
            return False
        what = plan(item, fd, first, end, always=tier.always_verify)
        self._pin(item)
        try:
            # Not abandoned when cancelled: nothing may write to the caller's buffer after that.
            outcome = await trio.to_thread.run_sync(
                read_planned,
                self._system,
                what,
                offset,
                into,
                limiter=tier.read_slots or self._threads,
            )
        finally:
            self._unpin(item)
        self._learn(item, what, outcome)
        if outcome.bad:
            return False
        item.recent = True
        tier.hit_bytes += len(into)
        return True

    async def verify_some(self, item: Residency) -> int:
        """Verify the next blocks of a complete object; bytes read, 0 at the end."""
        first = item.verified.find(0)
        if first < 0 or item.dead or not item.complete or item.tier is None:
            return 0
        end = min(first + _VERIFY_BATCH, item.blocks)
        fd = self._open(item)
        if fd < 0 or item.dead:
            return 0
        what = plan(item, fd, first, end, always=False)
        self._pin(item)
        try:
            outcome = await trio.to_thread.run_sync(
                verify_planned,
                self._system,
                what,
                limiter=item.tier.read_slots or self._threads,
            )
        finally:
            self._unpin(item)
        self._learn(item, what, outcome)
        return (end - first) * BLOCK_SIZE

    def drop(self, item: Residency, block: int) -> None:
        """*block* of *item* is not resident any more."""
        if item.dead or item.place is None or not item.present[block]:
            return
        was_complete = item.complete
        item.drop(block)
        item.place.totals.blocks = max(0, item.place.totals.blocks - 1)
        self._table.mark(item, block)
        if was_complete:
            self._removal.on_evicted(item.ino)

    def backing_fd(self, item: Residency) -> int | None:
        """A new descriptor of a complete, verified, unchanged file, or None."""
        try:
            fd, _stat = self._files.checked(item)
        except OSError as error:
            self._cannot_open(item, error)
            return None
        if item.unverified:
            close(self._system, fd)
            return None
        return fd

    # -- below -----------------------------------------------------------------------------------

    def _ready(self, obj: Inode, offset: int, size: int) -> tuple[Place, int] | None:
        """The place and descriptor that hold bytes [offset, offset + size), all verified."""
        item = self._table.loaded(obj.ino)
        if item is None or item.place is None or not item.place.tier.health.readable:
            return None
        if item.verified.find(0, offset >> _SHIFT, (offset + size - 1 >> _SHIFT) + 1) >= 0:
            return None
        place, fd = item.place, item.fd if item.fd >= 0 else self._open(item)
        item.recent = True
        return (place, fd) if fd >= 0 else None

    def _in_memory(self, fd: int, place: Place, offset: int, size: int) -> bool:
        if not place.read_flags:
            return True
        pages = -(-(offset + size) // PAGE) - offset // PAGE
        return self._system.cached_pages(fd, offset, size) == pages

    def _pin(self, item: Residency) -> None:
        item.reads += 1
        item.holds += 1

    def _unpin(self, item: Residency) -> None:
        item.reads -= 1
        if item.dead and not item.reads:
            self._files.close(item)
        self._removal.unhold(item)

    def _open(self, item: Residency) -> int:
        """The shared descriptor, -1 when the file cannot be read now (then it is a miss)."""
        try:
            return self._files.get(item)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._files.close_idle()
                try:
                    return self._files.get(item)
                except OSError as again:
                    error = again
            self._cannot_open(item, error)
            return -1

    def _cannot_open(self, item: Residency, error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            self._removal.remove(item)
        else:
            self._table.bar(item)

    def _learn(self, item: Residency, what: Plan, outcome: Outcome) -> None:
        """Take note of what a thread found; the record may have changed meanwhile."""
        if item.dead or item.tier is None:
            return
        if not item.tier.always_verify:
            for block in outcome.verified:
                if item.sums[block] == what.sums[block - what.first]:
                    item.mark_verified(block)
        for block, checksum in outcome.bad.items():
            if item.present[block] and item.sums[block] == checksum:
                self._report(item, block, outcome.error)
                self.drop(item, block)
        if item.complete and not item.unverified and not item.proven:
            self._prove(item)

    def _report(self, item: Residency, block: int, error: OSError | None) -> None:
        assert item.tier is not None
        item.tier.corrupt_blocks += 1
        why = (error.strerror or str(error)) if error else "it does not match its checksum"
        item.tier.health.warnings.warn(
            "corrupt", f"tier {item.tier.name}: block {block} of {item.name} dropped: {why}"
        )

    def _prove(self, item: Residency) -> None:
        """All is verified: remember as of which state of the file, unless it moved meanwhile."""
        fd = self._open(item)
        if fd < 0 or item.dead:
            return
        try:
            ctime_ns = self._system.fstat(fd).st_ctime_ns
        except OSError:
            return
        if ctime_ns != item.ctime_ns:
            item.ctime_ns = ctime_ns
            item.distrust()
            return
        item.proven = True
        self._table.mark(item)
