"""What `cold` can measure: its rows, their goals, and which files each of them reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from bench import cold_memory, cold_plan, cold_tls, peers
from bench.workspace import BIG, MANY, SMALL, STREAMS, Scale


class Target(NamedTuple):
    """The least ratio to reach, and the part of the dataset that is read."""

    goal: float
    part: str


ROWS = {
    "cold.sequential": Target(0.8, BIG),
    "cold.streams": Target(0.8, STREAMS),
    "cold.small-files": Target(0.7, SMALL),
    "cold.cpu": Target(1.0, BIG),
    "cold.random-64k.useful": Target(1 / 1.2, BIG),
    "cold.memory": Target(cold_memory.GOAL, MANY),
    "cold.link.sequential": Target(0.95, BIG),
    "cold.link.streams": Target(0.95, STREAMS),
    "cold.link.small-files": Target(0.8, SMALL),
    "cold.link.plan": Target(0.9, STREAMS),
    "cold.link.plan.busy": Target(cold_plan.UNSTALLED_GOAL, STREAMS),
    "cold.tls": Target(cold_tls.GOAL, STREAMS),
    **{name: Target(peers.GOAL, SMALL if ".small-files." in name else BIG) for name in peers.ROWS},
}


def usual(scale: Scale) -> frozenset[str]:
    """What is measured when no rows are asked for: in small, no other file systems."""
    return frozenset(ROWS).difference(peers.ROWS if scale.smoke else ())


def parts(wanted: Collection[str]) -> frozenset[str]:
    """The parts of the dataset that the rows *wanted* read."""
    return frozenset(ROWS[name].part for name in wanted)
