"""Ranges that are being read piece by piece.

A reader asks for a range in requests of 128 KiB to 1 MiB. The first one finds the entry of the
plan, and the others must not be taken for the same range of the next epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

#: So many at a time, one per reader; more would each be looked at on every read.
_MAX = 32


@dataclass(slots=True)
class _Range:
    number: int
    start: int
    end: int
    left: int


class Underway:
    """Ranges [start, end) of files, by number; who was begun first is forgotten first. Pure."""

    def __init__(self) -> None:
        self._ranges: list[_Range] = []

    def begin(self, number: int, span: tuple[int, int], nbytes: int) -> None:
        """*nbytes* of the range *span* were read, more may follow."""
        start, end = span
        if nbytes < end - start:
            self._ranges.append(_Range(number, start, end, end - start - nbytes))
            del self._ranges[:-_MAX]

    def goes_on(self, number: int, start: int, end: int) -> bool:
        """Whether bytes [start, end) belong to a range that was begun and is not over."""
        for found in self._ranges:
            if found.number == number and found.start < end and start < found.end:
                found.left -= min(end, found.end) - max(start, found.start)
                if found.left <= 0:
                    self._ranges.remove(found)
                return True
        return False
