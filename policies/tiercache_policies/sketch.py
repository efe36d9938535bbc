"""How often items were used lately, in a few bits each, whether they are resident or not."""

from __future__ import annotations

#: Odd 64-bit multipliers (Knuth's multiplicative hashing). Two hashes make four places
#: (Kirsch and Mitzenmacher, "Less Hashing, Same Performance", 2006).
_FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F

_MASK = (1 << 64) - 1
_COUNT_MAX = 15
#: Rows of counters.
_ROWS = 4

_WIDTH_MIN = 1 << 12
_WIDTH_MAX = 1 << 26

#: Uses per counter of a row after which all are halved, so that popularity ages.
_SAMPLE = 8

_HALVED = bytes(value >> 1 for value in range(256))


class Sketch:
    """A count-min sketch with saturating counters (Cormode and Muthukrishnan, 2005).

    It may count too many, never too few since the last halving. It grows with the number of items
    expected, up to 64 Mi counters per row.
    """

    __slots__ = ("_additions", "_rows", "_width")

    def __init__(self) -> None:
        self._width = _WIDTH_MIN
        self._rows = [bytearray(self._width) for _ in range(_ROWS)]
        self._additions = 0

    def expect(self, items: int) -> None:
        """Have at least a counter for each of *items*: twice the width, the same counts."""
        while items > self._width and self._width < _WIDTH_MAX:
            self._width *= 2
            self._rows = [row + row for row in self._rows]

    def _places(self, item: int) -> tuple[int, int, int, int]:
        mask = self._width - 1
        first = (item * _FIRST & _MASK) >> 32
        second = (item * _SECOND & _MASK) >> 32 | 1
        return (
            first & mask,
            first + second & mask,
            first + 2 * second & mask,
            first + 3 * second & mask,
        )

    def add(self, item: int) -> None:
        """*item* was used."""
        a, b, c, d = self._places(item)
        row_a, row_b, row_c, row_d = self._rows
        if row_a[a] < _COUNT_MAX:
            row_a[a] += 1
        if row_b[b] < _COUNT_MAX:
            row_b[b] += 1
        if row_c[c] < _COUNT_MAX:
            row_c[c] += 1
        if row_d[d] < _COUNT_MAX:
            row_d[d] += 1
        self._additions += 1
        if self._additions >= _SAMPLE * self._width:
            self._additions //= 2
            self._rows = [row.translate(_HALVED) for row in self._rows]

    def estimate(self, item: int) -> int:
        """How often *item* was used lately, 15 at most."""
        a, b, c, d = self._places(item)
        row_a, row_b, row_c, row_d = self._rows
        return min(row_a[a], row_b[b], row_c[c], row_d[d])
