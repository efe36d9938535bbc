"""Evict the less recently used of two that were drawn by lot. O(1).

What JuiceFS does by default. Close to LRU where LRU is right, and not lost on repeated scans.
"""

from __future__ import annotations

from array import array
from random import Random
from typing import ClassVar

from tiercache.policy import Param, Policy


class TwoRandom(Policy):
    """A dense list to draw from."""

    __slots__ = ("_drawn", "_items", "_place", "_random", "_used")

    params: ClassVar = {"seed": Param(0, 0, 2**31, "where the lots begin")}

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self._random = Random(seed)
        self._items = array("q")
        self._used = array("d")
        self._place: dict[int, int] = {}
        self._drawn: int | None = None  # the victim until something changes

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """Used now."""
        if item in self._place:
            return
        self._place[item] = len(self._items)
        self._items.append(item)
        self._used.append(now)
        self._drawn = None

    def access(self, item: int, now: float) -> None:
        """Used now."""
        place = self._place.get(item)
        if place is not None:
            self._used[place] = now
            self._drawn = None

    def victim(self, now: float) -> int | None:
        """The loser of two."""
        if self._drawn is None and self._items:
            draw, count = self._random.random, len(self._items)
            first, second = int(draw() * count), int(draw() * count)
            self._drawn = self._items[first if self._used[first] <= self._used[second] else second]
        return self._drawn

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """Fill its place with the last."""
        place = self._place.pop(item, None)
        if place is None:
            return
        last, used = self._items.pop(), self._used.pop()
        if last != item:
            self._items[place], self._used[place] = last, used
            self._place[last] = place
        self._drawn = None

    def score(self, item: int, now: float) -> float:
        """When it was last used."""
        place = self._place.get(item)
        return float("-inf") if place is None else self._used[place]

    def check(self) -> None:
        """Every item is where its place says."""
        assert len(self._items) == len(self._used) == len(self._place)
        assert all(self._items[place] == item for item, place in self._place.items())
