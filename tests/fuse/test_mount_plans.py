"""Plans on real mounts: what several epochs fetch."""

from __future__ import annotations

import random
import subprocess

import pytest

from tiercache.simulation.replay import Access, replay
from tiercache.testing.data import check
from tiercache.testing.mounting import COMMAND
from tiercache.types import KIB
from tiercache_policies.belady import Belady
from tiercache_policies.lru import Lru

pytestmark = pytest.mark.mount

COUNT, SIZE = 120, 100 * KIB
CAPACITY = COUNT * SIZE // 2


def epochs():
    chance = random.Random(5)
    return [chance.sample(range(COUNT), COUNT) for _ in range(4)]


def follow(mount, order, file):
    file.write_text("".join(f"d/{i:03}\n" for i in order))
    subprocess.run([*COMMAND, "plan", str(file), str(mount.mountpoint)], check=True, timeout=60)


def test_k07_shuffled_epochs_over_a_small_tier_hit_what_belady_would(bucket, tmp_path, driver):
    for i in range(COUNT):
        bucket.put(f"d/{i:03}", SIZE, i)
    options = ("--cache-size", f"{CAPACITY}B", "-o", "policy=lru", "-o", "plan_window=1MiB")
    mount = bucket.mount(*options, "-o", "memory=4MiB", "-o", "part=1MiB", driver=driver)
    order = [i for epoch in epochs() for i in epoch]
    follow(mount, order, tmp_path / "plan")
    for i in order:
        check((mount.mountpoint / f"d/{i:03}").read_bytes(), 0, i)
    status = mount.status()
    files = CAPACITY // SIZE
    best = replay(Belady(files, order), (Access(0.0, i) for i in order), files)
    hits = 1 - status["counters"]["origin_gets"] / len(order)
    # A window ahead of the reader, and what is kept free by evictions, is not used again.
    assert hits > best.hit_ratio - 0.1
    alone = replay(Lru(files), (Access(0.0, i) for i in order), files)
    assert hits > alone.hit_ratio + 0.1
