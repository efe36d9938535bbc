"""How many bytes the items of a group have, seen or not seen again, in bounded memory."""

from __future__ import annotations

import heapq

_MASK = (1 << 64) - 1


def mix(item: int) -> int:
    """A 64-bit hash of *item*: two rounds of multiplying and folding."""
    x = item * 0x9E3779B97F4A7C15 & _MASK
    return (x ^ (x >> 32)) * 0xD6E8FEB86659FD93 & _MASK


class Footprint:
    """The items with the smallest hashes stand for all (bottom-k sketch; Bar-Yossef et al., 2002).

    Exact for up to *keep* items, off by about 1/sqrt(keep) beyond.
    """

    __slots__ = ("_heap", "_keep", "_nbytes", "_sizes", "limit")

    def __init__(self, keep: int = 1024) -> None:
        self._keep = keep
        self._heap: list[int] = []  # negated hashes: the largest first
        self._sizes: dict[int, int] = {}
        self._nbytes = 0
        #: Hashes from here on change nothing.
        self.limit = _MASK + 1

    def add(self, hashed: int, size: int) -> None:
        """An item of *size* bytes whose hash is *hashed* exists."""
        if hashed >= self.limit or hashed in self._sizes:
            return
        heapq.heappush(self._heap, -hashed)
        self._sizes[hashed] = size
        self._nbytes += size
        if len(self._heap) > self._keep:
            self._nbytes -= self._sizes.pop(-heapq.heappop(self._heap))
        if len(self._heap) == self._keep:
            self.limit = -self._heap[0]

    def nbytes(self) -> float:
        """Bytes of all items seen, at least 1."""
        if len(self._heap) < self._keep:
            return max(1.0, float(self._nbytes))
        # k - 1 items lie below the k-th smallest hash, so there are (k - 1) / hash of them in all.
        count = (self._keep - 1) * (_MASK / (1 - self._heap[0]))
        return max(1.0, count * self._nbytes / self._keep)
