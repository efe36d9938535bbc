"""How large a cache must be: from replays, or from how often datasets are used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

#: Shares of the footprint that are tried first.
LADDER: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

#: Capacities tried between two at a time.
_BETWEEN: Final = 4

#: The smallest capacity is found to this share of the footprint.
PRECISION: Final = 0.005

#: Hit ratios of so many capacities.
Measure = Callable[[Sequence[int]], Sequence[float]]


def ladder(footprint: int) -> list[int]:
    """The capacities to try first, in bytes."""
    return sorted({max(1, round(share * footprint)) for share in LADDER})


def smallest(
    target: float, tried: dict[int, float], footprint: int, measure: Measure
) -> int | None:
    """The smallest capacity with a hit ratio of *target*; None when none tried has it.

    *tried* holds the ratios of some capacities and takes those that *measure* gives. Where a larger
    cache hits less, as it may, this is the first capacity found that is enough.
    """
    while True:
        enough = min((size for size, ratio in tried.items() if ratio >= target), default=None)
        if enough is None:
            return None
        below = max((size for size in tried if size < enough), default=0)
        gap = enough - below
        if gap <= max(1, PRECISION * footprint):
            return enough
        sizes = sorted({below + gap * step // (_BETWEEN + 1) for step in range(1, _BETWEEN + 1)})
        sizes = [size for size in sizes if below < size < enough]
        tried.update(zip(sizes, measure(sizes), strict=True))


@dataclass(frozen=True, slots=True)
class Dataset:
    """What is known of one dataset: uses, each weighted by its age; bytes and objects used."""

    uses: float
    nbytes: int
    objects: int


def densest_first(datasets: Iterable[Dataset], limit: int) -> list[Dataset]:
    """*datasets* by uses per byte, those with none left out; all beyond *limit* put together."""
    ranked = sorted(
        (dataset for dataset in datasets if dataset.uses > 0 and dataset.nbytes > 0),
        key=lambda dataset: dataset.uses / dataset.nbytes,
        reverse=True,
    )
    rest = ranked[limit - 1 :]
    if len(rest) < 2:
        return ranked
    together = Dataset(
        sum(dataset.uses for dataset in rest),
        sum(dataset.nbytes for dataset in rest),
        sum(dataset.objects for dataset in rest),
    )
    return [*ranked[: limit - 1], together]


def expected(datasets: Sequence[Dataset], capacity: int) -> float:
    """The hit ratio of *capacity* bytes that hold what is used most per byte.

    *datasets* come densest first; the last one that gets bytes hits in proportion to them, as one
    read in epochs does whatever the policy, if it wastes nothing.
    """
    total = sum(dataset.uses for dataset in datasets)
    hits = 0.0
    for dataset in datasets:
        held = min(dataset.nbytes, capacity)
        hits += dataset.uses * held / dataset.nbytes
        capacity -= held
    return hits / total if total else 0.0


def expected_smallest(datasets: Sequence[Dataset], target: float) -> int:
    """The capacity for which `expected` is *target*, to the byte above."""
    missing = target * sum(dataset.uses for dataset in datasets)
    capacity = 0
    for dataset in datasets:
        if missing <= dataset.uses:
            return capacity + math.ceil(missing / dataset.uses * dataset.nbytes)
        missing -= dataset.uses
        capacity += dataset.nbytes
    return capacity
