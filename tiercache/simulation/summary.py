"""What a trace is about, in figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiercache.simulation.replay import Access


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a whole trace.

    `footprint` is what a cache must hold to keep everything, in bytes; `nbytes` what was used in
    all; `once` the objects used a single time. `begin` and `end` are times in seconds.
    """

    uses: int
    nbytes: int
    objects: int
    footprint: int
    once: int
    groups: int
    begin: float
    end: float

    @property
    def repeats(self) -> int:
        """Uses of what had been used before: all that any cache can hit."""
        return self.uses - self.objects


def summarize(accesses: Iterable[Access]) -> Summary:
    """The figures of *accesses*; memory grows with the number of objects."""
    sizes: dict[int, int] = {}
    counts: dict[int, int] = {}
    groups: set[int] = set()
    uses = nbytes = 0
    begin = end = 0.0
    for end, item, size, group in accesses:
        begin = begin if uses else end
        uses += 1
        nbytes += size
        sizes[item] = size
        counts[item] = counts.get(item, 0) + 1
        groups.add(group)
    once = sum(count == 1 for count in counts.values())
    footprint = sum(sizes.values())
    return Summary(uses, nbytes, len(sizes), footprint, once, len(groups), begin, end)
