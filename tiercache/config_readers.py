"""One reader per kind of setting: a raw TOML value in, the checked Python value out.

`READERS` maps a unit or a type to its reader. Each raises SettingError with what would be right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tiercache.config_units import (
    DURATION_HINT,
    OCTAL_HINT,
    RATE_HINT,
    SIZE_HINT,
    SettingError,
    parse_duration,
    parse_octal,
    parse_rate,
    parse_size,
)


def describe(raw: object) -> str:
    """*raw* for an error message: what kind of TOML value it is."""
    if isinstance(raw, str):
        return f'the text "{raw[:40]}"'
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "true or false"),
        ((int, float), "a number"),
        (Mapping, "a table"),
        (Sequence, "a list"),
    )
    return next((name for kind, name in names if isinstance(raw, kind)), "a date or time")


def _read_text(raw: object) -> str:
    if not isinstance(raw, str):
        raise SettingError(f"is {describe(raw)}, not text")
    if not raw or any(ord(char) < 0x20 for char in raw):
        raise SettingError("is empty or holds control characters; leave it out or write text")
    return raw


def _read_bool(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise SettingError(f"is {describe(raw)}; write true or false")
    return raw


def _read_int(raw: object) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise SettingError(f"is {describe(raw)}; write a whole number")
    return raw


def _read_float(raw: object) -> float:
    if not isinstance(raw, int | float) or isinstance(raw, bool) or not math.isfinite(raw):
        raise SettingError(f"is {describe(raw)}; write a finite number")
    return float(raw)


def _read_size(raw: object) -> int:
    if isinstance(raw, str):
        return parse_size(raw)
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise SettingError(f"is {describe(raw)}; {SIZE_HINT}")
    return raw


def _read_rate(raw: object) -> int:
    if isinstance(raw, str):
        return parse_rate(raw)
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise SettingError(f"is {describe(raw)}; {RATE_HINT}")
    return raw


def _read_duration(raw: object) -> float:
    if isinstance(raw, str):
        return parse_duration(raw)
    if not isinstance(raw, int | float) or isinstance(raw, bool) or not math.isfinite(raw):
        raise SettingError(f"is {describe(raw)}; {DURATION_HINT}")
    return float(raw)


def _read_octal(raw: object) -> int:
    if isinstance(raw, str):
        return parse_octal(raw)
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise SettingError(f"is {describe(raw)}; {OCTAL_HINT}")
    return raw


def _read_path(raw: object) -> Path:
    path = Path(_read_text(raw))
    if path.parts[:1] == ("~",):
        path = path.expanduser()
    if not path.is_absolute():
        raise SettingError(f'"{path}" is relative; write an absolute path')
    return path


def _read_paths(raw: object) -> tuple[Path, ...]:
    if isinstance(raw, str):
        raise SettingError(f'is {describe(raw)}, not a list; write ["{raw}"]')
    if not isinstance(raw, Sequence) or not raw:
        raise SettingError('write a list of at least one directory, like ["/mnt/nvme/tiercache"]')
    return tuple(_read_path(item) for item in raw)


def _read_texts(raw: object) -> tuple[str, ...]:
    if isinstance(raw, str):
        raise SettingError(f'is {describe(raw)}, not a list; write ["{raw}"]')
    if not isinstance(raw, Sequence) or not raw:
        raise SettingError("write a list of at least one text, or leave it out")
    return tuple(_read_text(item) for item in raw)


def _read_sizes(raw: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(raw, Mapping):
        raise SettingError(f'is {describe(raw)}, not a table; write {{nvme = "1TiB"}}')
    sizes = tuple((name, _read_size(value)) for name, value in raw.items())
    if any(nbytes < 0 for _name, nbytes in sizes):
        raise SettingError("holds a size below 0")
    return sizes


READERS: Final[Mapping[object, Callable[[object], object]]] = {
    str: _read_text,
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    Path: _read_path,
    tuple[Path, ...]: _read_paths,
    tuple[str, ...]: _read_texts,
    "bytes": _read_size,
    "sizes": _read_sizes,
    "bytes/s": _read_rate,
    "seconds": _read_duration,
    "octal": _read_octal,
}
