"""The default: the hotter dataset owns the bytes, and inside one nothing churns without gain.

Training reads whole datasets over and over. Between datasets the question is which one a byte of
the tier serves best: the one that is read most often per byte, its *heat density*. A newcomer
evicts from the dataset with the lowest density, if its own is clearly higher; the newest go first,
so that a stable core stays. Inside a dataset every item is read once per epoch as a rule, where
keeping is optimal and evicting only loses ("MinIO" cache of CoorDL, VLDB 2021); where popularity is
skewed a duel on a sample of the items finds that out, and then S3-FIFO decides. O(1) per use, plus
O(groups) when the tier is full.
"""

from __future__ import annotations

import math
from typing import ClassVar

from tiercache.policy import Param, Policy
from tiercache_policies.duel import Duel
from tiercache_policies.footprint import Footprint, mix
from tiercache_policies.queues import Queues
from tiercache_policies.s3fifo import QUEUES, USES_MAX, S3Fifo

#: Groups that are told apart at a time; the coldest makes room for another.
GROUPS_MAX = 1024

_HASHES = 1 << 64


class _Group:
    """One dataset: its residents, how hot it is and how large."""

    __slots__ = ("duel", "footprint", "heat", "residents", "touched")

    def __init__(self, residents: S3Fifo, lead: float, now: float) -> None:
        self.residents = residents
        self.footprint = Footprint()
        self.duel = Duel(lead)
        self.heat = 0.0  # bytes used, fading
        self.touched = now


class Adaptive(Policy):
    """Heat density between groups, a duel of `pin` and `s3fifo` inside one."""

    __slots__ = (
        "_asked",
        "_by_place",
        "_capacity",
        "_cold",
        "_groups",
        "_half_life",
        "_lead",
        "_margin",
        "_newcomer",
        "_queues",
        "_sample",
        "_sampled",
        "_step",
    )

    params: ClassVar = {
        "half_life": Param(21600, 1, 1e9, "seconds after which a use counts half"),
        "margin": Param(1.5, 1, 100, "how much hotter a dataset must be to take from another"),
        "sample": Param(0.0625, 0.001, 1, "part of the items that the duel is fought with"),
        "lead": Param(0.02, 0, 1, "hit ratio by which the other side must lead"),
    }

    def __init__(
        self,
        capacity: int,
        half_life: float = 21600,
        margin: float = 1.5,
        sample: float = 0.0625,
        lead: float = 0.02,
    ) -> None:
        self._capacity = capacity
        self._half_life, self._margin, self._lead = half_life, margin, lead
        self._step = half_life / 128  # heat fades in steps of half a percent
        self._sample, self._sampled = sample, int(sample * _HASHES)
        self._queues = Queues(QUEUES * GROUPS_MAX)
        self._groups: dict[int, _Group] = {}
        self._by_place: list[_Group | None] = [None] * GROUPS_MAX
        self._newcomer = 0  # the group of the item last wanted
        self._cold: _Group | None = None
        self._asked = 0

    def resize(self, capacity: int) -> None:
        """Only the driver needs to know."""
        self._capacity = capacity

    # -- uses ------------------------------------------------------------------------------------

    def wants(self, item: int, size: int, group: int, now: float) -> bool:
        """Everybody who fits; `victim` decides who may stay."""
        self._newcomer = group
        self._asked += 1
        if self._asked >= len(self._groups):  # looking at all of them costs O(1) per question
            self._asked, self._cold = 0, None
        own = self._groups.get(group) or self._begin(group, now)
        self._use(item, size, own, now)
        own.residents.wants(item, size, group, now)  # a ghost comes back
        return size <= self._capacity

    def access(self, item: int, now: float) -> None:
        """Count it for the item and for its dataset."""
        queue, size = self._queues.bump(item, USES_MAX)
        group = self._by_place[queue // QUEUES] if queue >= 0 else None
        if group is not None and queue != group.residents.ghosts:
            self._use(item, size, group, now)

    def _use(self, item: int, size: int, group: _Group, now: float) -> None:
        if now - group.touched > self._step:
            group.heat = self._faded(group, now)
            group.touched = now
        group.heat += size
        hashed = mix(item)
        footprint = group.footprint
        if hashed < footprint.limit:
            footprint.add(hashed, size)
        if hashed < self._sampled:
            group.duel.resize(group.residents.nbytes * self._sample)
            group.duel.use(item, size, now)

    def _begin(self, number: int, now: float) -> _Group:
        if len(self._groups) >= GROUPS_MAX:
            self._forget_coldest(now)
        place = self._by_place.index(None)
        residents = S3Fifo(0, ghost=1.0, threshold=1, queues=self._queues, first=QUEUES * place)
        found = _Group(residents, self._lead, now)
        self._groups[number] = self._by_place[place] = found
        return found

    def _forget_coldest(self, now: float) -> None:
        """Its residents are forgotten too: they are admitted anew when they are used."""
        number = min(self._groups, key=lambda n: self._density(self._groups[n], now))
        group = self._groups.pop(number)
        group.residents.clear()
        self._by_place[self._by_place.index(group)] = None
        self._cold = None

    def _faded(self, group: _Group, now: float) -> float:
        age = max(0.0, now - group.touched)
        return group.heat * math.exp2(-age / self._half_life)

    def _density(self, group: _Group, now: float) -> float:
        """Times per half-life that the whole dataset is used."""
        return self._faded(group, now) / group.footprint.nbytes()

    # -- residents -------------------------------------------------------------------------------

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """One resident more for its dataset."""
        found = self._group_of(item) or self._groups.get(group) or self._begin(group, now)
        found.residents.admit(item, size, group, now)
        found.residents.resize(found.residents.nbytes)

    def _group_of(self, item: int) -> _Group | None:
        """Whose resident *item* is."""
        queue = self._queues.queue_of(item)
        group = self._by_place[queue // QUEUES] if queue >= 0 else None
        return None if group is None or queue == group.residents.ghosts else group

    def victim(self, now: float) -> int | None:
        """Of the coldest dataset if that is clearly colder, else of the own one if that pays."""
        own = self._groups.get(self._newcomer) or self._begin(self._newcomer, now)
        coldest = self._coldest(now)
        if (
            coldest is not None
            and coldest is not own
            and self._density(own, now) > self._margin * self._density(coldest, now)
        ):
            return coldest.residents.newest()
        return own.residents.victim(now) if own.duel.churns else None

    def _coldest(self, now: float) -> _Group | None:
        if self._cold is None or not self._cold.residents.count:
            self._cold = min(
                (group for group in self._groups.values() if group.residents.count),
                key=lambda group: self._density(group, now),
                default=None,
            )
        return self._cold

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """One resident less for its dataset."""
        group = self._group_of(item)
        if group is not None:
            group.residents.remove(item, evicted=evicted and group.duel.churns)
            group.residents.resize(group.residents.nbytes)

    def score(self, item: int, now: float) -> float:
        """How hot its dataset is per byte."""
        group = self._group_of(item)
        return 0.0 if group is None else self._density(group, now)

    def check(self) -> None:
        """Every group has its own place, and nobody is where there is no group."""
        self._queues.check()
        for group in self._groups.values():
            assert sum(group is other for other in self._by_place) == 1
            group.duel.check()
        held = sum(
            group.residents.count + group.residents.ghost_count for group in self._groups.values()
        )
        assert held == len(self._queues)
