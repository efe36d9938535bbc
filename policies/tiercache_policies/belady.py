"""Evict who is needed last, for an order that is known. O(log n).

The optimum (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966) for
items of one size. By default a newcomer that is needed later than everybody here is not let in at
all, which can only help where bypassing is possible.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import ClassVar

from tiercache.policy import Param, Policy

_NEVER = 1 << 62


class Belady(Policy):
    """Uses of every item still to come, and residents by their next one.

    It takes memory for the whole order: about 40 bytes per use.
    """

    __slots__ = ("_bypass", "_heap", "_next", "_uses", "_wanted")

    params: ClassVar = {"bypass": Param(1, 0, 1, "1: who is needed last of all is not let in")}

    def __init__(self, capacity: int, future: Iterable[int] = (), bypass: int = 1) -> None:
        self._bypass = bool(bypass)
        self._uses: defaultdict[int, deque[int]] = defaultdict(deque)
        self._next: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []  # (-next use, item), with outdated entries
        self._wanted = _NEVER
        self.foresee(future)

    def foresee(self, future: Iterable[int]) -> None:
        """Replace the order: items in the order of their uses from now on."""
        self._uses.clear()
        for position, item in enumerate(future):
            self._uses[item].append(position)
        for item in self._next:
            self._next[item] = self._upcoming(item)
        self._rebuild()

    def _upcoming(self, item: int) -> int:
        uses = self._uses.get(item)
        return uses[0] if uses else _NEVER

    def _used(self, item: int) -> int:
        """Strike one use of *item* off; when the next one is."""
        uses = self._uses.get(item)
        if not uses:
            return _NEVER
        uses.popleft()
        if not uses:
            del self._uses[item]
            return _NEVER
        return uses[0]

    def wants(self, item: int, size: int, group: int, now: float) -> bool:
        """Everybody; who would be the victim at once is told by `victim`."""
        self._wanted = self._used(item)
        return True

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """Needed next when the order says so."""
        self._put(item, self._upcoming(item))

    def access(self, item: int, now: float) -> None:
        """One use less is to come."""
        if item in self._next:
            self._put(item, self._used(item))

    def _put(self, item: int, upcoming: int) -> None:
        self._next[item] = upcoming
        heapq.heappush(self._heap, (-upcoming, item))
        if len(self._heap) > 2 * len(self._next) + 64:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(-upcoming, item) for item, upcoming in self._next.items()]
        heapq.heapify(self._heap)

    def victim(self, now: float) -> int | None:
        """Who is needed last; None when that is the newcomer."""
        while self._heap:
            negative, item = self._heap[0]
            if self._next.get(item) == -negative:
                return None if self._bypass and -negative <= self._wanted else item
            heapq.heappop(self._heap)
        return None

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """Its heap entry is dropped when it comes up."""
        self._next.pop(item, None)

    def score(self, item: int, now: float) -> float:
        """The sooner the better."""
        return -float(self._next.get(item, _NEVER))

    def check(self) -> None:
        """Every resident has an entry that is up to date."""
        entries = set(self._heap)
        assert all((-upcoming, item) in entries for item, upcoming in self._next.items())
