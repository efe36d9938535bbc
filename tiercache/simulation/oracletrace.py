"""Traces as libCacheSim's `oracleGeneral`: 24 bytes per use, little-endian, no header.

u32 seconds, u64 object, u32 bytes, i64 number of the object's next use (from 1), -1 for none
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

from tiercache.simulation.replay import Access

_RECORD: Final = struct.Struct("<IQIq")
_PART: Final = 4096
_USES_MAX: Final = 1 << 40
_U32_MAX: Final = (1 << 32) - 1

RECORD_SIZE: Final = _RECORD.size


def looks_like(sample: bytes) -> bool:
    """Whether a file that begins with *sample* may be such a trace.

    It has no mark of its own: times must not go back, and next uses must lie ahead. They may lie
    beyond the end, for the file may be a piece of a longer one.
    """
    whole = len(sample) - len(sample) % RECORD_SIZE
    last = 0
    for position, (time, _, _, following) in enumerate(_RECORD.iter_unpack(sample[:whole])):
        ahead = position < following <= _USES_MAX
        if time < last or not (following in (-1, (1 << 63) - 1) or ahead):
            return False
        last = time
    return whole > 0


def read(file: BinaryIO) -> Iterator[Access]:
    """The uses in *file*, in order of time; what is left of a cut off record is passed over."""
    file.seek(0)
    last = 0
    while part := file.read(_PART * RECORD_SIZE):
        whole = len(part) - len(part) % RECORD_SIZE
        for time, item, size, _ in _RECORD.iter_unpack(part[:whole]):
            last = max(last, time)
            yield Access(float(last), item, size)


def write(file: BinaryIO, accesses: Iterator[Access], again: Iterable[Access]) -> int:
    """Write a whole trace; how many uses it has. *again*: the same uses, read before the others.

    Takes 8 bytes of memory per use. Raises OverflowError for what 32 bits do not hold.
    """
    following = _next_uses(again)
    buffer = bytearray()
    for access, position in zip(accesses, following, strict=True):
        time, item, size, _ = access
        if size > _U32_MAX or time > _U32_MAX:
            raise OverflowError(f"object {item}: {size:,} bytes at {time:.0f} s exceed 32 bits")
        buffer += _RECORD.pack(int(time), item, size, position)
        if len(buffer) >= _PART * RECORD_SIZE:
            file.write(buffer)
            buffer.clear()
    file.write(buffer)
    return len(following)


def _next_uses(accesses: Iterable[Access]) -> array[int]:
    following, last = array("q"), dict[int, int]()
    for position, access in enumerate(accesses):
        previous = last.get(access.item)
        if previous is not None:
            following[previous] = position + 1
        last[access.item] = position
        following.append(-1)
    return following
