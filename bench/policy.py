"""`policy`: what each policy hits, replayed on generated workloads by the classes a mount runs.

Rows are shares of uses in per cent. They are compared with the optimum, with what can be calculated
in closed form, and with what the default policy is meant to reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.rows import Pair, Row
from bench.workspace import Scale, say
from tiercache import policies_registry
from tiercache.simulation import workloads
from tiercache.simulation.jobs import Job, Source
from tiercache.simulation.replay import Access
from tiercache.simulation.sweep import sweep, usable_cores

ADAPTIVE, BELADY = "adaptive", "belady"
UNIT = "%"

#: In uses, as time goes in generated workloads: a part of an epoch of the hot datasets.
HALF_LIFE: Final = 8000

#: What ranking datasets by heat density reached on such a mixture when it was designed, less 1.
MIXED_GOALS: Final = {1000: 15.39, 2500: 34.34, 5000: 48.20, 10000: 72.31}

ZIPF_ITEMS, ZIPF_USES, ZIPF_CAPACITY, ZIPF_GOAL = 100_000, 200_000, 10_000, 62.0

EPOCH_ITEMS, EPOCHS, WARM_EPOCHS = 4000, 8, 2

#: Least ratio to what a closed form says.
CLOSED: Final = 0.99


@dataclass(frozen=True, slots=True)
class Generated:
    """A workload that is generated anew by each process that replays it."""

    make: Callable[[], Iterator[Access]]

    def __iter__(self) -> Iterator[Access]:
        return self.make()


def measure(scale: Scale) -> Iterator[Row]:
    """All simulated rows; at scale `small` one capacity of each."""
    small = scale.name == "small"
    for order in ("permutations", "cyclic"):
        for fraction in (0.5,) if small else (0.1, 0.25, 0.5, 0.75, 0.9):
            yield from closed_forms(order, fraction)
    yield from mixed(list(MIXED_GOALS)[: 1 if small else None])
    if not small:
        yield zipf()


def mixed(capacities: Sequence[int]) -> list[Row]:
    """Datasets, a scan and checkpoints: every policy, and how far ahead the default is."""
    say(f"a mixture of datasets, {len(policies_registry.names())} policies")
    jobs = [job(name, size) for size in capacities for name in policies_registry.names()]
    found = hits(jobs, Source(Generated(workloads.mixed)))
    rows = []
    for size in capacities:
        ratios = {name: found[name, size] for name in policies_registry.names()}
        rows += _compared(f"policy.mixed-{size}", ratios, MIXED_GOALS[size])
    return rows


def _compared(name: str, ratios: Mapping[str, float], goal: float) -> list[Row]:
    ranked = sorted(ratios, key=lambda policy: -ratios[policy])
    optimum, adaptive = ratios[BELADY], ratios[ADAPTIVE]
    best = next(policy for policy in ranked if policy not in (ADAPTIVE, BELADY))
    return [
        *(_row(f"{name}.{policy}", ratios[policy], "optimum", optimum) for policy in ranked),
        _row(f"{name}.lead", adaptive, f"best other, {best}", ratios[best], 1.0),
        _row(f"{name}.goal", adaptive, "design goal", goal, 1.0),
    ]


def zipf() -> Row:
    """One dataset whose objects differ in popularity: keeping what came first is wrong there."""
    say("a skewed workload")
    source = Source(Generated(_zipf))
    found = hits([job(ADAPTIVE, ZIPF_CAPACITY)], source)[ADAPTIVE, ZIPF_CAPACITY]
    return _row(f"policy.zipf-{ZIPF_CAPACITY}", found, "design goal", ZIPF_GOAL, 1.0)


def _zipf() -> Iterator[Access]:
    return workloads.timed(workloads.zipf(ZIPF_ITEMS, ZIPF_USES))


def closed_forms(order: str, fraction: float) -> list[Row]:
    """One dataset in epochs, of which *fraction* fits: shuffled anew, or the same order always."""
    capacity = round(fraction * EPOCH_ITEMS)
    expected = {ADAPTIVE: fraction, "pin": fraction}
    if order == "permutations":
        expected["lru"] = fraction + (1 - fraction) * math.log(1 - fraction)
    source = Source(Generated(partial(_epochs, order)), skip=WARM_EPOCHS * EPOCH_ITEMS)
    found = hits([job(name, capacity) for name in expected], source)
    return [
        _row(
            f"policy.{order}-{fraction}.{name}",
            found[name, capacity],
            "closed form",
            100 * ratio,
            None if name == "lru" else CLOSED,
        )
        for name, ratio in expected.items()
    ]


def _epochs(order: str) -> Iterator[Access]:
    make = workloads.permutations if order == "permutations" else workloads.cyclic
    return workloads.timed(make(EPOCH_ITEMS, EPOCHS))


def job(name: str, capacity: int) -> Job:
    """Policy *name*, its half-life in uses if it has one."""
    declared = policies_registry.params_of(policies_registry.find(name))
    given = {"half_life": HALF_LIFE} if "half_life" in declared else {}
    return Job(name, capacity, partial(policies_registry.make, name, given=given))


def hits(jobs: Sequence[Job], source: Source) -> dict[tuple[str, int], float]:
    """Share of uses that hit, in per cent, by policy and capacity."""
    return {
        (outcome.policy, outcome.capacity): 100 * outcome.counts.hit_ratio
        for outcome in sweep(jobs, source, usable_cores())
    }


def _row(
    name: str, value: float, baseline_name: str, baseline: float, goal: float | None = None
) -> Row:
    return Row(name, UNIT, baseline_name, goal, (Pair(value, baseline),))
