"""The writing side of the store: from a reservation to resident blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tiercache.tier.files import OpenFiles
from tiercache.tier.layout import overhead
from tiercache.tier.limits import Surroundings
from tiercache.tier.removal import Removal
from tiercache.tier.reservation import Reservation
from tiercache.tier.residency import Residency
from tiercache.tier.room import Room
from tiercache.tier.system import close
from tiercache.tier.table import Table
from tiercache.types import Inode


class Writer:
    """Hands out reservations and takes them back. On the loop."""

    def __init__(
        self, table: Table, files: OpenFiles, removal: Removal, room: Room, around: Surroundings
    ) -> None:
        self._table = table
        self._files = files
        self._removal = removal
        self._room = room
        self._around = around
        self._system = around.system
        self.on_complete: Callable[[Residency, Inode], None] = lambda _item, _obj: None

    def reserve(self, obj: Inode, first: int, end: int) -> Reservation | None:
        """Room for blocks [first, end) of *obj*, or None: it must bypass the tiers."""
        item = self._table.get(obj)
        if item is None or not 0 <= first < end <= item.blocks:
            return None
        # Counted before room is made, so that the object is not its own victim.
        item.reservations += 1
        item.holds += 1
        nbytes = self._room.reserve(item, obj, first, end)
        if nbytes is None or item.dead:
            self._release(item)
            return None
        return Reservation(
            item,
            (first, end),
            nbytes,
            self._system,
            lambda reservation, done: self._commit(reservation, done, obj),
            self._close,
        )

    def _commit(self, reservation: Reservation, done: list[tuple[int, int]], obj: Inode) -> None:
        item = reservation.item
        if item.dead:
            return
        if item.file_id != reservation.file_id:
            if item.file_id:
                # Somebody removed the file we had, and `write` made another one.
                self._removal.remove(item)
                return
            item.file_id = reservation.file_id
        if item.fd < 0:
            self._lend(reservation)
        was_complete = item.complete
        for block, checksum in done:
            self._put(reservation, block, checksum, obj)
        assert item.tier is not None
        if not item.pinned:
            item.tier.policy.admit(item.ino, item.charged, item.group, self._around.now())
        if item.complete and not was_complete:
            self._completed(reservation, obj)

    def _lend(self, reservation: Reservation) -> None:
        """Let readers use the descriptor: opened anew, the file would have to be verified again."""
        self._files.adopt(reservation.item, reservation.fd)
        reservation.item.reads += 1
        reservation.lent = True

    def _put(self, reservation: Reservation, block: int, checksum: int, obj: Inode) -> None:
        item = reservation.item
        assert item.place is not None
        assert item.tier is not None
        cost = item.cost(block)
        if not item.charged:
            cost += overhead(item.blocks, len(obj.key))
        self._table.charge(item, cost)
        self._table.wrote(item.tier, cost)
        self._spend(reservation, cost)
        if not item.present[block]:
            item.place.totals.blocks += 1
        item.put(block, checksum, verified=not item.tier.always_verify)
        self._table.mark(item, block)

    def _spend(self, reservation: Reservation, cost: int) -> None:
        """Promised bytes became resident ones."""
        self._give_back(reservation, min(cost, reservation.nbytes))

    @staticmethod
    def _give_back(reservation: Reservation, nbytes: int) -> None:
        """*nbytes* are promised no more."""
        reservation.nbytes -= nbytes
        reservation.place.reserved -= nbytes
        reservation.place.tier.share_reserved[reservation.item.rule] -= nbytes

    def _completed(self, reservation: Reservation, obj: Inode) -> None:
        item = reservation.item
        try:
            item.ctime_ns = self._system.fstat(reservation.fd).st_ctime_ns
        except OSError:
            item.distrust()
            return
        item.proven = not item.unverified
        self.on_complete(item, obj)

    def _close(self, reservation: Reservation) -> None:
        item = reservation.item
        if reservation.fd >= 0:
            self._settle_file(reservation)
        self._give_back(reservation, reservation.nbytes)
        self._release(item)

    def _settle_file(self, reservation: Reservation) -> None:
        """What becomes of the descriptor."""
        item, fd = reservation.item, reservation.fd
        if not item.dead:
            reservation.deallocate()
            if reservation.failed and item.charged:
                self._recount(reservation, fd)
        reservation.fd = -1
        if reservation.lent:
            item.reads -= 1
            if item.dead and not item.reads:
                self._files.close(item)
        elif not item.dead and item.charged and item.file_id == reservation.file_id:
            self._files.adopt(item, fd)
        else:
            close(self._system, fd)

    def _recount(self, reservation: Reservation, fd: int) -> None:
        """What failed may have taken space, of what was promised it, without giving a block."""
        item = reservation.item
        with contextlib.suppress(OSError):
            extra = self._system.fstat(fd).st_blocks * 512 - item.charged
            extra = min(extra, reservation.nbytes)
            if extra > 0:
                self._table.charge(item, extra)
                self._spend(reservation, extra)
                self._table.mark(item)

    def _release(self, item: Residency) -> None:
        item.reservations -= 1
        if not item.reservations:
            self._end_writing(item)
        self._removal.unhold(item)

    def _end_writing(self, item: Residency) -> None:
        """Nobody writes any more: a file that nothing came of goes, whoever made it."""
        item.opening = None
        if item.place is not None and not item.dead and not item.charged:
            with contextlib.suppress(OSError):
                self._system.unlink(item.place.data(item.name))
            item.unsettle()
