"""Space before bytes: chooses the tier of an object and makes room there, or says no.

The hottest tier that has room for the whole object takes it; else the hottest whose policy gives
something up; else the hottest with room for what is wanted now. What belongs to nobody (other
origins, files without a record) goes before any object does, but in the background: the newcomer
bypasses the tier meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tiercache.tier.layout import allocated, overhead
from tiercache.tier.limits import Surroundings
from tiercache.tier.place import Place
from tiercache.tier.removal import Removal
from tiercache.tier.residency import Residency
from tiercache.tier.table import Table
from tiercache.tier.tier import Tier
from tiercache.types import Inode

#: Evictions per attempt that free nothing because the kernel holds the file. More of them would
#: only lose copies that are in use.
_HELD_MAX = 2


class Room:
    """Admission to the chain of tiers. On the loop."""

    def __init__(
        self, tiers: list[Tier], table: Table, removal: Removal, around: Surroundings
    ) -> None:
        self._tiers = tiers
        self._table = table
        self._removal = removal
        self._now = around.now
        self._limits = around.limits
        self.on_wanted: Callable[[], None] = lambda: None
        self.on_settled: Callable[[str], None] = lambda _name: None

    def reserve(self, item: Residency, obj: Inode, first: int, end: int) -> int | None:
        """Promise room for blocks [first, end) of *item* and settle it if it is nowhere yet.

        Returns the bytes promised, None when the object must bypass the tiers.
        """
        need = item.cost_of_range(first, end)
        if not item.charged:
            need += overhead(item.blocks, len(obj.key))
        if item.place is not None:
            fits = self._make_room(item.place, need)
        else:
            whole = allocated(item.size) + overhead(item.blocks, len(obj.key))
            fits = self._settle(item, need, whole)
        if not fits or item.place is None:
            return None
        item.place.spend(need)
        return need

    def _settle(self, item: Residency, need: int, whole: int) -> bool:
        able = [
            t
            for t in self._tiers
            if t.health.writable
            and whole <= t.capacity
            and t.policy.wants(item.ino, whole, 0, self._now())
        ]
        attempts: Iterable[Callable[[Place], bool]] = (
            lambda place: self._short(place, whole) <= 0,
            lambda place: self._make_room(place, need),
        )
        for attempt in attempts:
            for tier in able:
                place = tier.roomiest(lambda place: -self._short(place, 0))
                if attempt(place):
                    item.settle(place)
                    self.on_settled(item.name)
                    return True
        for tier in self._tiers:
            tier.bypassed += 1
        return False

    def _short(self, place: Place, need: int) -> int:
        """Bytes missing at *place*; everything while its disk does not answer."""
        try:
            return place.tier.shortage(place, need)
        except OSError as error:
            place.tier.health.write_failed(error)
            return max(1, need)

    def _make_room(self, place: Place, need: int) -> bool:
        tier = place.tier
        if not tier.health.writable:
            return False
        short = self._short(place, need)
        if short <= 0:
            return True
        if tier.disposable:
            tier.wanted = max(tier.wanted, need)
            self.on_wanted()
            return False
        self.evict(tier, short)
        return self._short(place, need) <= 0

    def evict(self, tier: Tier, nbytes: int) -> None:
        """Remove victims of the policy until *nbytes* are, or soon will be, free; or it stops."""
        aside: list[Residency] = []
        held = 0
        goal = tier.free + nbytes
        for _ in range(self._limits.victims):
            if tier.free + tier.leaving >= goal or held >= _HELD_MAX:
                break
            ino = tier.policy.victim(self._now())
            if ino is None:
                break
            item = self._table.find(ino)
            if item is None or item.tier is not tier:
                tier.policy.remove(ino)
            elif item.reservations:
                tier.policy.remove(ino)
                aside.append(item)
            else:
                self._removal.remove(item)
                tier.evictions += 1
                held += self._removal.is_kept(ino)
        for item in aside:
            tier.policy.admit(item.ino, item.charged, 0, self._now())
        self._ask_disks(tier)

    def _ask_disks(self, tier: Tier) -> None:
        for place in tier.places:
            try:
                place.ask_disk()
            except OSError as error:
                tier.health.write_failed(error)
