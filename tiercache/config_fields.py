"""From a TOML table to one frozen dataclass of `tiercache.config`, by looking at its fields.

A setting's type, unit, bounds and choices are read from the dataclass, so a new field needs no code
here. Durations end in `_s` in Python and drop it in TOML: `metadata_ttl = "60s"`. Nothing is
repaired: what cannot be used becomes a problem that names the setting and what would be right, and
reading goes on, so that a person sees all problems at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

from tiercache.config_readers import READERS, describe
from tiercache.config_units import SettingError, format_size

Section = TypeVar("Section")

YES: Final = frozenset({"true", "yes", "on", "1"})
NO: Final = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One field as a person writes it: `key` in TOML, `field` in Python."""

    key: str
    field: str
    type: object
    unit: str | None
    meta: Mapping[str, Any]
    required: bool


class Problems:
    """Collects what is wrong. `named` maps a setting to how it was given ("--cache-size")."""

    def __init__(self, named: Mapping[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self._named = named or {}

    def add(self, path: str, text: str) -> None:
        """Setting *path* is wrong because of *text*."""
        self.lines.append(f"{self._named.get(path, path)}: {text}")


@cache
def settings(section: type) -> Mapping[str, Setting]:
    """Every setting of dataclass *section* by its TOML key."""
    hints = typing.get_type_hints(section)
    found = (_setting(item, hints[item.name]) for item in dataclasses.fields(section))
    return {setting.key: setting for setting in found}


def _setting(item: dataclasses.Field[Any], hint: object) -> Setting:
    base = _base_type(hint)
    timed = base is float and item.name.endswith("_s")
    return Setting(
        key=item.name.removesuffix("_s") if timed else item.name,
        field=item.name,
        type=base,
        unit="seconds" if timed else item.metadata.get("unit"),
        meta=item.metadata,
        required=item.default is dataclasses.MISSING
        and item.default_factory is dataclasses.MISSING,
    )


def _base_type(hint: object) -> object:
    """The type without `| None`: absence is expressed by leaving the key out."""
    if isinstance(hint, types.UnionType):
        return next(arm for arm in typing.get_args(hint) if arm is not type(None))
    return hint


def read_section(
    section: type[Section], table: object, path: str, problems: Problems
) -> Section | None:
    """*table* as a *section*; None when it has problems, which were added to *problems*."""
    if not isinstance(table, Mapping):
        problems.add(path, f"is {describe(table)}, not a table; write [{path}]")
        return None
    known = settings(section)  # type: ignore[arg-type]
    before = len(problems.lines)
    for key in table:
        if key not in known:
            problems.add(_join(path, key), unknown("setting", key, known))
    values = {
        setting.field: _read_setting(setting, table[key], _join(path, key), problems)
        for key, setting in known.items()
        if key in table
    }
    for key, setting in known.items():
        if setting.required and key not in table:
            problems.add(_join(path, key), "is missing and has no default")
    return section(**values) if len(problems.lines) == before else None


def _read_setting(setting: Setting, raw: object, path: str, problems: Problems) -> object:
    try:
        return read_value(setting, raw)
    except SettingError as error:
        problems.add(path, str(error))
        return None


def read_value(setting: Setting, raw: object) -> object:
    """*raw* as TOML has it, as the type of *setting*; SettingError says what would be right."""
    value = READERS[setting.unit or setting.type](raw)
    if choices := setting.meta.get("choices"):
        _check_choice(value, choices)
    _check_bounds(setting, value)
    return value


def from_text(setting: Setting, text: str) -> object:
    """*text* of a command line as TOML would have it, for `read_value`."""
    if setting.type is bool and text.lower() in YES | NO:
        return text.lower() in YES
    if setting.type is int and setting.unit is None and text.isascii() and text.isdigit():
        return int(text)
    if setting.type is float and setting.unit is None:
        return _float_or_text(text)
    return text


def _float_or_text(text: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Why *name* is refused, with the nearest of the *known* names."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f'did you mean "{near[0]}"?' if near else f"known: {', '.join(names)}"
    return f"unknown {what}; {hint}"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _check_choice(value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise SettingError(f'"{value}" is not one of {", ".join(choices)}{hint}')


def _check_bounds(setting: Setting, value: object) -> None:
    if not isinstance(value, int | float):
        return
    low, high = setting.meta.get("low"), setting.meta.get("high")
    if low is not None and value < low:
        raise SettingError(
            f"{show_value(setting, value)} is too small; at least {show_value(setting, low)}"
        )
    if high is not None and value > high:
        raise SettingError(
            f"{show_value(setting, value)} is too large; at most {show_value(setting, high)}"
        )


def show_value(setting: Setting, value: float) -> str:
    """*value* of *setting* with its unit, as a person would write it."""
    match setting.unit:
        case "bytes":
            return format_size(int(value))
        case "bytes/s":
            return f"{format_size(int(value))}/s"
        case "octal":
            return f"0o{int(value):03o}"
        case "seconds":
            return f"{value:g}s"
        case _:
            return f"{value:.15g}"
