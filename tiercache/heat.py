"""How often things are used: an exponentially weighted count that forgets. Pure.

Each use counts 1 and fades to a half within the half-life, so something used r times a second
settles at `r * half_life / ln 2`. This is the file heat of IBM Storage Scale with a decay that is
continuous instead of one step per period.

One number per item is kept: the logarithm of its count as of time 0, in which two items compare
without knowing the time, and which nothing has to age:

    score = log2(sum of 2 ** (t / half_life))        over the times t of all uses
    count = 2 ** (score - now / half_life)

What counts as a use is up to the caller. A mount counts opens: an open is seen by the daemon even
when every read that follows is served by the kernel, from the page cache or through passthrough, so
the three ways of reading weigh the same. An object that is opened once and read many times through
one descriptor counts once; so does one whose readers share a descriptor.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Iterator


class Heat:
    """Scores of at most *limit* items; the one not used for the longest time is forgotten first.

    Times are seconds on any clock that does not start anew, *half_life_s* > 0.
    """

    __slots__ = ("_half_life_s", "_limit", "_scores")

    def __init__(self, half_life_s: float, limit: int) -> None:
        self._half_life_s = half_life_s
        self._limit = limit
        self._scores: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._scores)

    def use(self, item: int, now: float, times: int = 1) -> int | None:
        """*item* was used, *times* at once; returns who was forgotten for it, if anybody."""
        return self.add(item, now / self._half_life_s + math.log2(times))

    def add(self, item: int, score: float) -> int | None:
        """Add uses whose score is known, as of one kept by an earlier process."""
        known = self._scores.pop(item, None)
        self._scores[item] = score if known is None else _sum(known, score)
        if len(self._scores) > self._limit:
            return self._scores.popitem(last=False)[0]
        return None

    def set_half_life(self, half_life_s: float, now: float) -> None:
        """Forget at another pace: what everybody counts at *now* stays. O(items)."""
        shift = now / half_life_s - now / self._half_life_s
        self._half_life_s = half_life_s
        for item, score in self._scores.items():
            self._scores[item] = score + shift

    def count(self, item: int, now: float) -> float:
        """Uses of *item*, each weighted by its age; 0 for one that is not known."""
        score = self._scores.get(item)
        return 0.0 if score is None else 2.0 ** min(score - now / self._half_life_s, 1000.0)

    def score(self, item: int) -> float:
        """What orders items whatever the time; minus infinity for one that is not known."""
        return self._scores.get(item, -math.inf)

    def items(self) -> Iterator[tuple[int, float]]:
        """Every item with its score, the one used last at the end."""
        return iter(self._scores.items())


def _sum(one: float, other: float) -> float:
    """log2(2 ** one + 2 ** other), without leaving the range of floats."""
    high, low = max(one, other), min(one, other)
    return high + math.log2(1.0 + 2.0 ** (low - high))


def group_name(key: bytes, depth: int) -> bytes:
    """The dataset of *key*: its directory, but no more than *depth* components of it."""
    directory, _, _name = key.rpartition(b"/")
    return b"/".join(directory.split(b"/")[:depth])


def group_number(name: bytes) -> int:
    """A number for a dataset that is the same in every process: 63 bits of a digest of *name*."""
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1
