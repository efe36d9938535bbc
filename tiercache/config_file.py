"""From a TOML file and a command line to a `Config`, and a `Config` to JSON and back.

Defaults are overridden by the file, the file by the command line, both given as documents of the
same shape, so one reader and one set of checks serve them. The JSON form is how a checked
configuration travels to the holder and the worker; it holds every field and is not for people.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tiercache.config import (
    CatalogConfig,
    Config,
    HeatConfig,
    MountConfig,
    MoveConfig,
    OriginConfig,
    PolicyConfig,
    PrefetchConfig,
    RuleConfig,
    TierConfig,
    TransferConfig,
)
from tiercache.config_checks import (
    check_marks,
    check_origin,
    check_places,
    check_prefetch,
    check_tiers,
    check_transfer,
)
from tiercache.config_fields import Problems, read_section, read_value, settings, unknown
from tiercache.config_readers import describe
from tiercache.config_rules import check_rules, read_policies, read_rules
from tiercache.config_units import SettingError
from tiercache.errors import ConfigError

#: A TOML document, as `tomllib` gives it.
Document = Mapping[str, Any]

#: Tables by their TOML name. `[[tier]]` and `[[rule]]` are lists, `[policy.NAME]` has any keys.
SECTIONS: Final[Mapping[str, type]] = {
    "origin": OriginConfig,
    "mount": MountConfig,
    "transfer": TransferConfig,
    "heat": HeatConfig,
    "move": MoveConfig,
    "prefetch": PrefetchConfig,
    "catalog": CatalogConfig,
}

_TOP_LEVEL: Final = frozenset({*SECTIONS, "tier", "rule", "policy", "log_level"})


def load_config(
    file: Path | None,
    overrides: Document | None = None,
    named: Mapping[str, str] | None = None,
) -> Config:
    """The configuration in *file*, overridden setting by setting by *overrides*.

    `overrides["tier"]` is one table, for the only tier. *named* maps a setting ("tier[0].capacity")
    to how the person gave it ("--cache-size"). Raises `ConfigError` with every problem.
    """
    document = read_document(file) if file else {}
    return parse_config(merge(document, overrides or {}), named)


def read_document(file: Path) -> Document:
    """The TOML in *file*; `ConfigError` when it cannot be read."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file}: is not TOML: {error}"]) from error


def merge(document: Document, overrides: Document) -> Document:
    """*document* with the settings of *overrides* in place of its own."""
    merged = dict(document)
    for name, value in overrides.items():
        if name == "tier":
            merged["tier"] = _override_tier(document.get("tier", [{}]), value)
        elif isinstance(value, Mapping) and isinstance(document.get(name, {}), Mapping):
            merged[name] = {**document.get(name, {}), **value}
        else:
            merged[name] = value
    return merged


def _override_tier(tiers: object, table: Document) -> object:
    if not isinstance(tiers, list) or not all(isinstance(tier, Mapping) for tier in tiers):
        return tiers
    if len(tiers) > 1:
        raise ConfigError(
            [
                f"tier: the file has {len(tiers)} tiers, so the cache directory and size cannot be"
                " given on the command line; edit the file"
            ]
        )
    return [{**(tiers[0] if tiers else {}), **table}]


def parse_config(document: Document, named: Mapping[str, str] | None = None) -> Config:
    """*document* as a `Config`; raises `ConfigError` with every problem."""
    problems = Problems(named)
    for key in document:
        if key not in _TOP_LEVEL:
            problems.add(key, unknown("section or setting", key, _TOP_LEVEL))
    sections = {
        name: read_section(kind, document.get(name, {}), name, problems)
        for name, kind in SECTIONS.items()
    }
    tiers = _read_tiers(document, problems)
    rules = read_rules(document.get("rule", []), problems)
    policies = read_policies(document.get("policy", {}), problems)
    level = _read_log_level(document, problems)
    _check_sections(sections, tiers, rules, policies, problems)
    if problems.lines:
        raise ConfigError(problems.lines)
    lists = {"tiers": tuple(tiers), "rules": tuple(rules), "policies": tuple(policies)}
    parts: dict[str, Any] = {**sections, **lists, **level}
    return Config(**parts)


def _read_log_level(document: Document, problems: Problems) -> Document:
    if "log_level" not in document:
        return {}
    try:
        return {"log_level": read_value(settings(Config)["log_level"], document["log_level"])}
    except SettingError as error:
        problems.add("log_level", str(error))
        return {}


def _read_tiers(document: Document, problems: Problems) -> list[TierConfig | None]:
    tables = document.get("tier", [{}])
    if not isinstance(tables, list):
        problems.add("tier", f"is {describe(tables)}, not a list of tables; write [[tier]]")
        return []
    if not tables:
        problems.add("tier", "is empty; leave it out for the default or write one [[tier]]")
    if len(tables) == 1 and isinstance(tables[0], Mapping) and "paths" not in tables[0]:
        tables = [{**tables[0], "paths": _default_paths(document)}]
    return [
        read_section(TierConfig, table, f"tier[{index}]", problems)
        for index, table in enumerate(tables)
    ]


def _default_paths(document: Document) -> list[str]:
    origin = document.get("origin", {})
    table = origin if isinstance(origin, Mapping) else {}
    return [str(default_cache_dir(str(table.get("url")), table.get("endpoint_url")))]


def default_cache_dir(url: str, endpoint_url: object = None) -> Path:
    """Where the objects of *url* are cached when nothing else is said: one place per origin."""
    identity = f"{endpoint_url or ''}\n{url.rstrip('/')}".encode()
    name = hashlib.blake2b(identity, digest_size=8).hexdigest()
    if os.geteuid() == 0:
        return Path("/var/cache/tiercache", name)
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return base / "tiercache" / name


def _check_sections(
    sections: Mapping[str, Any],
    tiers: list[TierConfig | None],
    rules: list[RuleConfig],
    policies: list[PolicyConfig],
    problems: Problems,
) -> None:
    """Run the rules between settings over the sections that were read."""
    whole = [tier for tier in tiers if tier is not None]
    if sections["origin"]:
        check_origin(sections["origin"], problems)
    if sections["transfer"]:
        check_transfer(sections["transfer"], problems)
    if sections["prefetch"]:
        check_prefetch(sections["prefetch"], problems)
    if len(whole) == len(tiers):
        check_tiers(whole, [found.name for found in policies if found.entry_point], problems)
        check_rules(rules, whole, problems)
        check_marks(whole, problems)
        if sections["mount"]:
            check_places(sections["mount"], whole, problems)


def config_to_json(config: Config) -> dict[str, Any]:
    """*config* as JSON values; `config_from_json` gives an equal one."""
    plain = _to_json(config)
    assert isinstance(plain, dict)
    return plain


def _to_json(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: _to_json(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def config_from_json(document: Document) -> Config:
    """The configuration that `config_to_json` wrote; `ConfigError` when it was not that."""
    try:
        config = _from_json(Config, document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError([f"not a configuration written by tiercache: {error!r}"]) from error
    assert isinstance(config, Config)
    return config


def _from_json(hint: Any, value: Any) -> Any:  # noqa: ANN401 - driven by run-time types
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = typing.get_type_hints(hint)
        return hint(**{name: _from_json(hints[name], item) for name, item in value.items()})
    if typing.get_origin(hint) is tuple:
        return tuple(_from_json(typing.get_args(hint)[0], item) for item in value)
    if value is not None and (hint is Path or Path in typing.get_args(hint)):
        return Path(value)
    return value
