"""Where each effective setting comes from: a line of the file, an option, or the default."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from tiercache.config import Config, PolicyConfig
from tiercache.config_fields import Setting, settings, show_value
from tiercache.config_units import format_size

_HEADER: Final = re.compile(r"\s*\[\s*([\w.-]+)\s*\]")
_ITEM: Final = re.compile(r"\s*\[\[\s*(tier|rule)\s*\]\]")

#: Lists of tables: the field of `Config`, and their TOML name.
_LISTS: Final = {"tiers": "tier", "rules": "rule"}
_KEY: Final = re.compile(r"\s*([\w.-]+)\s*=")


class Effective(NamedTuple):
    """A setting under its name in TOML, its value in Python and who set it."""

    name: str
    value: object
    text: str
    source: str


def effective(config: Config, file: Path | None, named: Mapping[str, str]) -> Iterator[Effective]:
    """Every setting of *config*, which was read from *file* and the options in *named*."""
    lines = setting_lines(file.read_text(encoding="utf-8")) if file else {}
    for name, setting, value in every_setting(config):
        source = named.get(name) or (f"{file}:{lines[name]}" if name in lines else "default")
        yield Effective(name, value, text_of(setting, value), source)


def text_of(setting: Setting, value: object) -> str:
    """*value* as the file would have it."""
    if value is None:
        return "not set"
    if setting.unit == "sizes" and isinstance(value, tuple):
        return "{" + ", ".join(f'{name} = "{format_size(size)}"' for name, size in value) + "}"
    if setting.unit is not None and isinstance(value, int | float):
        return f'"{show_value(setting, value)}"'
    return json.dumps(value, default=str)


def setting_lines(text: str) -> Mapping[str, int]:
    """The line of each setting in valid TOML *text*, as `mount.umask` or `tier[0].name`.

    Reads tables under their headers, which is how people write them, not inline tables.
    """
    found: dict[str, int] = {}
    section, counts = "", Counter[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if item := _ITEM.match(line):
            section = f"{item[1]}[{counts[item[1]]}]."
            counts[item[1]] += 1
        elif header := _HEADER.match(line):
            section = f"{header[1]}."
        elif key := _KEY.match(line):
            found.setdefault(section + key[1], number)
    return found


def every_setting(config: Config) -> Iterator[tuple[str, Setting, object]]:
    """Each setting of *config* with its name in TOML and its value in Python."""
    for item in fields(config):
        value = getattr(config, item.name)
        if item.name in _LISTS:
            for index, section in enumerate(value):
                yield from _section(f"{_LISTS[item.name]}[{index}].", section)
        elif item.name == "policies":
            for policy in value:
                yield from _policy(policy)
        elif is_dataclass(value):
            yield from _section(f"{item.name}.", value)
        else:
            yield item.name, settings(Config)[item.name], value


def _policy(policy: PolicyConfig) -> Iterator[tuple[str, Setting, object]]:
    given = {"entry_point": policy.entry_point} if policy.entry_point else {}
    for key, value in {**given, **dict(policy.params)}.items():
        setting = Setting(key, key, type(value), None, {}, required=False)
        yield f"policy.{policy.name}.{key}", setting, value


def _section(prefix: str, section: Any) -> Iterator[tuple[str, Setting, object]]:  # noqa: ANN401
    for key, setting in settings(type(section)).items():  # type: ignore[arg-type]
        yield prefix + key, setting, getattr(section, setting.field)
