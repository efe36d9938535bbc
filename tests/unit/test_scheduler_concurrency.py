"""The limit follows what the origin can do. The origin is a formula; time is simulated."""

import heapq
import random

import pytest

from tiercache.transfer.concurrency import Concurrency
from tiercache.types import KIB, MIB


class Link:
    """An origin that serves each request after `latency_s`, all sharing `bytes_per_s`.

    Each connection gets at most `per_connection`; `throttle_above` answers 503 beyond it.
    """

    def __init__(self, latency_s, bytes_per_s, per_connection=float("inf"), throttle_above=None):
        self.latency_s = latency_s
        self.bytes_per_s = bytes_per_s
        self.per_connection = per_connection
        self.throttle_above = throttle_above


def drive(control, link, seconds, size=8 * MIB, want=1000, start=0.0, seed=1):
    """Keep as many requests going as are allowed and wanted; returns bytes per second."""
    chance = random.Random(seed)
    now, done, running = start, 0, []
    while now < start + seconds:
        while len(running) < min(control.limit, want):
            used = len(running) + 1
            rate = min(link.per_connection, link.bytes_per_s / used)
            queued = max(0.0, used * size / link.bytes_per_s - size / rate)
            first = link.latency_s * chance.uniform(0.9, 1.1) + queued
            throttled = link.throttle_above is not None and used > link.throttle_above
            end = now + (0.01 if throttled else first + size / rate)
            heapq.heappush(running, (end, chance.random(), now + first - now, throttled))
        now, _, first, throttled = heapq.heappop(running)
        if throttled:
            control.throttled(now)
        else:
            done += size
            control.finished(size, first, now, full=want > len(running) + 1)
    return done / seconds


def test_grows_while_connections_bring_throughput():
    control = Concurrency(4, 64)
    drive(control, Link(0.05, 10_000 * MIB, per_connection=20 * MIB), 60)
    assert control.limit == 64


def test_small_objects_at_a_distance_use_every_connection():
    control = Concurrency(4, 64)
    drive(control, Link(0.05, 10_000 * MIB), 60, size=110 * KIB)
    assert control.limit == 64


def test_a_full_link_is_not_buried():
    control = Concurrency(4, 256)
    drive(control, Link(0.02, 500 * MIB, per_connection=100 * MIB), 300)
    assert control.limit < 192
    assert (
        drive(control, Link(0.02, 500 * MIB, per_connection=100 * MIB), 60, start=300) > 450 * MIB
    )


def test_throttling_backs_off_and_recovers():
    control = Concurrency(4, 128)
    link = Link(0.05, 10_000 * MIB, per_connection=20 * MIB, throttle_above=20)
    drive(control, link, 120, size=MIB)
    assert 4 <= control.limit <= 40
    link.throttle_above = None
    drive(control, link, 600, size=MIB, start=120)
    assert control.limit == 128


def test_a_herd_of_503_counts_once():
    control = Concurrency(1, 100)
    before = control.limit
    for i in range(50):
        control.throttled(i * 0.01)
    assert control.limit == int(before * 0.7)


def test_what_is_not_bounded_by_the_limit_teaches_nothing():
    control = Concurrency(4, 64)
    before = control.limit
    drive(control, Link(0.05, 10_000 * MIB, per_connection=20 * MIB), 30, want=3)
    assert control.limit == before


def test_an_origin_that_becomes_slow_gets_fewer():
    control = Concurrency(4, 64)
    drive(control, Link(0.02, 10_000 * MIB, per_connection=50 * MIB), 30, size=MIB)
    high = control.limit
    slow = Link(1.0, 10_000 * MIB, per_connection=5 * MIB)
    drive(control, slow, 10, size=MIB, start=30)
    assert control.limit < high
    drive(control, slow, 900, size=MIB, start=40)  # but that is no reason to stay low for ever
    assert control.limit == 64


@pytest.mark.parametrize(("low", "high"), [(1, 1), (8, 4), (8, 8), (1, 1000)])
def test_stays_within_bounds(low, high):
    control, chance = Concurrency(low, high), random.Random(3)
    now = 0.0
    for _ in range(20_000):
        now += chance.expovariate(100)
        if chance.random() < 0.01:
            control.throttled(now)
        full = chance.random() < 0.8
        control.finished(chance.randrange(8 * MIB), chance.random(), now, full=full)
        assert min(low, high) <= control.limit <= high
