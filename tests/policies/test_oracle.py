"""Hit counts against libCacheSim, where it is installed, and golden ones that need nothing."""

from __future__ import annotations

import os
import struct
import tempfile
from pathlib import Path

import pytest

from tiercache.simulation import workloads
from tiercache.simulation.replay import Access, replay
from tiercache_policies.arc import Arc
from tiercache_policies.belady import Belady
from tiercache_policies.fifo import Fifo
from tiercache_policies.lfu import Lfu
from tiercache_policies.lru import Lru
from tiercache_policies.s3fifo import S3Fifo
from tiercache_policies.wtinylfu import WTinyLfu

RECORD = struct.Struct("<IQIq")
TRACES = Path(os.environ.get("TIERCACHE_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
CLOUD_PHYSICS = TRACES / "cloudphysics.oracleGeneral.bin"

EXACT = {"FIFO": Fifo, "LRU": Lru, "LFU": Lfu, "ARC": Arc, "S3FIFO": S3Fifo}


def generated(name):
    return {
        "permutations": lambda: list(workloads.permutations(2000, 5, seed=3)),
        "zipf": lambda: list(workloads.zipf(5000, 40_000, seed=3)),
        "cyclic": lambda: list(workloads.cyclic(1500, 5)),
    }[name]()


def field_trace():
    if not CLOUD_PHYSICS.exists():
        pytest.skip("no field trace here; name its directory in TIERCACHE_TRACES")
    numbers = (record[1] for record in RECORD.iter_unpack(CLOUD_PHYSICS.read_bytes()))
    return [number % (1 << 63) for number in numbers]


def oracle(items, capacity, name):
    """Hits of libCacheSim's *name*."""
    library = pytest.importorskip("libcachesim")
    upcoming: dict[int, int] = {}
    records = []
    for position in range(len(items) - 1, -1, -1):
        item = items[position]
        records.append(RECORD.pack(position, item, 1, upcoming.get(item, -1)))
        upcoming[item] = position
    with tempfile.NamedTemporaryFile(suffix=".oracleGeneral.bin") as file:
        file.write(b"".join(reversed(records)))
        file.flush()
        reader = library.TraceReader(file.name, library.TraceType.ORACLE_GENERAL_TRACE)
        cache = getattr(library, name)(cache_size=capacity, hashpower=16)
        miss_ratio, _ = cache.process_trace(reader)
    return round((1 - miss_ratio) * len(items))


def hits(policy, items, capacity):
    return replay(policy, (Access(float(t), i) for t, i in enumerate(items)), capacity).hits


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("capacity", [200, 1000])
@pytest.mark.parametrize("order", ["permutations", "zipf", "cyclic"])
def test_hits_are_those_of_libcachesim(order, capacity, name):
    items = generated(order)
    assert hits(EXACT[name](capacity), items, capacity) == oracle(items, capacity, name)


@pytest.mark.parametrize("order", ["permutations", "zipf", "cyclic"])
def test_belady_hits_are_those_of_libcachesim(order):
    items = generated(order)
    mine = hits(Belady(500, items, bypass=0), items, 500)
    assert mine == oracle(items, 500, "Belady")
    assert hits(Belady(500, items), items, 500) >= mine


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("capacity", [500, 5000, 20_000])
def test_hits_on_a_field_trace(capacity, name):
    items = field_trace()
    assert hits(EXACT[name](capacity), items, capacity) == oracle(items, capacity, name)


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [500, 5000, 20_000])
def test_wtinylfu_is_within_a_point_on_a_field_trace(capacity):
    items = field_trace()
    mine = hits(WTinyLfu(capacity), items, capacity)
    assert abs(mine - oracle(items, capacity, "WTinyLFU")) <= 0.01 * len(items)


#: Those that have one in libCacheSim were equal to it.
GOLDEN = {
    "FIFO": 2728,
    "LRU": 2971,
    "LFU": 3672,
    "ARC": 3261,
    "S3FIFO": 3473,
    "WTinyLFU": 3786,
    "Belady": 4323,
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_hits(name):
    items = list(workloads.zipf(500, 5000, seed=9)) + list(workloads.permutations(300, 5, seed=9))
    policy = {**EXACT, "WTinyLFU": WTinyLfu}.get(name)
    made = Belady(100, items) if policy is None else policy(100)
    assert hits(made, items, 100) == GOLDEN[name]
