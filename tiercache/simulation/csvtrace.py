"""Traces as text: `time,id,size[,group]` per line, with or without that line as a header.

Seconds may have a fraction. Ids and groups that are not numbers are names; a name stands for a
number taken from its digest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import BinaryIO, Final

from tiercache.simulation.blocks import NUMBER_MAX, TIME_MS_MAX
from tiercache.simulation.replay import Access

_LINE_MAX: Final = 8192
_SHOWN: Final = 40
_TIME_MAX: Final = TIME_MS_MAX / 1000
_NAMES: Final = (["time", "id", "size"], ["time", "id", "size", "group"])


class LineError(ValueError):
    """A line is not a use; the text names it."""


def looks_like(sample: bytes) -> bool:
    """Whether a file that begins with *sample* may be such a trace."""
    line = sample.partition(b"\n")[0]
    return line.isascii() and line.strip().decode().isprintable() and 2 <= line.count(b",") <= 3


def read(file: BinaryIO) -> Iterator[Access]:
    """The uses in *file*, in order of time. Raises LineError."""
    file.seek(0)
    last, number = 0.0, 0
    while line := file.readline(_LINE_MAX + 1):
        number += 1
        try:
            fields = _fields(line)
            if not fields or (number == 1 and fields in _NAMES):
                continue
            access = _access(fields)
        except ValueError as error:
            raise LineError(f"line {number}: {error}") from error
        last = max(last, access.time)
        yield access._replace(time=last)


def write(file: BinaryIO, accesses: Iterator[Access]) -> int:
    """Write a whole trace; how many uses it has."""
    file.write(b"time,id,size,group\n")
    count = 0
    for count, access in enumerate(accesses, 1):  # noqa: B007 - the last one is the result
        file.write(b"%.3f,%d,%d,%d\n" % access)
    return count


def _fields(line: bytes) -> list[str]:
    if len(line) > _LINE_MAX:
        raise ValueError(f"longer than {_LINE_MAX} bytes")
    text = line.decode("utf-8", "replace").strip()
    return [field.strip() for field in text.split(",")] if text else []


def _access(fields: list[str]) -> Access:
    if len(fields) not in (3, 4):
        raise ValueError(f"{len(fields)} fields where time,id,size[,group] belong")
    return Access(
        _seconds(fields[0]),
        _number(fields[1]),
        _size(fields[2]),
        _number(fields[3]) if len(fields) == 4 else 0,
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= _TIME_MAX:
        raise ValueError(f"time {_shown(text)} is not seconds")
    return value


def _size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise ValueError(f"size {_shown(text)} is not a number of bytes")
    return int(text)


def _number(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= NUMBER_MAX:
        return int(text)
    if not text:
        raise ValueError("an id or group is empty")
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
