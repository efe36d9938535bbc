"""Room for what is fetched on request, before anybody reads it: cold data makes way, hot never.

To be asked for counts as one use. So a resident leaves for it only if its policy names it as victim
and its own uses, weighted by their age, are fewer than one by the configured margin. What was
warmed just now counts as much, so one request never displaces its own files. Pinned objects are
nobody's victim.

What nobody asked for displaces nothing: it enters where there is room for all of it without anybody
leaving, now or soon after, and that is no use of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from tiercache.tier.layout import allocated, overhead
from tiercache.tier.limits import Surroundings
from tiercache.tier.place import Place
from tiercache.tier.residency import Residency
from tiercache.tier.room import Room
from tiercache.tier.table import Table
from tiercache.tier.tier import Tier
from tiercache.tier.usage import Usage
from tiercache.types import Inode


class _Attempt(Protocol):
    """Whether *need* bytes, of a *pinned* object or another, are free at *place* after this."""

    def __call__(self, place: Place, need: int, *, pinned: bool) -> bool: ...


#: Victims looked at for one piece of a file.
_VICTIMS = 256


class Warming:
    """Says whether a piece that nobody waits for may enter, and makes room. On the loop."""

    def __init__(
        self,
        tiers: list[Tier],
        parts: tuple[Table, Room],
        usage: Usage,
        margin: float,
        around: Surroundings,
    ) -> None:
        self._tiers = tiers
        self._table, self._room = parts
        self._usage = usage
        self._margin = margin
        self._now = around.now
        self._limits = around.limits
        self._preferred: dict[int, str] = {}

    def reconfigure(self, margin: float) -> None:
        """Displace by another margin from now on."""
        self._margin = margin

    def free(self) -> list[tuple[str, int]]:
        """Bytes that fit without any eviction, by name of tier, hottest first."""
        return [(tier.name, self._free(tier)) for tier in self._tiers]

    @staticmethod
    def _free(tier: Tier) -> int:
        if not tier.health.writable:
            return 0
        try:
            rooms = [place.disk_room(tier.config.reserve_free) for place in tier.places]
        except OSError:
            return 0
        return max(0, min(tier.free, sum(rooms)))

    @contextmanager
    def preferring(self, obj: Inode, tier: str | None) -> Iterator[None]:
        """Have *obj* enter *tier* and no other meanwhile; None: the hottest that takes it."""
        if tier is None:
            yield
            return
        self._preferred[obj.ino] = tier
        try:
            yield
        finally:
            self._preferred.pop(obj.ino, None)

    def admits(self, obj: Inode, first: int, end: int, *, evicts: bool = True) -> bool:
        """Whether blocks [first, end) of *obj* may enter; to be reserved before the next await.

        *evicts*: colder objects make room for it, because somebody asked for it.
        """
        item = self._table.get(obj)
        if item is None:
            return False
        attempts = (self._room.fits, self._yields) if evicts else (self._fits_freely,)
        if item.place is not None:
            place, need = item.place, item.cost_of_range(first, end)
            return any(attempt(place, need, pinned=item.pinned) for attempt in attempts)
        whole = allocated(item.size) + overhead(item.blocks, len(obj.key))
        if not self._settle(item, whole, attempts):
            return False
        if evicts:
            self._usage.use(item.ino, item.group, self._now())
        return True

    def _settle(self, item: Residency, whole: int, attempts: Sequence[_Attempt]) -> bool:
        """Choose a place with room for all of *item*."""
        preferred = self._preferred.get(item.ino)
        able = [tier for tier in self._tiers if self._admits(tier, item, whole, preferred)]
        for attempt in attempts:
            for tier in able:
                place = self._room.roomiest(tier)
                if attempt(place, whole, pinned=item.pinned):
                    item.settle(place)
                    self._room.on_settled(place, item.name)
                    return True
        return False

    def spare(self) -> int:
        """Bytes that the emptiest tier takes without anybody leaving, now or soon after."""
        return max(self._free(tier) - self._headroom(tier) for tier in self._tiers)

    def _fits_freely(self, place: Place, need: int, *, pinned: bool) -> bool:
        return self._room.fits(place, need + self._headroom(place.tier), pinned=pinned)

    def _headroom(self, tier: Tier) -> int:
        """What the background keeps free in *tier* by evictions."""
        return max(self._limits.headroom(tier.capacity), tier.capacity - tier.high_water)

    def _admits(self, tier: Tier, item: Residency, whole: int, preferred: str | None) -> bool:
        if preferred is None:
            return self._room.refusal(tier, item, whole) is None
        # Who names a tier overrules its policy, not what the disk can do.
        return tier.name == preferred and self._room.refusal(tier, item, whole) in (None, "policy")

    def _yields(self, place: Place, need: int, *, pinned: bool) -> bool:
        """Whether *need* bytes fit at *place* after colder objects left."""
        tier = place.tier
        for _ in range(_VICTIMS):
            if self._room.fits(place, need, pinned=pinned):
                return True
            ino = tier.policy.victim(self._now())
            if ino is None or self._usage.count(ino, self._now()) * self._margin > 1:
                return False
            free = tier.free + tier.leaving
            self._room.evict(tier, 1)
            if tier.free + tier.leaving <= free:
                return False
        return False
