"""Ranges that are being read piece by piece, and those that the kernel only brushes. Pure.

A reader asks for a range in requests of 128 KiB to 1 MiB. The first one finds the entry of the
plan, and the others must not be taken for the same range of the next epoch. The kernel's readahead
goes on behind the range, into another that may be due much later: nobody is there yet.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from tiercache.types import MIB

#: So many at a time, one per reader; more would each be looked at on every read.
_MAX = 32

#: Somebody who read this much of a range, or most of it, is there; the kernel reads less ahead.
_MEANT = 8 * MIB

#: So many places are brushed in a row by readahead at most: fewer readers than this take turns.
_BRUSHED_MAX = 32


@dataclass(slots=True)
class Range:
    """Bytes [start, end) of a file, *left* of them unread; *believed*: its reader is the plan's."""

    number: int
    start: int
    end: int
    left: int
    believed: bool


class Underway:
    """Ranges of files, by number; who was begun first is forgotten first."""

    def __init__(self) -> None:
        self._ranges: list[Range] = []

    def begin(self, number: int, span: tuple[int, int], nbytes: int, *, believed: bool) -> None:
        """*nbytes* of the range *span* were read, more may follow."""
        start, end = span
        if nbytes < end - start:
            self._ranges.append(Range(number, start, end, end - start - nbytes, believed))
            del self._ranges[:-_MAX]

    def goes_on(self, number: int, start: int, end: int) -> Range | None:
        """The range that bytes [start, end) belong to, if one was begun and is not over."""
        for found in self._ranges:
            if found.number == number and found.start < end and start < found.end:
                found.left -= min(end, found.end) - max(start, found.start)
                if found.left <= 0:
                    self._ranges.remove(found)
                return found
        return None


class Brushed:
    """Places where nobody is expected, and how much was read there; *limit* of them are kept.

    Who reads ahead of a plan for long is no readahead: after some in a row all are believed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._read: OrderedDict[int, int] = OrderedDict()
        self._in_row = 0

    def expected(self) -> None:
        """Somebody reads what is due."""
        self._in_row = 0

    def read(self, place: int, nbytes: int, size: int) -> int | None:
        """*nbytes* more were read at *place*, which has *size*: how many by now, None if few."""
        self._in_row += place not in self._read
        nbytes += self._read.pop(place, 0)
        if self._in_row > _BRUSHED_MAX or nbytes >= min(_MEANT, 3 * size // 4):
            return nbytes
        self._read[place] = nbytes
        if len(self._read) > self._limit:
            self._read.popitem(last=False)
        return None
