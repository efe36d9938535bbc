"""One policy, one tier, a sequence of uses: what the daemon would have hit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tiercache.policy import EvictionPolicy


class Access(NamedTuple):
    """One use of an item: seconds, number, bytes, dataset."""

    time: float
    item: int
    size: int = 1
    group: int = 0


@dataclass(slots=True)
class Counts:
    """What became of the uses. `written` counts bytes put into the tier."""

    uses: int = 0
    hits: int = 0
    nbytes: int = 0
    hit_bytes: int = 0
    bypasses: int = 0
    evictions: int = 0
    written: int = 0

    @property
    def hit_ratio(self) -> float:
        """Hits per use, 0 without any use."""
        return self.hits / self.uses if self.uses else 0.0

    @property
    def byte_hit_ratio(self) -> float:
        """Bytes hit per byte used, 0 without any use."""
        return self.hit_bytes / self.nbytes if self.nbytes else 0.0


class Replay:
    """Drives *policy* as the daemon does; *counts* may be looked at, or replaced, at any time."""

    def __init__(self, policy: EvictionPolicy, capacity: int) -> None:
        self.policy = policy
        self.capacity = capacity
        self.resident: dict[int, int] = {}
        self.used = 0
        self.counts = Counts()

    def use(self, access: Access) -> bool:
        """Whether *access* hit."""
        counts = self.counts
        counts.uses += 1
        counts.nbytes += access.size
        if access.item in self.resident:
            counts.hits += 1
            counts.hit_bytes += access.size
            self.policy.access(access.item, access.time)
            return True
        if self._make_room(access):
            self.policy.admit(access.item, access.size, access.group, access.time)
            self.resident[access.item] = access.size
            self.used += access.size
            counts.written += access.size
        else:
            counts.bypasses += 1
        return False

    def _make_room(self, access: Access) -> bool:
        wanted = self.policy.wants(access.item, access.size, access.group, access.time)
        if not wanted or access.size > self.capacity:
            return False
        while self.used + access.size > self.capacity:
            victim = self.policy.victim(access.time)
            if victim is None:
                return False
            self.policy.remove(victim, evicted=True)
            self.used -= self.resident.pop(victim)
            self.counts.evictions += 1
        return True


def replay(policy: EvictionPolicy, accesses: Iterable[Access], capacity: int) -> Counts:
    """What *policy* makes of *accesses* in a tier of *capacity* bytes that begins empty."""
    simulation = Replay(policy, capacity)
    use = simulation.use
    for access in accesses:
        use(access)
    return simulation.counts
