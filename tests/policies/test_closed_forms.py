"""Hit ratios that can be calculated, and the evidence for the default policy."""

from __future__ import annotations

import itertools
import math

import pytest

from tiercache.simulation import workloads
from tiercache.simulation.replay import Counts, Replay, replay
from tiercache_policies.adaptive import Adaptive
from tiercache_policies.arc import Arc
from tiercache_policies.belady import Belady
from tiercache_policies.fifo import Fifo
from tiercache_policies.lfu import Lfu
from tiercache_policies.lru import Lru
from tiercache_policies.pin import Pin
from tiercache_policies.s3fifo import S3Fifo
from tiercache_policies.two_random import TwoRandom
from tiercache_policies.wtinylfu import WTinyLfu

ITEMS = 4000
EPOCHS = 10
FRACTIONS = (0.1, 0.25, 0.5, 0.75, 0.9)


def steady(policy, items, capacity):
    """The hit ratio from the third epoch on."""
    simulation = Replay(policy, capacity)
    accesses = workloads.timed(items)
    for access in itertools.islice(accesses, 2 * ITEMS):
        simulation.use(access)
    simulation.counts = Counts()
    for access in accesses:
        simulation.use(access)
    return simulation.counts.hit_ratio


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("make", [Pin, Adaptive])
@pytest.mark.parametrize("order", ["permutations", "cyclic", "shards"])
def test_keeping_hits_the_fraction_that_fits(make, fraction, order):
    capacity = round(fraction * ITEMS)
    items = {
        "permutations": lambda: workloads.permutations(ITEMS, EPOCHS),
        "cyclic": lambda: workloads.cyclic(ITEMS, EPOCHS),
        "shards": lambda: workloads.shards(40, ITEMS // 40, EPOCHS),
    }[order]()
    assert steady(make(capacity), items, capacity) == pytest.approx(fraction, abs=0.001)


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_lru_on_permutations(fraction):
    capacity = round(fraction * ITEMS)
    expected = fraction + (1 - fraction) * math.log(1 - fraction)
    found = steady(Lru(capacity), workloads.permutations(ITEMS, EPOCHS), capacity)
    assert found == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("make", [Lru, Fifo, Lfu, Arc])
def test_recency_is_worth_nothing_on_repeated_scans(make):
    assert steady(make(ITEMS // 2), workloads.cyclic(ITEMS, EPOCHS), ITEMS // 2) == 0


@pytest.mark.parametrize("order", [workloads.permutations, workloads.cyclic])
def test_no_policy_beats_the_optimum(order):
    items = list(order(ITEMS, 6))
    capacity = ITEMS // 4
    bound = replay(Belady(capacity, items), workloads.timed(items), capacity).hits
    assert bound / len(items) == pytest.approx(0.25 * 5 / 6, abs=0.01)
    for make in (Pin, Adaptive, S3Fifo, WTinyLfu, Lru, Lfu, Fifo, Arc, TwoRandom):
        assert replay(make(capacity), workloads.timed(items), capacity).hits <= bound


#: What ranking datasets by heat density reached on such a trace, less 0.01.
MIXED = {1000: 0.1539, 2500: 0.3434, 5000: 0.4820, 10000: 0.7231}


@pytest.fixture(scope="module")
def mixture():
    return list(workloads.mixed())


@pytest.mark.slow
@pytest.mark.parametrize("capacity", MIXED)
def test_adaptive_gives_the_bytes_to_the_hotter_dataset(mixture, capacity):
    adaptive = replay(Adaptive(capacity, half_life=8000), mixture, capacity).hit_ratio
    assert adaptive >= MIXED[capacity]
    for make in (Pin, S3Fifo, WTinyLfu, Lru, Lfu, Fifo, Arc, TwoRandom):
        assert replay(make(capacity), mixture, capacity).hit_ratio < adaptive


@pytest.mark.slow
def test_adaptive_notices_skewed_popularity():
    accesses = list(workloads.timed(workloads.zipf(100_000, 200_000)))
    adaptive = replay(Adaptive(10_000, half_life=8000), accesses, 10_000).hit_ratio
    assert adaptive >= 0.62
    assert adaptive > replay(Pin(10_000), accesses, 10_000).hit_ratio


def test_a_scan_of_a_cold_dataset_displaces_nothing():
    hot = workloads.timed(workloads.permutations(1000, 6))
    simulation = Replay(Adaptive(1000, half_life=3000), 1000)
    for access in itertools.islice(hot, 4000):
        simulation.use(access)
    for access in workloads.timed(range(10_000, 13_000), group=1):
        simulation.use(access._replace(time=4000.0))
    assert set(range(1000)) <= simulation.resident.keys()


def test_a_dataset_that_becomes_hot_takes_the_space():
    simulation = Replay(Adaptive(1000, half_life=500), 1000)
    for access in workloads.timed(workloads.permutations(1000, 4)):
        simulation.use(access)
    now = 4000.0
    for item in workloads.permutations(1000, 2, first=10_000):
        now += 1
        simulation.use(workloads.Access(now, item, 1, 1))
    newcomers = sum(item >= 10_000 for item in simulation.resident)
    assert newcomers > 900
