"""What a person reads of a mount's tiers."""

import io

from rich.console import Console

from tiercache.config import RuleConfig
from tiercache.testing.tiers import Cache, file
from tiercache.types import MIB
from tiercache_cli.status_view import show


def text(cache, **facts):
    report = {
        "mountpoint": "/mnt/data",
        "source": "s3://bucket",
        "state": "serving",
        "holder": {"pid": 1},
        "worker": {"pid": 2, "restarts": 0},
        "warnings": [],
        "log": None,
        "hit_bytes": {"tier0": 0, "origin": 5 * MIB},
        "tiers": cache.store.status(),
    }
    for name in ("driver", "passthrough", "origin", "in_flight", "queued", "uptime_s"):
        report[name] = None
    report["worker_facts"] = facts
    console = Console(width=200, record=True, file=io.StringIO(), highlight=False)
    show([report], console)
    return console.export_text()


async def test_what_moved_left_and_was_refused_is_shown_once_there_is_any(tmp_path):
    rules = [RuleConfig(name="scratch", path="tmp/*", admit=False)]
    cache = Cache(tmp_path, capacity=4 * MIB, policy="lru", rules=rules)
    cache.put(file(7, MIB))
    calm = text(cache)
    for word in ("moved", "evicted", "bypassed", "pinned"):
        assert word not in calm
    await cache.store.holdings.pin([file(7, MIB)])
    for ino in range(20, 26):
        cache.put(file(ino, MIB))
    cache.put(file(8, MIB, key=b"tmp/a"))
    cache.put(file(9, 9 * MIB))
    cache.store.tiers[0].promotions = 3
    lines = text(cache).splitlines()
    assert "bypassed" in (row := next(line for line in lines if "took no" in line))
    assert "1 x refused by rule scratch, 1 x too large" in row
    [head] = [line for line in lines if "capacity" in line]
    assert head.split()[-5:] == ["pinned", "moved", "up", "evicted", "state"]
    cells = next(line for line in lines if line.startswith("  tier0")).split()
    assert cells[-3:-1] == ["3", str(cache.store.tiers[0].evictions)]
    cache.store.close()


async def test_what_is_filled_in_the_background_is_shown_if_it_is_switched_on(tmp_path):
    cache = Cache(tmp_path, capacity=4 * MIB)
    fill = {"enabled": False, "dataset": None, "fetched_bytes": 3 * MIB, "last": None}
    assert "fetched so far" not in text(cache, background_fill=fill)
    fill["enabled"] = True
    assert "nothing to fill; 3.0 MiB fetched" in text(cache, background_fill=fill)
    fill["last"] = {"dataset": "a/b", "ended": "no tier has room"}
    assert "a/b: no tier has room; 3.0 MiB" in text(cache, background_fill=fill)
    fill["dataset"] = "c/d"
    assert "filling c/d; 3.0 MiB" in text(cache, background_fill=fill)
    cache.store.close()
