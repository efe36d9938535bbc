"""Space before bytes: chooses the tier of an object and makes room there, or says no.

Of the tiers that admit an object, the hottest with room for all of it takes it: nothing is lost
while there is room anywhere, and the mover puts it right later. Else the hottest that has, or whose
policy makes, room for what is wanted now. What belongs to nobody (other origins, files without a
record) goes before any object does, but in the background: the newcomer bypasses the tiers so
long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tiercache.tier.layout import allocated, overhead
from tiercache.tier.limits import Surroundings
from tiercache.tier.place import Place
from tiercache.tier.removal import Removal
from tiercache.tier.residency import Residency
from tiercache.tier.ruling import Ruling
from tiercache.tier.table import Table
from tiercache.tier.tier import Tier
from tiercache.types import Inode

#: Evictions per attempt that free nothing because the kernel holds the file. More of them would
#: only lose copies that are in use.
_HELD_MAX = 2


class Room:
    """Admission to the chain of tiers. On the loop."""

    def __init__(
        self,
        tiers: list[Tier],
        table: Table,
        removal: Removal,
        ruling: Ruling,
        around: Surroundings,
    ) -> None:
        self._tiers = tiers
        self._table = table
        self._removal = removal
        self._ruling = ruling
        self._now = around.now
        self._limits = around.limits
        self.on_wanted: Callable[[], None] = lambda: None
        self.home_of: Callable[[Residency], Tier | None] = lambda _item: None
        self.on_settled: Callable[[Place, str], None] = lambda _place, _name: None

    def reserve(self, item: Residency, obj: Inode, first: int, end: int) -> int | None:
        """Promise room for blocks [first, end) of *item* and settle it if it is nowhere yet.

        Returns the bytes promised, None when the object must bypass the tiers.
        """
        need = item.cost_of_range(first, end)
        if not item.charged:
            need += overhead(item.blocks, len(obj.key))
        if item.place is not None:
            over = self._ruling.refusal(item, item.place.tier, need)
            fits = over is None and self._make_room(item.place, need, pinned=item.pinned)
        else:
            whole = allocated(item.size) + overhead(item.blocks, len(obj.key))
            fits = self._settle(item, need, whole)
        if not fits or item.place is None:
            return None
        item.place.spend(need)
        item.place.tier.share_reserved[item.rule] += need
        return need

    def _settle(self, item: Residency, need: int, whole: int) -> bool:
        able = [tier for tier in self._order(item) if self._admits(tier, item, whole)]
        attempts: Iterable[Callable[[Place], bool]] = (
            lambda place: self.fits(place, whole, pinned=item.pinned),
            lambda place: self._make_room(place, need, pinned=item.pinned),
        )
        for attempt in attempts:
            for tier in able:
                place = self.roomiest(tier)
                if attempt(place):
                    item.settle(place)
                    self.on_settled(place, item.name)
                    return True
        for tier in able:
            self._bypassed(tier, item, "full")
        return False

    def _order(self, item: Residency) -> list[Tier]:
        """Where to try, in this order: the tier that *item* is pinned to before all others."""
        home = self.home_of(item) if item.pinned else None
        return self._tiers if home is None else sorted(self._tiers, key=lambda t: t is not home)

    @staticmethod
    def _bypassed(tier: Tier, item: Residency, reason: str) -> None:
        tier.bypasses[reason] += 1
        item.bypass = f"not taken by tier {tier.name}: {reason}"

    def _admits(self, tier: Tier, item: Residency, whole: int) -> bool:
        """Whether *item* may enter *tier* as far as room is not the question; counts why not."""
        reason = self.refusal(tier, item, whole)
        if reason is not None:
            self._bypassed(tier, item, reason)
        return reason is None

    def refusal(self, tier: Tier, item: Residency, whole: int) -> str | None:
        """Why *tier* does not take *item* of *whole* bytes, None: it does.

        The policy is asked once per use: many blocks of one file are one.
        """
        if not tier.health.writable:
            return "not writable"
        if whole > tier.capacity:
            return "too large"
        if not tier.budget.allows(whole, self._now()):
            return "write budget"
        ruled = self._ruling.refusal(item, tier, whole)
        if ruled is not None:
            return ruled
        if item.refused >> tier.level & 1:
            return "policy"
        if item.pinned or tier.policy.wants(item.ino, whole, item.group, self._now()):
            return None
        item.refused |= 1 << tier.level
        return "policy"

    def roomiest(self, tier: Tier) -> Place:
        """The directory of *tier* for a new object."""
        return tier.roomiest(lambda place: -self._short(place, 0))

    def fits(self, place: Place, need: int, *, pinned: bool = False) -> bool:
        """Whether *need* bytes, of a *pinned* object or another, fit at *place* as it is."""
        return self._short(place, need, pinned=pinned) <= 0

    def make_room(self, place: Place, need: int) -> bool:
        """Whether *need* bytes fit at *place*, after evictions if the policy has victims."""
        return self._make_room(place, need)

    def _short(self, place: Place, need: int, *, pinned: bool = False) -> int:
        """Bytes missing at *place*; everything while its disk does not answer."""
        try:
            return place.tier.shortage(place, need, pinned=pinned)
        except OSError as error:
            place.tier.health.write_failed(error)
            return max(1, need)

    def _make_room(self, place: Place, need: int, *, pinned: bool = False) -> bool:
        tier = place.tier
        if not tier.health.writable:
            return False
        short = self._short(place, need, pinned=pinned)
        if short <= 0:
            return True
        if tier.disposable:
            tier.wanted = max(tier.wanted, need)
            self.on_wanted()
            return False
        self.evict(tier, short)
        return self._short(place, need, pinned=pinned) <= 0

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
            if item is None or item.tier is not tier or item.pinned:
                tier.policy.remove(ino)
            elif item.reservations:
                tier.policy.remove(ino)
                aside.append(item)
            else:
                self._removal.remove(item, evicted=True)
                tier.evictions += 1
                held += self._removal.is_kept(ino)
        for item in aside:
            tier.policy.admit(item.ino, item.charged, item.group, self._now())
        self._ask_disks(tier)

    def _ask_disks(self, tier: Tier) -> None:
        for place in tier.places:
            try:
                place.ask_disk()
            except OSError as error:
                tier.health.write_failed(error)
