"""`tiercache size`: how large a cache must be, from a trace or from a running mount."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tiercache.control.client import ask
from tiercache.errors import MountError
from tiercache.simulation import sizing
from tiercache.simulation.jobs import Outcome
from tiercache_cli.mounts import find_mount, why_not
from tiercache_cli.replays import (
    TRACE_PATH,
    Policies,
    Problems,
    ReplayOptions,
    Replays,
    fraction,
    replay_options,
)

#: A mount looks up to 65,536 objects up, between its readers.
_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """A capacity in bytes and what it would hit, of the uses that can hit at all."""

    capacity: int
    hit_ratio: float


@dataclass(frozen=True, slots=True)
class Report:
    """The answer. `targets` are the smallest capacities that are enough, None if none is."""

    about: dict[str, object]
    footprint: int
    rows: Sequence[Row]
    targets: Sequence[tuple[float, Row | None]]
    notes: Sequence[str]

    def as_json(self) -> dict[str, object]:
        """The report for scripts."""
        return {
            **self.about,
            "footprint": self.footprint,
            "rows": [_json(row, self.footprint) for row in self.rows],
            "targets": [
                {"target": target, "enough": None if row is None else _json(row, self.footprint)}
                for target, row in self.targets
            ],
            "notes": list(self.notes),
        }


def _json(row: Row, footprint: int) -> dict[str, float]:
    share = row.capacity / footprint
    return {"capacity": row.capacity, "share": share, "hit_ratio": row.hit_ratio}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", metavar="TRACE|MOUNTPOINT", type=TRACE_PATH)
@click.option(
    "--target",
    "targets",
    multiple=True,
    default=["95%"],
    show_default=True,
    metavar="SHARE",
    help="Hit ratio to reach; may be repeated.",
)
@click.option("--policy", default="adaptive", show_default=True, metavar="NAME")
@replay_options
def size(path: Path, targets: tuple[str, ...], policy: str, options: ReplayOptions) -> None:
    """Say what each cache size would hit, and the smallest one for a target.

    Ratios are of uses that can hit: the first use of an object misses whatever the size. From a
    mount, the answer rests on how often each dataset was opened lately, and no policy is replayed.
    """
    problems = Problems()
    wanted = []
    for text in targets:
        with problems.of("--target"):
            wanted.append(fraction(text))
    policies = Policies([policy], options.settings, problems)
    problems.raise_any()
    if path.is_dir():
        report = from_mount(path, wanted)
    else:
        report = from_trace(Replays(path, options), policies, wanted)
    if options.as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        from tiercache_cli.size_view import show

        show(report)


def from_trace(replays: Replays, policies: Policies, targets: Sequence[float]) -> Report:
    """Replay a ladder of capacities, then what lies around each target."""
    name = policies.names[0]
    footprint = replays.summary.footprint
    first = sizing.ladder(footprint)
    *outcomes, unbounded = replays.run(
        [*(policies.job(name, capacity) for capacity in first), replays.unbounded]
    )
    most = unbounded.counts.hits

    def ratios(found: Sequence[Outcome]) -> list[float]:
        return [outcome.counts.hits / most if most else 0.0 for outcome in found]

    def measure(capacities: Sequence[int]) -> Sequence[float]:
        return ratios(replays.run([policies.job(name, capacity) for capacity in capacities]))

    rows = [Row(*pair) for pair in zip(first, ratios(outcomes), strict=True)]
    tried = {row.capacity: row.hit_ratio for row in rows}
    enough = [sizing.smallest(target, tried, footprint, measure) for target in targets]
    return Report(
        about={"source": "trace", "policy": name, "trace": replays.about()},
        footprint=footprint,
        rows=rows,
        targets=[
            (target, None if capacity is None else Row(capacity, tried[capacity]))
            for target, capacity in zip(targets, enough, strict=True)
        ],
        notes=_first_uses(unbounded),
    )


def _first_uses(unbounded: Outcome) -> list[str]:
    counts = unbounded.counts
    if not counts.hits:
        return ["no object is used twice: no cache of any size hits anything"]
    if counts.hit_ratio == 1:
        return []
    return [f"{1 - counts.hit_ratio:.1%} of the uses are first ones, which miss whatever the size"]


def from_mount(mountpoint: Path, targets: Sequence[float]) -> Report:
    """From the heat of datasets that the mount keeps. Raises MountError, ControlError."""
    known = find_mount(mountpoint)
    if known is None:
        raise MountError(why_not(mountpoint))
    answer = ask(known.runtime / "control.sock", "popularity", _TIMEOUT_S)
    datasets = [sizing.Dataset(**dataset) for dataset in answer["datasets"]]
    if not datasets:
        raise MountError(f"{mountpoint}: nothing was opened yet, so nothing is known")
    footprint = sum(dataset.nbytes for dataset in datasets)
    notes = ["from how often datasets were opened lately; for the order too, record a trace"]
    if not answer["complete"]:
        notes.append("not all objects are remembered: the sizes are too small; record a trace")
    return Report(
        about={"source": "mount", "mountpoint": str(mountpoint), "datasets": answer["datasets"]},
        footprint=footprint,
        rows=[_expected(datasets, capacity) for capacity in sizing.ladder(footprint)],
        targets=[
            (target, _expected(datasets, sizing.expected_smallest(datasets, target)))
            for target in targets
        ],
        notes=notes,
    )


def _expected(datasets: Sequence[sizing.Dataset], capacity: int) -> Row:
    return Row(capacity, sizing.expected(datasets, capacity))
