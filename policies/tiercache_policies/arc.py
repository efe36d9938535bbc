"""Two LRU queues, for items used once and more often, whose sizes follow their ghosts. O(1).

ARC (Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003), in bytes:
a return from the ghosts of one queue makes that queue larger. On shuffled epochs it adapts towards
LRU, which is wrong there.
"""

from __future__ import annotations

from tiercache.policy import Policy
from tiercache_policies.queues import Queues

_ONCE, _OFTEN, _GHOST_ONCE, _GHOST_OFTEN = range(4)


class Arc(Policy):
    """T1, T2, B1 and B2 of the paper; `_target` is its p, the bytes T1 should have."""

    __slots__ = ("_capacity", "_queues", "_return", "_target")

    def __init__(self, capacity: int) -> None:
        self._queues = Queues(4)
        self._capacity = capacity
        self._target = 0.0
        self._return = -1  # the ghost queue the item last wanted was in

    def resize(self, capacity: int) -> None:
        """Shrink the memory of what left, and the target, with the tier."""
        self._capacity = capacity
        self._target = min(self._target, capacity)
        self._trim()

    def wants(self, item: int, size: int, group: int, now: float) -> bool:
        """Everybody who fits; a ghost says which queue was too small."""
        self._trim()
        nbytes = self._queues.nbytes
        self._return = queue = self._queues.queue_of(item)
        if queue == _GHOST_ONCE:
            step = size * max(1.0, nbytes[_GHOST_OFTEN] / nbytes[_GHOST_ONCE])
            self._target = min(float(self._capacity), self._target + step)
        elif queue == _GHOST_OFTEN:
            step = size * max(1.0, nbytes[_GHOST_ONCE] / nbytes[_GHOST_OFTEN])
            self._target = max(0.0, self._target - step)
        return size <= self._capacity

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """Newcomers were used once, ghosts more often."""
        queues = self._queues
        queue = queues.queue_of(item)
        if queue >= 0:
            queues.resize(item, size)
            if queue in (_GHOST_ONCE, _GHOST_OFTEN):
                queues.move(item, _OFTEN)
        else:
            queues.append(_ONCE, item, size)
        self._return = -1
        self._trim()

    def access(self, item: int, now: float) -> None:
        """Used more than once."""
        if self._queues.queue_of(item) in (_ONCE, _OFTEN):
            self._queues.move(item, _OFTEN)

    def victim(self, now: float) -> int | None:
        """REPLACE of the paper: the oldest of the queue that is over its target."""
        once = self._queues.nbytes[_ONCE]
        over = once > self._target or (self._return == _GHOST_OFTEN and once == self._target)
        queues = (_ONCE, _OFTEN) if once and over else (_OFTEN, _ONCE)
        first = self._queues.oldest(queues[0])
        return self._queues.oldest(queues[1]) if first is None else first

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """Remember who was evicted, and from where."""
        queue = self._queues.queue_of(item)
        if queue not in (_ONCE, _OFTEN):
            return
        if evicted:
            self._queues.move(item, _GHOST_ONCE if queue == _ONCE else _GHOST_OFTEN)
        else:
            self._queues.remove(item)

    def _trim(self) -> None:
        """T1 and B1 hold one capacity, all four hold two."""
        nbytes = self._queues.nbytes
        self._queues.trim(_GHOST_ONCE, max(0, self._capacity - nbytes[_ONCE]))
        others = nbytes[_ONCE] + nbytes[_GHOST_ONCE] + nbytes[_OFTEN]
        self._queues.trim(_GHOST_OFTEN, max(0, 2 * self._capacity - others))

    def score(self, item: int, now: float) -> float:
        """2 when used more than once, 1 when used once."""
        return {_ONCE: 1.0, _OFTEN: 2.0}.get(self._queues.queue_of(item), 0.0)

    def check(self) -> None:
        """The target is a number of bytes of this tier."""
        self._queues.check()
        assert 0 <= self._target <= self._capacity
