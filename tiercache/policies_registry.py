"""Which policies there are, what they can be told, and making one.

Built-in policies register through the entry-point group `tiercache.policies`, as third-party ones
may; a class that is not registered is named as "package.module:Class".
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final

from tiercache.errors import ConfigError
from tiercache.policy import EvictionPolicy, Param

GROUP: Final = "tiercache.policies"

Factory = Callable[..., EvictionPolicy]


def names() -> list[str]:
    """The registered policies, sorted."""
    return sorted(importlib.metadata.entry_points(group=GROUP).names)


def find(name: str, entry_point: str | None = None) -> Factory:
    """The class of policy *name*, or the one at *entry_point*. Raises ConfigError."""
    if entry_point is not None:
        return _import(name, entry_point)
    found = importlib.metadata.entry_points(group=GROUP)
    if name not in found.names:
        close = get_close_matches(name, found.names, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        known = ", ".join(sorted(found.names))
        raise ConfigError([f"policy {name!r} is not installed{hint} There are: {known}"])
    return _import(name, found[name].value)


def _import(name: str, place: str) -> Factory:
    module, _, attribute = place.partition(":")
    try:
        made: Factory = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever a stranger's module raises while it is imported
        raise ConfigError([f"policy {name!r}: cannot load {place!r}: {error}"]) from error
    if not callable(made):
        raise ConfigError([f"policy {name!r}: {place!r} is not a class"])
    return made


def params_of(factory: Factory) -> Mapping[str, Param]:
    """What *factory* can be told, by name; empty where it declares nothing."""
    declared: Mapping[str, Param] = getattr(factory, "params", {})
    return declared


def problems(name: str, factory: Factory, given: Mapping[str, object]) -> list[str]:
    """Everything that is wrong with the parameters *given* to policy *name*; one line each."""
    declared = params_of(factory)
    found = []
    for key, value in given.items():
        path = f"policy.{name}.{key}"
        param = declared.get(key)
        if param is None:
            known = ", ".join(sorted(declared)) or "none"
            found.append(f"{path}: no such parameter; there are: {known}")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            found.append(f"{path}: {value!r} is not a number")
        elif not param.low <= value <= param.high:
            found.append(f"{path}: {value} is not from {param.low:g} to {param.high:g}")
    return found


def make(
    name: str,
    capacity: int,
    given: Mapping[str, object] | None = None,
    entry_point: str | None = None,
) -> EvictionPolicy:
    """A new policy *name* for *capacity* bytes. Raises ConfigError with all problems."""
    factory = find(name, entry_point)
    wrong = problems(name, factory, given or {})
    if wrong:
        raise ConfigError(wrong)
    try:
        return factory(capacity, **(given or {}))
    except TypeError as error:
        raise ConfigError([f"policy {name!r}: {error}"]) from error
