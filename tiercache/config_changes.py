"""What differs between the configuration of a running mount and a new one, and what it takes on.

A setting says of itself whether it is live (`tiercache.config.live`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar

from tiercache.config import Config, TierConfig
from tiercache.config_origins import every_setting, text_of

Section = TypeVar("Section", bound=Any)


class Change(NamedTuple):
    """A setting by its name in TOML, with its values as the file would have them."""

    name: str
    before: str
    after: str


def changes(before: Config, after: Config) -> Iterator[Change]:
    """Every setting in which *after* differs from *before*."""
    old, new = _texts(before), _texts(after)
    for name in old | new:
        change = Change(name, old.get(name, "absent"), new.get(name, "absent"))
        if change.before != change.after:
            yield change


def _texts(config: Config) -> dict[str, str]:
    return {name: text_of(setting, value) for name, setting, value in every_setting(config)}


def take_over(before: Config, after: Config) -> Config:
    """*before* with the live settings of *after*: what the mount can be without a remount.

    Tiers are recognised by their place, name and paths; one that differs there keeps all else too.
    """
    live = _live(before, after)
    if [_identity(tier) for tier in before.tiers] == [_identity(tier) for tier in after.tiers]:
        live = replace(live, tiers=tuple(map(_live, before.tiers, after.tiers)))
    return live


def _identity(tier: TierConfig) -> object:
    return tier.name, tier.paths


def _live(before: Section, after: Section) -> Section:
    """Section *before* with what is live in *after*, in sections below it too."""
    values = {}
    for item in fields(before):
        old, new = getattr(before, item.name), getattr(after, item.name)
        if item.metadata.get("live"):
            values[item.name] = new
        elif is_dataclass(old):
            values[item.name] = _live(old, new)
    result: Section = replace(before, **values)
    return result
