"""What `simulate` and `size` share: words on the command line to jobs, and running them.

All that is wrong with the words is collected, so that a person sees every problem at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import click

from tiercache import policies_registry
from tiercache.config_units import SettingError, parse_size
from tiercache.errors import ConfigError, TraceError
from tiercache.simulation.jobs import Job, Outcome, Source, Unbounded
from tiercache.simulation.replay import Access
from tiercache.simulation.summary import Summary, summarize
from tiercache.simulation.sweep import sweep, usable_cores
from tiercache.simulation.traces import FORMATS, Trace
from tiercache_cli.progress import LateProgress

BELADY: Final = "belady"
UNBOUNDED: Final = "unbounded"

TRACE_PATH = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a trace is read and replayed, as the command line says."""

    form: str | None
    settings: tuple[str, ...]
    skip: int
    equal_sizes: bool
    jobs: int | None
    as_json: bool


_OPTIONS: Final = (
    click.option("--format", "form", type=click.Choice(FORMATS), help="Do not guess it."),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="POLICY.NAME=VALUE",
        help="A parameter of a policy, as adaptive.half_life=3600.",
    ),
    click.option(
        "--skip",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Uses at the start that warm the cache up and are not counted.",
    ),
    click.option(
        "--equal-sizes",
        is_flag=True,
        help="Every object weighs 1; capacities are numbers of objects.",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        help="Processes at a time; as many as there are cores.",
    ),
    click.option("--json", "as_json", is_flag=True, help="One object with all figures."),
)


def replay_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* these options, packed into the argument `options`."""

    @wraps(command)
    def packed(**given: Any) -> None:  # noqa: ANN401 - whatever click found
        mine = {field.name: given.pop(field.name) for field in fields(ReplayOptions)}
        command(**given, options=ReplayOptions(**mine))

    decorated: Callable[..., None] = packed
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


class Problems:
    """Collects what is wrong, one line each."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextlib.contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Note what the block raises as a problem of *what*."""
        try:
            yield
        except ConfigError as error:
            self.lines += error.problems
        except (SettingError, ValueError) as error:
            self.lines.append(f"{what}: {error}")

    def raise_any(self) -> None:
        """Raises ConfigError when there are any."""
        if self.lines:
            raise ConfigError(self.lines)


class Policies:
    """The policies named on the command line, each with its parameters."""

    def __init__(self, names: Sequence[str], settings: Sequence[str], problems: Problems) -> None:
        self.names = list(dict.fromkeys(names))
        self._given: dict[str, dict[str, float]] = {name: {} for name in self.names}
        for setting in settings:
            with problems.of("--set"):
                self._set(setting)
        for name in self.names:
            with problems.of("--policy"):
                factory = policies_registry.find(name, _entry_point(name))
                wrong = policies_registry.problems(name, factory, self._given[name])
                if wrong:
                    raise ConfigError(wrong)

    def _set(self, setting: str) -> None:
        path, equals, text = setting.partition("=")
        policy, dot, name = path.rpartition(".")
        if not (equals and dot and name):
            raise ValueError(f'"{setting}" is not POLICY.NAME=VALUE')
        if policy not in self._given:
            raise ValueError(f'"{setting}": {policy!r} is not among the policies to run')
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f'"{setting}": {text!r} is not a number') from None
        self._given[policy][name] = int(value) if value.is_integer() else value

    def job(self, name: str, capacity: int) -> Job:
        """Policy *name* with *capacity*."""
        make = partial(
            policies_registry.make, name, given=self._given[name], entry_point=_entry_point(name)
        )
        return Job(name, capacity, make)


def _entry_point(name: str) -> str | None:
    return name if ":" in name else None


def fraction(text: str) -> float:
    """What "95%" or "0.95" stands for. Raises ValueError."""
    number = text.strip()
    try:
        value = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise ValueError(f'"{text}" is not a share; write "95%" or "0.95"')
    return value


class Capacity:
    """A capacity as it was written: a size, or a share of what the trace touches."""

    def __init__(self, text: str) -> None:
        """Raises ValueError."""
        self.text = text
        self._share = fraction(text) if text.strip().endswith("%") else None
        self._bytes = parse_size(text) if self._share is None else 0
        if self._share is None and not self._bytes:
            raise ValueError(f'"{text}" is too small')

    def of(self, footprint: int) -> int:
        """Bytes, for a trace that touches *footprint* bytes."""
        return self._bytes if self._share is None else max(1, round(self._share * footprint))


class Replays:
    """A trace, looked at once, to be replayed as often as needed."""

    def __init__(self, path: Path, options: ReplayOptions) -> None:
        """Raises TraceError, and ConfigError when nothing is left to count."""
        self.trace = trace = Trace(path, options.form)
        self.source = Source(trace, options.skip, options.equal_sizes)
        self._processes = options.jobs or usable_cores()
        with LateProgress("looking at the trace") as progress:
            self.summary: Summary = summarize(_told(self.source.accesses(), progress))
        if trace.damage:
            click.echo(f"tiercache: {trace.path}: {trace.damage}", err=True)
        if not self.summary.uses:
            raise TraceError(f"{trace.path}: no use is recorded in it")
        if self.summary.uses <= options.skip:
            uses = f"{self.summary.uses:,}"
            raise ConfigError([f"--skip: the trace has {uses} uses, so none would be counted"])

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """The outcome of each job."""
        total = self.summary.uses * len(jobs)
        with LateProgress("simulating", total) as progress:
            return sweep(jobs, self.source, self._processes, progress)

    @property
    def unbounded(self) -> Job:
        """What would be hit if nothing ever had to leave."""
        return Job(UNBOUNDED, 2 * self.summary.nbytes + 1, Unbounded)

    def about(self) -> dict[str, object]:
        """The trace, for JSON."""
        return {
            "path": str(self.trace.path),
            "format": self.trace.format,
            "damage": self.trace.damage,
            "uses": self.summary.uses,
            "skipped": self.source.skip,
            "objects": self.summary.objects,
            "footprint": self.summary.footprint,
            "equal_sizes": self.source.equal_sizes,
        }


def _told(items: Iterator[Access], progress: LateProgress) -> Iterator[Access]:
    for number, item in enumerate(items):
        if not number % 65536:
            progress(number)
        yield item


def figures(outcome: Outcome) -> dict[str, object]:
    """One outcome, for JSON."""
    counts = outcome.counts
    return {
        "policy": outcome.policy,
        "capacity": None if outcome.policy == UNBOUNDED else outcome.capacity,
        "uses": counts.uses,
        "hits": counts.hits,
        "hit_ratio": counts.hit_ratio,
        "byte_hit_ratio": counts.byte_hit_ratio,
        "bypasses": counts.bypasses,
        "evictions": counts.evictions,
        "written_bytes": counts.written,
        "seconds": round(outcome.seconds, 3),
    }
