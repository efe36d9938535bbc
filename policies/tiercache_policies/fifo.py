"""Evict who came first. O(1).

The yardstick others are measured by; on shuffled epochs a little better than LRU.
"""

from __future__ import annotations

from collections import OrderedDict

from tiercache.policy import Policy


class Fifo(Policy):
    """Order of arrival."""

    __slots__ = ("_order",)

    def __init__(self, capacity: int) -> None:
        self._order: OrderedDict[int, float] = OrderedDict()

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """Last in the queue, unless already in it."""
        self._order.setdefault(item, now)

    def access(self, item: int, now: float) -> None:
        """Being used does not help."""

    def victim(self, now: float) -> int | None:
        """The first."""
        return next(iter(self._order), None)

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """Forget it."""
        self._order.pop(item, None)

    def score(self, item: int, now: float) -> float:
        """When it came."""
        return self._order.get(item, float("-inf"))
