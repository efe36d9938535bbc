"""Accesses as training makes them, generated: deterministic by their seed, items of one size.

The time of an access is its position, so half-lives are in accesses.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from random import Random

from tiercache.simulation.replay import Access


def permutations(items: int, epochs: int, seed: int = 0, first: int = 0) -> Iterator[int]:
    """Every item once per epoch, shuffled anew each time."""
    random = Random(seed)
    order = list(range(first, first + items))
    for _ in range(epochs):
        random.shuffle(order)
        yield from order


def cyclic(items: int, epochs: int) -> Iterator[int]:
    """Every item once per epoch, always in the same order."""
    return itertools.chain.from_iterable(itertools.repeat(range(items), epochs))


def shards(count: int, items: int, epochs: int, seed: int = 0) -> Iterator[int]:
    """*count* shards of *items* each: shuffled shards, sequential inside."""
    for shard in permutations(count, epochs, seed):
        yield from range(shard * items, (shard + 1) * items)


def zipf(items: int, accesses: int, exponent: float = 0.9, seed: int = 0) -> Iterator[int]:
    """Independent draws, the k-th item in proportion to k ** -exponent."""
    random = Random(seed)
    weights = list(itertools.accumulate((k + 1) ** -exponent for k in range(items)))
    for _ in range(accesses):
        yield bisect.bisect_left(weights, random.random() * weights[-1])


def timed(items: Iterable[int], group: int = 0) -> Iterator[Access]:
    """Unit-size accesses of one group, one per second."""
    for position, item in enumerate(items):
        yield Access(float(position), item, 1, group)


def mixed(seed: int = 0) -> Iterator[Access]:
    """Datasets, a scan and checkpoints on one machine: about 130,000 accesses of 24,600 items.

    A (2,000 items) and B (8,000) in shuffled epochs at equal rates, a one-off scan of 6,000 in the
    middle, 14 checkpoints of 400 items that are written once; at 60 % A ends and D (3,000) begins.
    """
    random = Random(seed)
    steps = 60_000
    a = permutations(2_000, 1_000, seed + 1)
    b = permutations(8_000, 1_000, seed + 2, first=10_000)
    d = permutations(3_000, 1_000, seed + 3, first=30_000)
    scan = iter(range(50_000, 56_000))
    saves = {steps * (i + 1) // 15: i for i in range(14)}
    position = 0

    def access(item: int, group: int) -> Access:
        nonlocal position
        position += 1
        return Access(float(position), item, 1, group)

    for step in range(steps):
        pair = [(0, next(a)) if step < 0.6 * steps else (3, next(d)), (1, next(b))]
        random.shuffle(pair)
        for group, item in pair:
            yield access(item, group)
        if 0.45 * steps <= step < 0.55 * steps:
            yield access(next(scan), 2)
        if step in saves:
            for item in range(400):
                yield access(60_000 + 400 * saves[step] + item, 4)
