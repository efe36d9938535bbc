"""One tier: its directories, its capacity, its policy, its health and its figures."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import trio

from tiercache.config import TierConfig
from tiercache.policy import EvictionPolicy
from tiercache.tier.budget import WriteBudget
from tiercache.tier.health import Health
from tiercache.tier.limits import Surroundings
from tiercache.tier.place import Place


class Tier:
    """A local store of one speed."""

    def __init__(
        self,
        config: TierConfig,
        places: list[Place],
        policy: EvictionPolicy,
        around: Surroundings,
        level: int = 0,
    ) -> None:
        #: 0 is the hottest.
        self.level = level
        self.config = config
        self.name = config.name
        self.places = places
        self.policy = policy
        self.health = Health(config.name, around.limits, around.now)
        self.always_verify = config.verify == "always"
        self.capacity = config.capacity
        self.hit_bytes = 0
        self.evictions = 0
        self.corrupt_blocks = 0
        self.promotions = 0
        self.demotions = 0
        #: How often an object was not taken, by reason.
        self.bypasses: Counter[str] = Counter()
        #: Whether somebody moves victims down before the tier is full.
        self.demotes = False
        self.budget = WriteBudget(config.write_budget_per_day)
        slots = config.io_slots
        #: Bounds the threads that read here; None: the store's own bound.
        self.read_slots = trio.CapacityLimiter(slots) if slots else None
        #: Bounds the threads that write here.
        self.write_slots: AbstractContextManager[object] = (
            threading.BoundedSemaphore(slots) if slots else nullcontext()
        )
        #: Bytes of pinned objects, of which the policy knows nothing.
        self.pinned = 0
        #: Bytes here of objects under each rule, by its number, and those reserved for them.
        self.shares: Counter[int] = Counter()
        self.share_reserved: Counter[int] = Counter()
        #: Bytes that pinned objects take when all of them are local.
        self.promised = 0
        #: Bytes whose files a thread is about to unlink.
        self.leaving = 0
        #: Bytes the background should make free for newcomers that were turned away.
        self.wanted = 0
        for place in places:
            place.tier = self

    def settle_capacity(self) -> None:
        """Turn capacity 0 into bytes: what the disks have free, with what is already ours."""
        if self.config.capacity:
            return
        disks = {place.root.stat().st_dev: place for place in self.places}
        free = sum(place.disk_room(self.config.reserve_free) for place in disks.values())
        self.capacity = max(0, free + self.used)
        self._resize()

    def reconfigure(self, config: TierConfig) -> None:
        """Take on other bounds; who is above them leaves as after any other change of mind.

        Asks the disks when the capacity is to be found out anew.
        """
        before, self.config = self.config, config
        self.budget.per_day = config.write_budget_per_day
        if config.capacity:
            self.capacity = config.capacity
            self._resize()
        elif (before.capacity, before.reserve_free) != (0, config.reserve_free):
            self.settle_capacity()

    def pin(self, nbytes: int) -> None:
        """*nbytes* more (or less) belong to pinned objects."""
        self.pinned += nbytes
        self._resize()

    def share(self, rule: int, nbytes: int) -> None:
        """*nbytes* more (or less) belong to objects under *rule*."""
        if rule:
            self.shares[rule] = max(0, self.shares[rule] + nbytes)

    def promise(self, nbytes: int) -> None:
        """*nbytes* more (or less) are promised to pinned objects, local or not."""
        self.promised += nbytes
        self._resize()

    @property
    def unkept(self) -> int:
        """Bytes that pinned objects are promised and that neither they have nor are free."""
        return self.promised - self.pinned - self.free - self.leaving

    def _resize(self) -> None:
        self.policy.resize(max(0, self.capacity - max(self.pinned, self.promised)))

    @property
    def used(self) -> int:
        """Bytes taken from the capacity."""
        return sum(place.used for place in self.places)

    @property
    def high_water(self) -> int:
        """Bytes used above which victims leave ahead of need."""
        return int(self.capacity * self.config.high_water)

    @property
    def low_water(self) -> int:
        """Bytes used at which that ends."""
        return int(self.capacity * self.config.low_water)

    @property
    def free(self) -> int:
        """Bytes of the capacity nobody has; negative when it was lowered."""
        return self.capacity - self.used

    @property
    def disposable(self) -> bool:
        """Whether there is something to remove before any object must go."""
        return any(place.foreign or place.unclaimed.total for place in self.places)

    def shortage(self, place: Place, need: int, *, pinned: bool = False) -> int:
        """Bytes missing before *need* bytes fit at *place*; OSError when the disk does not say.

        What is promised to pinned objects is there for them alone.
        """
        kept = 0 if pinned else max(0, self.promised - self.pinned)
        return max(need + kept - self.free, need - place.disk_room(self.config.reserve_free))

    def roomiest(self, where: Callable[[Place], int]) -> Place:
        """The directory for a new object."""
        return self.places[0] if len(self.places) == 1 else max(self.places, key=where)

    def no_passthrough(self) -> str | None:
        """Why files of this tier cannot be read by the kernel directly, or None."""
        if self.always_verify:
            return 'verify = "always" checks each read'
        return next((place.no_backing for place in self.places if place.no_backing), None)

    def status(self) -> dict[str, Any]:
        """Facts for `tiercache status`."""
        why = self.no_passthrough()
        return {
            "name": self.name,
            "paths": [str(place.root) for place in self.places],
            "capacity": self.capacity,
            "reserve_free": self.config.reserve_free,
            "used": self.used,
            "objects": sum(place.totals.objects for place in self.places),
            "blocks": sum(place.totals.blocks for place in self.places),
            "hit_bytes": self.hit_bytes,
            "evictions": self.evictions,
            "corrupt_blocks": self.corrupt_blocks,
            "promotions": self.promotions,
            "demotions": self.demotions,
            "bypassed": self.bypasses.total(),
            "bypass_reasons": dict(self.bypasses),
            "pinned": self.pinned,
            "promised": self.promised,
            "high_water": self.high_water,
            "low_water": self.low_water,
            "written_today": self.budget.written,
            "write_budget_per_day": self.budget.per_day,
            "state": self.health.state,
            "reason": self.health.reason,
            "policy": self.config.policy,
            "verify": self.config.verify,
            "passthrough": why is None,
            "passthrough_reason": why,
        }
