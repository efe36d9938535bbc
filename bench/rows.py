"""Pairs of samples, and the rows a report is made of. Pure: no clock, no I/O.

A row compares the mount with one baseline. Its ratio is the median of the ratios of pairs that ran
right after each other, not the ratio of medians: a slow second of the machine hits both sides of
a pair alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Pair:
    """One measurement of the mount and one of the baseline, in the row's unit (more is better)."""

    mount: float
    baseline: float

    @property
    def ratio(self) -> float:
        """Mount over baseline."""
        return self.mount / self.baseline


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report; `goal` is the least ratio to reach, None where none is set.

    `extra` holds further fields of the row, such as CPU seconds per GB.
    """

    name: str
    unit: str
    baseline_name: str
    goal: float | None
    pairs: Sequence[Pair]
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.pairs:
            raise ValueError(f"{self.name}: no samples")

    @property
    def value(self) -> float:
        """Median of the mount's samples."""
        return median(pair.mount for pair in self.pairs)

    @property
    def baseline(self) -> float:
        """Median of the baseline's samples."""
        return median(pair.baseline for pair in self.pairs)

    @property
    def ratio(self) -> float:
        """Median of the pairwise ratios."""
        return median(pair.ratio for pair in self.pairs)

    @property
    def ok(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        return None if self.goal is None else self.ratio >= self.goal

    def as_json(self) -> dict[str, Any]:
        """The row as the report's contract names its fields."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "baseline": self.baseline,
            "baseline_name": self.baseline_name,
            "ratio": self.ratio,
            "goal": self.goal,
            "ok": self.ok,
            "samples": [
                {"mount": pair.mount, "baseline": pair.baseline, "ratio": pair.ratio}
                for pair in self.pairs
            ],
            **self.extra,
        }


def alternate(
    rounds: int, mount: Callable[[], float], baseline: Callable[[], float]
) -> tuple[Pair, ...]:
    """Run both sides `rounds` times in turn."""
    return tuple(one_pair(number, mount, baseline) for number in range(rounds))


def one_pair(number: int, mount: Callable[[], float], baseline: Callable[[], float]) -> Pair:
    """Run both sides once; `number` says who goes first, so that over many pairs drift cancels."""
    if number % 2:
        mounted = mount()
        return Pair(mounted, baseline())
    native = baseline()
    return Pair(mount(), native)


def report(
    name: str, machine: Mapping[str, Any], rows: Iterable[Row], scale: str, *, complete: bool = True
) -> dict[str, Any]:
    """The result of one benchmark as JSON-ready data; `complete`: whether no row is missing."""
    return {
        "bench": name,
        "scale": scale,
        "complete": complete,
        "machine": dict(machine),
        "rows": [row.as_json() for row in rows],
    }


def readable(value: float, unit: str) -> str:
    """A figure for people: `2.31 GB/s`, `14.2 K IO/s`."""
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if value >= limit:
            gap = "" if unit.startswith("B") else " "
            return f"{value / limit:.2f} {prefix}{gap}{unit}"
    return f"{value:.1f} {unit}"


def line(row: Row) -> str:
    """A row in one line of words."""
    name, value, baseline, ratio, goal, ok, against = _cells(row)
    aim = f", goal {goal} {ok}" if ok else ""
    return f"{name}: {value} against {baseline} ({against}): {ratio}{aim}"


def table(rows: Iterable[Row]) -> str:
    """The report as aligned plain text, one line per row."""
    head = ("row", "mount", "baseline", "ratio", "goal", "", "against")
    lines = [head, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        readable(row.value, row.unit),
        readable(row.baseline, row.unit),
        f"{row.ratio:.3f}",
        "-" if row.goal is None else f"{row.goal:.2f}",
        {True: "ok", False: "MISSED", None: ""}[row.ok],
        row.baseline_name,
    )
