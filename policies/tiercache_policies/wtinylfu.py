"""A small LRU window, and a main part that only the more popular enter. O(1).

W-TinyLFU (Einziger, Friedman, Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM TOS
2017): who falls out of the window competes with the main part's own candidate by an estimate of how
often each was used lately, evicted or not. The main part is a segmented LRU.
"""

from __future__ import annotations

from typing import ClassVar

from tiercache.policy import Param, Policy
from tiercache_policies.queues import Queues
from tiercache_policies.sketch import Sketch

_WINDOW, _PROBATION, _PROTECTED = range(3)


class WTinyLfu(Policy):
    """Window, probation and protected queue."""

    __slots__ = (
        "_capacity",
        "_protected_part",
        "_queues",
        "_sketch",
        "_window_bytes",
        "_window_part",
        "_winner",
    )

    params: ClassVar = {
        "window": Param(0.01, 0.001, 0.9, "part of the capacity where everybody may enter"),
        "protected": Param(0.80, 0.0, 0.99, "part of the rest for items that were used again"),
    }

    def __init__(self, capacity: int, window: float = 0.01, protected: float = 0.80) -> None:
        self._queues = Queues(3)
        self._sketch = Sketch()
        self._window_part, self._protected_part = window, protected
        self._winner: int | None = None  # takes the place of the victim it beat
        self.resize(capacity)

    def resize(self, capacity: int) -> None:
        """Divide *capacity* anew; the next victims follow."""
        self._capacity = capacity
        self._window_bytes = int(capacity * self._window_part)
        self._settle()

    def wants(self, item: int, size: int, group: int, now: float) -> bool:
        """Everybody who fits, into the window."""
        self._sketch.add(item)
        return size <= self._capacity

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """Into the window; while there is room nobody needs to compete."""
        if item in self._queues:
            self._queues.resize(item, size)
            return
        self._queues.append(_WINDOW, item, size)
        self._sketch.expect(len(self._queues))
        self._settle()

    def access(self, item: int, now: float) -> None:
        """Count it; who is used on probation becomes protected."""
        queues = self._queues
        queue = queues.queue_of(item)
        if queue < 0:
            return
        self._sketch.add(item)
        queues.move(item, _WINDOW if queue == _WINDOW else _PROTECTED)
        self._settle()

    def victim(self, now: float) -> int | None:
        """The loser between the oldest of the window and that of the main part."""
        queues = self._queues
        self._winner = None
        candidate = queues.oldest(_WINDOW)
        main = queues.oldest(_PROBATION)
        if main is None:
            main = queues.oldest(_PROTECTED)
        if main is None or candidate is None:
            return candidate if main is None else main
        if queues.nbytes[_WINDOW] < self._window_bytes:
            return main
        if self._sketch.estimate(candidate) <= self._sketch.estimate(main):
            return candidate
        self._winner = candidate
        return main

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """Who won against it moves up."""
        self._queues.remove(item)
        winner, self._winner = self._winner, None
        if evicted and winner is not None and self._queues.queue_of(winner) == _WINDOW:
            self._queues.move(winner, _PROBATION)

    def _settle(self) -> None:
        """Move on who is over the bounds of its queue, as far as the next has room."""
        queues = self._queues
        main_bytes = self._capacity - self._window_bytes
        while queues.nbytes[_PROTECTED] > main_bytes * self._protected_part:
            oldest = queues.oldest(_PROTECTED)
            assert oldest is not None
            queues.move(oldest, _PROBATION)
        while queues.nbytes[_WINDOW] > self._window_bytes:
            oldest = queues.oldest(_WINDOW)
            assert oldest is not None
            used = queues.nbytes[_PROBATION] + queues.nbytes[_PROTECTED]
            if used + queues.size(oldest) > main_bytes:
                return
            queues.move(oldest, _PROBATION)

    def score(self, item: int, now: float) -> float:
        """How often it was used lately."""
        return float(self._sketch.estimate(item))

    def check(self) -> None:
        """Re-derive the queues."""
        self._queues.check()
