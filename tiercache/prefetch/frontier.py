"""How far somebody got in an order, and how much of what lies behind was really visited.

The same question for bytes of a file and for files of a directory. Visits come out of order: the
kernel sends its readahead in pieces, workers take turns. So a gap is first counted against the
visitor and made good when it is filled; who only ever skips (a stride, a random order) never gets
anywhere.
"""

from __future__ import annotations


class Frontier:
    """`position`: the furthest place visited. `run`: visits less gaps, within *bounds*."""

    __slots__ = ("holes", "position", "run")

    def __init__(self, position: int) -> None:
        self.position = position
        self.run = 0
        self.holes = 0

    def visit(self, start: int, size: int, bounds: tuple[int, int]) -> None:
        """Note a visit of [start, start + size); the bounds say how long the past counts."""
        end = start + size
        gap = start - self.position
        if gap > 0:
            self.holes += gap
            size -= gap
        elif gap:
            again = min(-gap, size)
            filled = min(again, self.holes)
            self.holes -= filled
            size += filled - again  # the part beyond, and what makes good for a gap ...
            size += filled  # ... that was counted against it
        low, high = bounds
        self.run = max(low, min(self.run + size, high))
        if end > self.position:
            self.position = end
