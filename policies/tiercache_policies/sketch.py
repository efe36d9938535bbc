"""How often items were used lately, in a few bits each, whether they are resident or not."""

from __future__ import annotations

#: Odd 64-bit multipliers, one per row (Knuth's multiplicative hashing).
_ROWS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)

_MASK = (1 << 64) - 1
_COUNT_MAX = 15
_WIDTH_MIN = 1 << 10
_WIDTH_MAX = 1 << 26

#: Uses per counter of a row after which all are halved, so that popularity ages.
_SAMPLE = 10

_HALVED = bytes(value >> 1 for value in range(256))


class Sketch:
    """A count-min sketch with saturating counters (Cormode and Muthukrishnan, 2005).

    It may count too many, never too few since the last halving. It grows with the number of items
    expected, up to 64 Mi counters per row.
    """

    __slots__ = ("_additions", "_rows", "_width")

    def __init__(self) -> None:
        self._width = _WIDTH_MIN
        self._rows = [bytearray(self._width) for _ in _ROWS]
        self._additions = 0

    def expect(self, items: int) -> None:
        """Have at least a counter for each of *items*: twice the width, the same counts."""
        while items > self._width and self._width < _WIDTH_MAX:
            self._width *= 2
            self._rows = [row + row for row in self._rows]

    def add(self, item: int) -> None:
        """*item* was used."""
        mask = self._width - 1
        for row, factor in zip(self._rows, _ROWS, strict=True):
            place = ((item * factor & _MASK) >> 32) & mask
            if row[place] < _COUNT_MAX:
                row[place] += 1
        self._additions += 1
        if self._additions >= _SAMPLE * self._width:
            self._additions //= 2
            self._rows = [row.translate(_HALVED) for row in self._rows]

    def estimate(self, item: int) -> int:
        """How often *item* was used lately, 15 at most."""
        mask = self._width - 1
        return min(
            row[((item * factor & _MASK) >> 32) & mask]
            for row, factor in zip(self._rows, _ROWS, strict=True)
        )
