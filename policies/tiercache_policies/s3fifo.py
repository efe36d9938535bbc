"""Three queues: newcomers prove themselves in a small one, or leave soon. O(1) amortised.

S3-FIFO (Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023): who is used
again in the small queue moves to the main one, who is not leaves and is remembered for a while;
who comes back while remembered enters the main queue at once. Scans and files that are read once
never reach the main queue. As in libCacheSim, what arrives while the small queue is full and
nothing was evicted yet goes to the main queue.
"""

from __future__ import annotations

from typing import ClassVar

from tiercache.policy import Param, Policy
from tiercache_policies.queues import Queues

#: Queues it takes: small, main and ghosts, in this order.
QUEUES = 3

#: A use counts at most this often.
USES_MAX = 3

#: Items wanted from the ghost queue that were not admitted yet.
_RETURNING_MAX = 64


class S3Fifo(Policy):
    """Small, main and ghost queue; the tag of an item counts its uses."""

    __slots__ = (
        "_capacity",
        "_ghost",
        "_ghost_bytes",
        "_ghost_part",
        "_main",
        "_queues",
        "_returning",
        "_small",
        "_small_bytes",
        "_small_part",
        "_threshold",
        "_turned",
    )

    params: ClassVar = {
        "small": Param(0.10, 0.01, 0.9, "part of the capacity where newcomers prove themselves"),
        "ghost": Param(0.90, 0.0, 4.0, "bytes of evicted items remembered, over the capacity"),
        "threshold": Param(2, 1, 3, "uses after which a newcomer stays"),
    }

    def __init__(
        self,
        capacity: int,
        small: float = 0.10,
        ghost: float = 0.90,
        threshold: int = 2,
        *,
        queues: Queues | None = None,
        first: int = 0,
    ) -> None:
        """Of *queues* shared with others it uses the three from *first*."""
        self._queues = Queues(QUEUES) if queues is None else queues
        self._small, self._main, self._ghost = range(first, first + QUEUES)
        self._small_part, self._ghost_part, self._threshold = small, ghost, threshold
        self._returning: dict[int, None] = {}
        self._turned = False  # something was evicted
        self.resize(capacity)

    def resize(self, capacity: int) -> None:
        """Divide *capacity* anew; the next victims follow."""
        self._capacity = capacity
        self._small_bytes = int(capacity * self._small_part)
        self._ghost_bytes = int(capacity * self._ghost_part)
        self._queues.trim(self._ghost, self._ghost_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes that are resident."""
        return self._queues.nbytes[self._small] + self._queues.nbytes[self._main]

    @property
    def count(self) -> int:
        """Items that are resident."""
        return self._queues.counts[self._small] + self._queues.counts[self._main]

    def wants(self, item: int, size: int, group: int, now: float) -> bool:
        """Everybody who fits; a ghost comes back to the main queue."""
        if self._queues.queue_of(item) == self._ghost:
            self._queues.remove(item)
            if len(self._returning) >= _RETURNING_MAX:
                del self._returning[next(iter(self._returning))]
            self._returning[item] = None
        return size <= self._capacity

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """Into the small queue, unless there is a reason for the main one."""
        queues = self._queues
        if queues.queue_of(item) in (self._small, self._main):
            queues.resize(item, size)
            return
        queues.remove(item)
        returns = item in self._returning
        if returns:
            del self._returning[item]
        filling = not self._turned and queues.nbytes[self._small] >= self._small_bytes
        main = returns or filling or size > self._small_bytes
        queues.append(self._main if main else self._small, item, size)

    def access(self, item: int, now: float) -> None:
        """Count the use."""
        self._queues.bump(item, USES_MAX)

    def victim(self, now: float) -> int | None:
        """Who has not proven itself, or was not used since its last turn in the main queue."""
        queues = self._queues
        while queues.counts[self._small] or queues.counts[self._main]:
            main_full = queues.nbytes[self._main] > self._capacity - self._small_bytes
            if main_full or not queues.counts[self._small]:
                return self._turn_main()
            found = self._drain_small()
            if found is not None:
                return found
        return None

    def _turn_main(self) -> int:
        while True:
            oldest = self._queues.oldest(self._main)
            assert oldest is not None
            uses = self._queues.tag(oldest)
            if not uses:
                return oldest
            self._queues.set_tag(oldest, uses - 1)
            self._queues.move(oldest, self._main)

    def _drain_small(self) -> int | None:
        while (oldest := self._queues.oldest(self._small)) is not None:
            if self._queues.tag(oldest) < self._threshold:
                return oldest
            self._queues.set_tag(oldest, 0)
            self._queues.move(oldest, self._main)
        return None

    @property
    def ghosts(self) -> int:
        """The queue of those that are remembered, among all queues."""
        return self._ghost

    @property
    def ghost_count(self) -> int:
        """Items that are remembered."""
        return self._queues.counts[self._ghost]

    def clear(self) -> None:
        """Forget everybody."""
        for queue in (self._small, self._main, self._ghost):
            self._queues.trim(queue, -1)

    def newest(self) -> int | None:
        """Who came last: the least loss where nothing is known of the future."""
        newest = self._queues.newest(self._small)
        return self._queues.newest(self._main) if newest is None else newest

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """Remember who was evicted without having proven itself."""
        queue = self._queues.queue_of(item)
        if evicted and queue == self._small and self._queues.size(item) <= self._ghost_bytes:
            self._queues.move(item, self._ghost)
            self._queues.trim(self._ghost, self._ghost_bytes)
        elif queue != self._ghost:
            self._queues.remove(item)
        self._turned |= evicted

    def score(self, item: int, now: float) -> float:
        """Uses that still protect it, more in the main queue."""
        queue = self._queues.queue_of(item)
        if queue == self._main:
            return 1.0 + self._queues.tag(item)
        return 0.0 if queue == self._small else -1.0

    def check(self) -> None:
        """The ghosts are within their bound."""
        self._queues.check()
        assert self._queues.nbytes[self._ghost] <= self._ghost_bytes
        assert len(self._returning) <= _RETURNING_MAX
