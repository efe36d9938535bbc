"""`[prefetch] background_fill` on real mounts."""

from __future__ import annotations

import time

import pytest

from tiercache.testing.data import check
from tiercache.types import KIB, MIB

pytestmark = pytest.mark.mount

OPTIONS = ("-o", "background_fill=true", "-o", "files_ahead=0")


def wait_for(condition):
    """Until the background has done it."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def fill(mount):
    return mount.status()["worker_facts"]["background_fill"]


def read(mount, numbers, form="a/b/{:02}"):
    for i in numbers:
        check((mount.mountpoint / form.format(i)).read_bytes(), 0, i)


def test_reading_a_part_of_a_directory_makes_the_rest_of_it_local(bucket, driver):
    for i in range(30):
        bucket.put(f"a/b/{i:02}", 100 * KIB, i)
    bucket.put("a/c/other", MIB, 1)
    mount = bucket.mount(*OPTIONS, driver=driver)
    read(mount, range(10))
    wait_for(lambda: fill(mount)["last"] is not None)
    assert fill(mount)["last"] == {"dataset": "a/b", "ended": "nothing is left to fetch"}
    status = mount.status()
    # Of the ten that were read some may have been there already.
    counters = status["counters"]
    assert counters["fetched_fill_bytes"] >= 20 * 100 * KIB
    assert counters["fetched_fill_bytes"] == fill(mount)["fetched_bytes"]
    assert counters["origin_bytes"] == 30 * 100 * KIB
    read(mount, range(30))
    assert mount.status()["counters"]["origin_gets"] == 30


def test_a_tier_that_is_too_small_is_filled_and_nothing_leaves(bucket):
    for i in range(10):
        bucket.put(f"old/set/{i:02}", 100 * KIB, i)
    for i in range(99):
        bucket.put(f"a/b/{i:02}", 100 * KIB, i)
    mount = bucket.mount(*OPTIONS, "--cache-size", "4MiB", "-o", "policy=lru")
    read(mount, range(7), "old/set/{:02}")
    read(mount, range(10))
    wait_for(lambda: fill(mount)["last"] is not None)
    assert fill(mount)["last"] == {"dataset": "a/b", "ended": "no tier has room"}
    status = mount.status()
    [tier] = status["tiers"]
    assert tier["evictions"] == 0
    assert 0.8 * tier["capacity"] < tier["used"] <= tier["high_water"]
    read(mount, range(7), "old/set/{:02}")
    read(mount, range(10))
    assert mount.status()["counters"]["origin_gets"] == status["counters"]["origin_gets"]
