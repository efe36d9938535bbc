"""Evict the least often used since it came, the least recently used of several. O(1).

Good for popularity that does not change; what was hot long ago never leaves by itself.
"""

from __future__ import annotations

from tiercache.policy import Policy
from tiercache_policies.queues import Queues

#: Uses that are told apart; beyond it items count as equally popular.
COUNT_MAX = 4095


class Lfu(Policy):
    """One queue for every number of uses."""

    __slots__ = ("_least", "_queues")

    def __init__(self, capacity: int) -> None:
        self._queues = Queues(COUNT_MAX + 1)
        self._least = 1  # no queue before it holds anybody

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """Used once."""
        if item in self._queues:
            self._queues.resize(item, size)
        else:
            self._queues.append(1, item, size)
            self._least = 1

    def access(self, item: int, now: float) -> None:
        """Used once more."""
        count = self._queues.queue_of(item)
        if count > 0:
            self._queues.move(item, min(count + 1, COUNT_MAX))

    def victim(self, now: float) -> int | None:
        """The oldest of the least popular."""
        if not len(self._queues):
            return None
        while (oldest := self._queues.oldest(self._least)) is None:
            self._least += 1
        return oldest

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """Forget it and how often it was used."""
        self._queues.remove(item)

    def score(self, item: int, now: float) -> float:
        """How often it was used."""
        return max(0, self._queues.queue_of(item))

    def check(self) -> None:
        """Nobody waits before the least popular queue."""
        self._queues.check()
        assert not any(self._queues.counts[: self._least]), "somebody is less popular"
