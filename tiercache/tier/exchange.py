"""Which local copy should be in which tier: decides, and carries out one move at a time.

Down: where a tier is above its high-water mark, its policy names victims until it is at the low
one. A victim goes to the next tier that wants it and has room, else it is dropped: the origin has
it.

Up: a complete object that was opened while in a lower tier is promoted, whole, when the tier above
has room, or when it is hotter by the configured margin than whoever would have to leave for it. Its
last open does not count in that comparison: of objects that are all used equally often, the one
just used would always seem hotter than the one whose turn is next, and each would displace the
other for ever. For the same reason nobody who came by a move leaves again within `residence_s`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from tiercache.config import MoveConfig
from tiercache.tier.limits import Surroundings
from tiercache.tier.moving import Moves, Pace, copy_size
from tiercache.tier.place import Place
from tiercache.tier.removal import Removal
from tiercache.tier.residency import Residency
from tiercache.tier.room import Room
from tiercache.tier.table import Table
from tiercache.tier.tier import Tier
from tiercache.tier.usage import Usage


@dataclass(frozen=True, slots=True)
class Move:
    """What should happen to one object. `target` None: it is dropped."""

    item: Residency
    source: Tier
    target: Place | None

    @property
    def up(self) -> bool:
        """Whether it is a promotion."""
        return self.target is not None and self.target.tier.level < self.source.level

    def __str__(self) -> str:
        """For a log: what would move where."""
        where = "nowhere" if self.target is None else f"tier {self.target.tier.name}"
        return f"{self.item.name} ({self.item.charged} bytes): {self.source.name} to {where}"


class Exchange:
    """Between the tiers of one store. On the loop."""

    def __init__(
        self,
        tiers: list[Tier],
        parts: tuple[Table, Removal, Room, Moves],
        usage: Usage,
        config: MoveConfig,
        around: Surroundings,
    ) -> None:
        self.tiers = tiers
        self._table, self._removal, self._room, self._moves = parts
        self._usage = usage
        self._config = config
        self._now = around.now
        self._candidates_max = around.limits.queue
        self._candidates: OrderedDict[int, None] = OrderedDict()

    def reconfigure(self, config: MoveConfig) -> None:
        """Decide by another margin and residence from now on."""
        self._config = config

    def used(self, ino: int) -> None:
        """Object *ino* was opened while in a lower tier."""
        self._candidates[ino] = None
        if len(self._candidates) > self._candidates_max:
            self._candidates.popitem(last=False)

    # -- down ------------------------------------------------------------------------------------

    def demotion(self, tier: Tier, goal: int) -> Move | None:
        """Who should leave *tier* so that at most *goal* bytes of it are used; None: nobody."""
        while tier.used - tier.leaving > goal:
            ino = tier.policy.victim(self._now())
            if ino is None:
                return None
            item = self._table.take(ino)
            if item is not None and item.tier is tier and not item.pinned:
                return self._downward(item) if self._may_leave(item) else None
            tier.policy.remove(ino)
        return None

    def _downward(self, item: Residency) -> Move:
        assert item.tier is not None
        for lower in self.tiers[item.tier.level + 1 :]:
            if self._room.refusal(lower, item, item.charged) is None:
                place = self._room.roomiest(lower)
                if self._room.make_room(place, copy_size(item)):
                    return Move(item, item.tier, place)
        return Move(item, item.tier, None)

    def _may_leave(self, item: Residency) -> bool:
        settled = self._now() - item.moved_at >= self._config.residence_s
        return (settled or item.pinned) and not item.reservations

    # -- up --------------------------------------------------------------------------------------

    def promotable(self) -> list[Residency]:
        """Those opened in lower tiers since the last call, hottest first."""
        inos, self._candidates = list(self._candidates), OrderedDict()
        now = self._now()
        items = [item for ino in inos if (item := self._table.take(ino)) is not None]
        items.sort(key=lambda item: self._usage.count(item.ino, now), reverse=True)
        return items

    def promotion(self, item: Residency) -> Move | None:
        """The next step to have *item* in a hotter tier, None if that should not be.

        The step may be that another object leaves; ask again after it.
        """
        if item.dead or item.tier is None or not item.complete or not self._may_leave(item):
            return None
        if item.pinned:
            return self._homeward(item, self._room.home_of(item))
        for upper in self.tiers[: item.tier.level]:
            if self._room.refusal(upper, item, item.charged) is None:
                step = self._step_up(item, upper)
                if step is not None:
                    return step
        return None

    def _homeward(self, item: Residency, home: Tier | None) -> Move | None:
        """Into the tier *item* is pinned to, where room was made for it when that was asked for."""
        if home is None or item.tier in (home, None) or not home.health.writable:
            return None
        place = self._room.roomiest(home)
        if not self._room.fits(place, copy_size(item), pinned=True):
            return None
        return Move(item, item.tier, place)

    def _step_up(self, item: Residency, upper: Tier) -> Move | None:
        assert item.tier is not None
        size = copy_size(item)
        if upper.used + size <= upper.high_water:
            place = self._room.roomiest(upper)
            if self._room.fits(place, size):
                return Move(item, item.tier, place)
        leaving = self.demotion(upper, max(0, upper.high_water - size))
        if leaving is None or not self._hotter(item, leaving.item):
            return None
        return leaving

    def _hotter(self, item: Residency, other: Residency) -> bool:
        now = self._now()
        heat = self._usage.count(item.ino, now) - 1
        return heat > 0 and heat >= self._config.margin * self._usage.count(other.ino, now)

    # -- doing it --------------------------------------------------------------------------------

    async def carry_out(self, move: Move, pace: Pace) -> bool:
        """Whether *move* was done; False when its object changed meanwhile.

        Raises OSError for what a disk did; the object is where it was.
        """
        item, source = move.item, move.source
        if item.dead or item.tier is not source or item.reservations:
            return False
        if move.target is None:
            self._removal.remove(item, evicted=True)
            source.evictions += 1
            return True
        if not await self._moves.move(item, move.target, pace):
            return False
        if move.up:
            source.promotions += 1
        else:
            source.demotions += 1
        return True
