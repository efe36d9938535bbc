"""One block of a trace file: some thousand uses as columns, compressed and checksummed.

A block knows nothing of the blocks around it, so a damaged one loses only its own uses, and whoever
writes needs memory for one block. Its layout is in docs/TRACES.md.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from tiercache.simulation.replay import Access

#: Uses in a block at most; what a writer holds in memory.
USES_MAX: Final = 4096

#: Largest encoded block: its content at most, incompressible.
_RAW_MAX: Final = 12 + USES_MAX * (4 + 2 + 8 + 8 + 2 + 8)
ENCODED_MAX: Final = _RAW_MAX + 1024

#: Largest item, size and group number.
NUMBER_MAX: Final = (1 << 64) - 1

#: Largest time: milliseconds since the epoch, year 10889.
TIME_MS_MAX: Final = 1 << 48

_MARK: Final = b"BLK1"
_HEAD: Final = struct.Struct("<4sIIQI")  # mark, bytes that follow, uses, first time, checksum
_COUNTS: Final = struct.Struct("<III")  # uses, items, groups
_STEP_MAX: Final = (1 << 32) - 1

HEAD_SIZE: Final = _HEAD.size


class DamagedBlockError(ValueError):
    """These bytes are not a whole block."""


class BlockBuilder:
    """Collects uses until `encode`. Times may not go back: one that does counts as the last."""

    __slots__ = ("_groups", "_indexes", "_items", "_last_ms", "_steps", "first_ms")

    def __init__(self) -> None:
        self.first_ms = self._last_ms = 0
        self._steps = array("I")
        self._indexes = array("H")
        self._items: dict[tuple[int, int, int], int] = {}
        self._groups: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, time_ms: int, item: int, size: int, group: int) -> bool:
        """Take one use; False when this block is full, or too long ago, and another must begin."""
        steps = self._steps
        if not steps:
            self.first_ms = self._last_ms = time_ms
        step = max(0, time_ms - self._last_ms)
        if len(steps) >= USES_MAX or step > _STEP_MAX:
            return False
        self._last_ms += step
        steps.append(step)
        entry = (item, size, self._groups.setdefault(group, len(self._groups)))
        self._indexes.append(self._items.setdefault(entry, len(self._items)))
        return True

    def encode(self) -> bytes:
        """The block as bytes."""
        items = list(self._items)
        raw = _COUNTS.pack(len(self._steps), len(items), len(self._groups)) + b"".join(
            map(
                _little,
                (
                    self._steps,
                    self._indexes,
                    array("Q", [item for item, _, _ in items]),
                    array("Q", [size for _, size, _ in items]),
                    array("H", [group for _, _, group in items]),
                    array("Q", self._groups),
                ),
            )
        )
        body = zlib.compress(raw, 1)
        head = (len(body), len(self), self.first_ms)
        return _HEAD.pack(_MARK, *head, _checksum(head, body)) + body


def body_size(head: bytes) -> int:
    """How many bytes follow *head*. Raises DamagedBlockError."""
    if len(head) != HEAD_SIZE:
        raise DamagedBlockError("cut off")
    mark, size, uses, first_ms, _ = _HEAD.unpack(head)
    if mark != _MARK or size > ENCODED_MAX or uses > USES_MAX or first_ms > TIME_MS_MAX:
        raise DamagedBlockError("not a block")
    return int(size)


def decode(head: bytes, body: bytes) -> Iterator[Access]:
    """The uses of the block. Raises DamagedBlockError before the first one."""
    _, size, uses, first_ms, checksum = _HEAD.unpack(head)
    if len(body) != size:
        raise DamagedBlockError("cut off")
    if _checksum((size, uses, first_ms), body) != checksum:
        raise DamagedBlockError("its checksum differs")
    try:
        columns = _columns(_inflate(body), uses)
        return _uses(first_ms, columns)
    except (zlib.error, struct.error, IndexError) as error:
        raise DamagedBlockError(str(error)) from error


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    raw = inflater.decompress(body, _RAW_MAX)
    if not inflater.eof or inflater.unused_data:
        raise DamagedBlockError("longer than it may be")
    return raw


def _columns(raw: bytes, uses: int) -> list[array[int]]:
    counted, items, groups = _COUNTS.unpack_from(raw)
    shape = (("I", uses), ("H", uses), ("Q", items), ("Q", items), ("H", items), ("Q", groups))
    if counted != uses or len(raw) != _COUNTS.size + sum(array(c).itemsize * n for c, n in shape):
        raise DamagedBlockError("its counts do not fit")
    columns, at = [], _COUNTS.size
    for code, count in shape:
        column = array(code)
        end = at + column.itemsize * count
        column.frombytes(raw[at:end])
        if sys.byteorder == "big":
            column.byteswap()
        columns.append(column)
        at = end
    return columns


def _uses(first_ms: int, columns: list[array[int]]) -> Iterator[Access]:
    steps, indexes, items, sizes, group_indexes, groups = columns
    entries = list(zip(items, sizes, [groups[index] for index in group_indexes], strict=True))
    times = accumulate(steps, initial=first_ms)
    next(times)
    chosen: Iterable[tuple[int, int, int]] = [entries[index] for index in indexes]
    return (
        Access(time_ms / 1000, item, size, group)
        for time_ms, (item, size, group) in zip(times, chosen, strict=True)
    )


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def _checksum(head: tuple[int, int, int], body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(struct.pack("<IIQ", *head)))
