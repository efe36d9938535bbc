"""How a person writes quantities: sizes, durations and permission bits as text, and back.

Pure functions. Each raises SettingError with what would have been right, so that the caller only
has to add which setting it was. Arithmetic is exact: "0.1GiB" is refused rather than rounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final

#: As GNU coreutils: K, M, G and T alone are binary, KB and so on are decimal.
SIZE_UNITS: Final[Mapping[str, int]] = {
    "": 1,
    "b": 1,
    **{name: 1 << 10 * (power + 1) for power, name in enumerate("kmgtp")},
    **{f"{name}ib": 1 << 10 * (power + 1) for power, name in enumerate("kmgtp")},
    **{f"{name}b": 1000 ** (power + 1) for power, name in enumerate("kmgtp")},
}

DURATION_UNITS: Final[Mapping[str, Fraction]] = {
    "": Fraction(1),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}

SIZE_HINT: Final = 'write a number of bytes or text like "64MiB" or "1TB"'
RATE_HINT: Final = 'write bytes per second as a number or text like "500MiB/s"'
DURATION_HINT: Final = 'write a number of seconds or text like "60s", "5m" or "1h"'
OCTAL_HINT: Final = 'write octal digits as text like "022", or a TOML octal number like 0o022'

_QUANTITY: Final = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)\s*([a-z]*)", re.ASCII)


class SettingError(ValueError):
    """A value that cannot be used. The text says what would be right, not which setting it was."""


def parse_size(text: str) -> int:
    """Bytes that *text* ("64MiB", "1.5 GB", "4096") stands for."""
    number, unit = _quantity(text, SIZE_HINT)
    if unit not in SIZE_UNITS:
        raise SettingError(f'"{text}" is not a size; {SIZE_HINT}')
    size = number * SIZE_UNITS[unit]
    if size.denominator != 1:
        raise SettingError(f'"{text}" is not a whole number of bytes')
    return int(size)


def parse_rate(text: str) -> int:
    """Bytes per second that *text* ("500MiB/s", "1GB") stands for."""
    size = text.strip().lower().removesuffix("/s")
    try:
        return parse_size(size)
    except SettingError as error:
        raise SettingError(f'"{text}" is not a rate; {RATE_HINT}') from error


def parse_duration(text: str) -> float:
    """Seconds that *text* ("60s", "5m", "250ms", "1.5") stands for."""
    number, unit = _quantity(text, DURATION_HINT)
    if unit not in DURATION_UNITS:
        raise SettingError(f'"{text}" is not a duration; {DURATION_HINT}')
    return float(number * DURATION_UNITS[unit])


def parse_octal(text: str) -> int:
    """Permission bits that *text* ("022", "0o022") stands for."""
    if not re.fullmatch(r"(0o)?[0-7]{1,5}", text):
        raise SettingError(f'"{text}" is not octal; {OCTAL_HINT}')
    return int(text.removeprefix("0o"), 8)


def format_size(size: int) -> str:
    """The shortest exact text for *size* bytes, binary or decimal: "64MiB", "1.5TB", "4097B"."""
    return min(_texts(size), key=len)


def _texts(size: int) -> Iterator[str]:
    for power, letter in reversed(list(enumerate("KMGTP", 1))):
        if size and size % (1 << 10 * power) == 0:
            yield f"{size >> 10 * power}{letter}iB"
    for power, letter in enumerate("kMGTP", 1):
        whole, rest = divmod(size, 1000**power)
        thousandths, finer = divmod(rest, 1000 ** (power - 1))
        if whole and not finer:
            yield f"{whole}.{thousandths:03}".rstrip("0").rstrip(".") + f"{letter}B"
    yield f"{size}B"


def _quantity(text: str, hint: str) -> tuple[Fraction, str]:
    """Split *text* into its number and its lower-case unit."""
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None:
        raise SettingError(f'"{text}" is not understood; {hint}')
    return Fraction(match[1]), match[2]
