"""Which way to evict suits a group: two miniature caches try it on a sample of its items."""

from __future__ import annotations

from tiercache_policies.s3fifo import S3Fifo

#: Uses of the sample before which nothing is judged.
_SEEN_MIN = 256


class Duel:
    """`pin` against `s3fifo`, each in a cache as small as the sample is.

    As in "set dueling" (Qureshi et al., ISCA 2007) and the miniature simulations of Waldspurger et
    al. (ATC 2017): what holds for a random sample of the items with the same part of the capacity
    holds for all of them.
    """

    __slots__ = (
        "_capacity",
        "_hits_pin",
        "_hits_s3",
        "_lead",
        "_pinned",
        "_pinned_bytes",
        "_resident",
        "_s3",
        "_seen",
        "churns",
    )

    def __init__(self, lead: float) -> None:
        self._lead = lead
        self._capacity = 0.0
        self._pinned: dict[int, int] = {}
        self._pinned_bytes = 0
        self._s3 = S3Fifo(0, threshold=1)
        self._resident: set[int] = set()  # of the second
        self._hits_pin = self._hits_s3 = 0.0
        self._seen = 0.0
        #: Whether evicting is better than keeping.
        self.churns = False

    def resize(self, nbytes: float) -> None:
        """The sample is worth *nbytes* of cache from now on."""
        if abs(nbytes - self._capacity) <= 0.02 * self._capacity:
            return  # not every newcomer is a change
        self._capacity = nbytes
        self._s3.resize(int(nbytes))
        while self._pinned_bytes > nbytes:
            self._pinned_bytes -= self._pinned.popitem()[1]  # the newest: the core stays

    def use(self, item: int, size: int, now: float) -> None:
        """An item of the sample was used."""
        kept, stayed = item in self._pinned, item in self._resident
        # Where both hit or both miss nothing can be learned.
        self._hits_pin += kept and not stayed
        self._hits_s3 += stayed and not kept
        if not kept and self._pinned_bytes + size <= self._capacity:
            self._pinned[item] = size
            self._pinned_bytes += size
        if stayed:
            self._s3.access(item, now)
        else:
            self._enter(item, size, now)
        self._judge()

    def _enter(self, item: int, size: int, now: float) -> None:
        if not self._s3.wants(item, size, 0, now):
            return
        while self._s3.nbytes + size > self._capacity:
            victim = self._s3.victim(now)
            if victim is None:
                return
            self._s3.remove(victim, evicted=True)
            self._resident.discard(victim)
        self._s3.admit(item, size, 0, now)
        self._resident.add(item)

    def _judge(self) -> None:
        """Compare, and let old hits fade once everybody had several turns.

        A lead counts when it is large enough to matter and too large for chance: three standard
        deviations of the number of uses that only one side hit.
        """
        self._seen += 1
        lead = self._hits_s3 - self._hits_pin
        large = self._seen >= _SEEN_MIN and abs(lead) > self._lead * self._seen
        if large and lead * lead > 9 * (self._hits_s3 + self._hits_pin):
            self.churns = lead > 0
        if self._seen >= max(2 * _SEEN_MIN, 8 * len(self._pinned)):
            self._hits_pin /= 2
            self._hits_s3 /= 2
            self._seen /= 2

    def check(self) -> None:
        """Re-derive the contents of both caches."""
        self._s3.check()
        assert self._pinned_bytes == sum(self._pinned.values()) <= max(self._capacity, 0)
