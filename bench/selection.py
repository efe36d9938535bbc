"""Which rows of a scenario a person asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase


class SelectionError(ValueError):
    """A pattern names no row."""


def select(rows: Sequence[str], patterns: Iterable[str]) -> frozenset[str]:
    """The *rows* that *patterns* name: a row, the beginning of rows, or a shell pattern.

    A pattern that is a row's whole name means that row alone. Raises `SelectionError`, which
    lists all rows, when one names none.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        found = [pattern] if pattern in rows else _matching(rows, pattern)
        if not found:
            raise SelectionError(f"no row is named {pattern!r}; there are: {' '.join(rows)}")
        chosen.update(found)
    return frozenset(chosen)


def _matching(rows: Sequence[str], pattern: str) -> list[str]:
    # What is empty, as after a comma too many, begins every name.
    if not pattern:
        return []
    return [row for row in rows if row.startswith(pattern) or fnmatchcase(row, pattern)]
