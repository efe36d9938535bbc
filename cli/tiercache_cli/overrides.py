"""Settings given on the command line, as a document that overrides the config file.

Flags (`--cache-size 100GB`) and mount options (`-o cache_size=100GB`, as fstab passes them) name
the same settings. Every setting that a config file may hold can be given as `-o KEY=VALUE` under
its own key. How each was given is remembered, so that a problem is reported in a person's words.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from tiercache.config import Config, TierConfig
from tiercache.config_fields import Setting, from_text, settings, unknown
from tiercache.config_file import SECTIONS
from tiercache.errors import ConfigError

#: Options of mount(8) and fstab(5) that say nothing to a read-only tree of ours.
# fmt: off
IGNORED: Final = frozenset({
    "ro", "defaults", "async", "sync", "dirsync", "auto", "noauto", "user", "nouser", "users",
    "owner", "group", "nofail", "_netdev", "exec", "noexec", "suid", "nosuid", "dev", "nodev",
    "atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime",
    "nostrictatime", "lazytime", "nolazytime", "silent", "default_permissions",
})
# fmt: on

_IGNORED_PREFIXES: Final = ("x-", "X-", "comment=", "fsname=", "subtype=")

#: A comma that no backslash precedes.
_COMMA: Final = re.compile(r"(?<!\\),")


#: Sections whose keys are given as in the file, `move.bandwidth`: alone they say too little.
_QUALIFIED: Final = frozenset({"heat", "move"})


class Place(NamedTuple):
    """Where a command-line name belongs in the document."""

    section: str
    setting: Setting


@cache
def places() -> Mapping[str, Place]:
    """Every setting that can be given on the command line, by its name there."""
    tier = settings(TierConfig)
    return {
        **{key: Place(section, found) for section, key, found in _plain()},
        "log_level": Place("", settings(Config)["log_level"]),
        "cache_dir": Place("tier", tier["paths"]),
        "cache_size": Place("tier", tier["capacity"]),
        **{key: Place("tier", tier[key]) for key in ("reserve_free", "policy", "verify")},
    }


def _plain() -> Iterator[tuple[str, str, Setting]]:
    """Settings outside of tiers; source and mount point are arguments."""
    for section, kind in SECTIONS.items():
        prefix = f"{section}." if section in _QUALIFIED else ""
        for key, setting in settings(kind).items():
            if not setting.required:
                yield section, prefix + key, setting


class Overrides:
    """Collects settings: `document` for `load_config`, `named` how each was given."""

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}
        self.named: dict[str, str] = {}
        self._problems: list[str] = []

    def add_source(self, source: str) -> None:
        """The first argument of `mount`."""
        self._store("origin", "url", source, "SOURCE")

    def add_mountpoint(self, mountpoint: str) -> None:
        """The last argument of `mount`."""
        self._store("mount", "mountpoint", _absolute(mountpoint), "MOUNTPOINT")

    def add_options(self, text: str) -> None:
        """The argument of one `-o`: options between commas; a backslash keeps a comma."""
        for option in filter(None, _COMMA.split(text)):
            self._add_option(option.replace("\\,", ","))

    def _add_option(self, option: str) -> None:
        name, separator, value = option.partition("=")
        if option in IGNORED or option.startswith(_IGNORED_PREFIXES):
            return
        if option == "rw":
            self._problems.append("-o rw: the tree is read-only; leave it out or write ro")
            return
        self.add(name, value if separator else "true", f"-o {name}")

    def add(self, name: str, text: str, given_as: str) -> None:
        """Setting *name* is *text*; a later one replaces an earlier one."""
        key = name.replace("-", "_")
        if key not in places():
            self._problems.append(f"{given_as}: {unknown('option', key, places())}")
            return
        section, setting = places()[key]
        self._store(section, setting.key, _value(setting, text), given_as)

    def check(self) -> None:
        """Raise `ConfigError` with everything that names no setting."""
        if self._problems:
            raise ConfigError(self._problems)

    def _store(self, section: str, key: str, value: object, given_as: str) -> None:
        table = self.document.setdefault(section, {}) if section else self.document
        table[key] = value
        path = "tier[0]" if section == "tier" else section
        self.named[f"{path}.{key}" if path else key] = given_as


def _value(setting: Setting, text: str) -> object:
    """*text* as the config file would have it; relative paths count from here."""
    if setting.type is Path:
        return _absolute(text)
    if setting.type == tuple[Path, ...]:
        return [_absolute(text)] if text else []
    return from_text(setting, text)


def _absolute(text: str) -> str:
    # Not Path.resolve, which asks the file system and so could hang on a dead mount.
    return text if not text or text.startswith("~") else os.path.abspath(text)  # noqa: PTH100
