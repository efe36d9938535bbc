"""`[[rule]]` and `[policy.NAME]`: the tables of a configuration whose number and keys are open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tiercache import policies_registry
from tiercache.config import PolicyConfig, RuleConfig, TierConfig
from tiercache.config_fields import Problems, read_section, unknown
from tiercache.config_readers import describe
from tiercache.errors import ConfigError
from tiercache.rules import compile_pattern

_ENTRY_POINT = "entry_point"


def read_rules(tables: object, problems: Problems) -> list[RuleConfig]:
    """The rules in *tables*, those without problems."""
    if not isinstance(tables, list):
        problems.add("rule", f"is {describe(tables)}, not a list of tables; write [[rule]]")
        return []
    read = (read_section(RuleConfig, t, f"rule[{n}]", problems) for n, t in enumerate(tables))
    return [rule for rule in read if rule is not None]


def check_rules(
    rules: Sequence[RuleConfig], tiers: Iterable[TierConfig], problems: Problems
) -> None:
    """Names are each rule's own, patterns can match, shares are of tiers that exist."""
    known = {tier.name for tier in tiers}
    seen: set[str] = set()
    for index, rule in enumerate(rules):
        if rule.name in seen:
            problems.add(f"rule[{index}].name", f'"{rule.name}" is already the name of another')
        seen.add(rule.name)
        if rule.path is not None:
            try:
                compile_pattern(rule.path)
            except ValueError as error:
                problems.add(f"rule[{index}].path", str(error))
        for tier, _nbytes in rule.share:
            if tier not in known:
                problems.add(f"rule[{index}].share", unknown(f'tier "{tier}"', tier, known))


def read_policies(tables: object, problems: Problems) -> list[PolicyConfig]:
    """The parameters in *tables*, by policy; what its class declares decides what is right."""
    if not isinstance(tables, Mapping):
        problems.add("policy", f"is {describe(tables)}, not a table; write [policy.NAME]")
        return []
    return [
        found
        for name, table in tables.items()
        if (found := _read_policy(name, table, problems)) is not None
    ]


def _read_policy(name: str, table: object, problems: Problems) -> PolicyConfig | None:
    path = f"policy.{name}"
    if not isinstance(table, Mapping):
        problems.add(path, f"is {describe(table)}, not a table; write [{path}]")
        return None
    place = table.get(_ENTRY_POINT)
    if place is not None and not isinstance(place, str):
        problems.add(
            f"{path}.{_ENTRY_POINT}", f'is {describe(place)}; write "package.module:Class"'
        )
        return None
    given: dict[str, Any] = {key: value for key, value in table.items() if key != _ENTRY_POINT}
    try:
        wrong = policies_registry.problems(name, policies_registry.find(name, place), given)
    except ConfigError as error:
        wrong = [f"{path}: {line}" for line in error.problems]
    problems.lines += wrong
    if wrong:
        return None
    return PolicyConfig(name=name, entry_point=place, params=tuple(given.items()))
