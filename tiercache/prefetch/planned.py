"""Eviction by a plan: who is needed last leaves first (Belady 1966). O(log n) per use.

While there is a plan it decides among the files that it mentions: those that it never uses again
go first, then the one whose next use is furthest away; a newcomer that is needed later than all of
them is not let in. Between these and the files that the plan does not mention, and among the
latter, the configured policy decides: it knows which of two datasets is worth more.

The next use of a resident changes when it is read and when the readers leave it behind. The first
is told (`moved`) and looked at when somebody has to go, the second is found by a heap of the next
uses, soonest first.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from tiercache.policy import EvictionPolicy
from tiercache.prefetch.plan import NEVER


class Future(Protocol):
    """What is known of reads to come."""

    @property
    def active(self) -> bool:
        """Whether anything is known."""

    @property
    def position(self) -> int:
        """The place that the readers have reached."""

    def number(self, ino: int) -> int | None:
        """Under which number *ino* can be asked for; None: nothing is known of it."""

    def next_place(self, number: int) -> int:
        """Where that is read next, at or after the position, or NEVER."""

    def needed(self, ino: int, number: int) -> int:
        """As `next_place`; below 0 while it is being read."""


class Planned:
    """An `EvictionPolicy` over another one: about 300 bytes per resident that the plan mentions."""

    __slots__ = (
        "_first",
        "_future",
        "_last",
        "_moved",
        "_newcomer",
        "_numbers",
        "_places",
        "_policy",
    )

    def __init__(self, policy: EvictionPolicy, future: Future) -> None:
        self._policy = policy
        self._future = future
        self.forget()

    def forget(self) -> None:
        """There is another plan, or none any more."""
        self._numbers: dict[int, int] = {}  # residents that the plan mentions
        self._places: dict[int, int] = {}  # where each of them is needed next
        self._last: list[tuple[int, int]] = []  # (-place, item), with outdated entries
        self._first: list[tuple[int, int]] = []  # (place, item), likewise
        self._moved: set[int] = set()
        self._newcomer: int | None = None  # where the item last wanted is needed next

    # -- residents -------------------------------------------------------------------------------

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """Of use to the plan perhaps."""
        self._policy.admit(item, size, group, now)
        self.consider(item)

    def consider(self, item: int) -> None:
        """*item*, which the policy knows to be resident, may be one of the plan's."""
        if item in self._numbers or not self._future.active:
            return
        number = self._future.number(item)
        if number is not None:
            self._numbers[item] = number
            self._put(item)

    def moved(self, item: int) -> None:
        """The next use of *item* is another one now."""
        if item in self._numbers:
            self._moved.add(item)

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """Its entries are dropped when they come up."""
        known = self._numbers.pop(item, None) is not None
        self._places.pop(item, None)
        self._moved.discard(item)
        self._policy.remove(item, evicted=evicted and not (known and self._future.active))

    def _put(self, item: int) -> None:
        place = self._future.needed(item, self._numbers[item])
        if self._places.get(item) == place:
            return
        self._places[item] = place
        heapq.heappush(self._last, (-place, item))
        if place >= 0:  # who is being read is told of by `moved`
            heapq.heappush(self._first, (place, item))
        if len(self._last) + len(self._first) > 4 * len(self._places) + 64:
            self._rebuild()

    def _rebuild(self) -> None:
        self._last = [(-place, item) for item, place in self._places.items()]
        self._first = [(place, item) for item, place in self._places.items() if place >= 0]
        heapq.heapify(self._last)
        heapq.heapify(self._first)

    # -- who leaves ------------------------------------------------------------------------------

    def wants(self, item: int, size: int, group: int, now: float) -> bool:
        """Whoever the plan uses again, and whom the policy wants."""
        welcome = self._policy.wants(item, size, group, now)
        number = self._future.number(item) if self._future.active else None
        self._newcomer = None if number is None else self._future.next_place(number)
        return welcome or self._newcomer not in (None, NEVER)

    def victim(self, now: float) -> int | None:
        """Who is needed last, unless that is the newcomer."""
        if not self._future.active:
            return self._policy.victim(now)
        if self._newcomer == NEVER:
            return None
        last = self._needed_last()
        if last is not None and self._places[last] == NEVER:
            return last
        named = self._policy.victim(now)
        if last is None or (named is not None and named not in self._numbers):
            return named
        if self._newcomer is None:
            return None if named is None else last
        return last if self._places[last] > self._newcomer else None

    def _needed_last(self) -> int | None:
        self._catch_up()
        while self._last:
            negative, item = self._last[0]
            if self._places.get(item) == -negative:
                return item
            heapq.heappop(self._last)
        return None

    def _catch_up(self) -> None:
        """Look again at those that were read, and at those that the readers have passed."""
        moved, self._moved = self._moved, set()
        for item in moved:
            self._put(item)
        position = self._future.position
        while self._first and self._first[0][0] < position:
            place, item = heapq.heappop(self._first)
            if self._places.get(item) == place:
                self._put(item)

    # -- all else --------------------------------------------------------------------------------

    def resize(self, capacity: int) -> None:
        """As the policy."""
        self._policy.resize(capacity)

    def access(self, item: int, now: float) -> None:
        """As the policy; the plan hears of it by itself."""
        self._policy.access(item, now)

    def score(self, item: int, now: float) -> float:
        """As the policy."""
        return self._policy.score(item, now)

    def check(self) -> None:
        """Everybody known has a place, and entries that say so."""
        self._policy.check()
        assert self._places.keys() == self._numbers.keys()
        assert self._moved <= self._numbers.keys()
        last, first = set(self._last), set(self._first)
        for item, place in self._places.items():
            assert (-place, item) in last
            assert place < 0 or (place, item) in first
