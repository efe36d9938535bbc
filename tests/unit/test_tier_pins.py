"""Pins: who is pinned stays, has its room, and is pinned in the next process too."""

from dataclasses import replace

import pytest

from tiercache.config import MoveConfig
from tiercache.errors import HoldingError
from tiercache.testing.tiers import Cache, file
from tiercache.tier.store import Limits
from tiercache.transfer.mover import Mover
from tiercache.types import MIB


def pinned(cache):
    return [tier["pinned"] for tier in cache.store.status()]


async def test_pinned_object_survives_any_number_of_newcomers_and_restarts(tmp_path):
    cache = Cache(tmp_path, capacity=8 * MIB, policy="lru")
    kept = file(7, 2 * MIB)
    cache.put(kept)
    await cache.store.holdings.pin([kept])
    for restart in (cache.restart, cache.crash, cache.restart):
        for ino in range(20, 40):
            cache.put(file(ino, MIB))
        assert await cache.get(kept)
        charged = cache.store._table.get(kept).charged
        assert pinned(cache) == [charged]
        cache.store.flush()
        restart()
        assert pinned(cache) == [charged]
    await cache.store.holdings.unpin([kept.key])
    assert pinned(cache) == [0]
    for ino in range(40, 60):
        cache.put(file(ino, MIB))
    assert not await cache.get(kept)
    cache.store.close()


@pytest.mark.parametrize("policy", ["lru", "pin"])
async def test_what_is_not_local_has_its_room_kept(tmp_path, policy):
    cache = Cache(tmp_path, capacity=8 * MIB, policy=policy)
    for ino in range(20, 27):
        assert cache.put(file(ino, MIB))
    marked = file(7, 3 * MIB)
    await cache.store.holdings.pin([marked])
    for ino in range(30, 40):
        cache.put(file(ino, MIB))
    assert cache.used <= 5 * MIB
    cache.restart()
    assert cache.put(marked)
    assert cache.used <= 8 * MIB
    for ino in range(40, 60):
        cache.put(file(ino, MIB))
    assert await cache.get(marked)
    cache.store.close()


async def test_more_than_fits_is_refused_whole(tmp_path):
    cache = Cache(tmp_path, capacity=8 * MIB, policy="lru")
    holdings = cache.store.holdings
    await holdings.pin([file(7, 5 * MIB)])
    with pytest.raises(HoldingError, match="left for pins"):
        await holdings.pin([file(8, 2 * MIB), file(9, 2 * MIB)])
    assert [holdings.where(file(ino, 2 * MIB))["pinned"] for ino in (8, 9)] == [False, False]
    await holdings.pin([file(7, 5 * MIB), file(8, 2 * MIB)])
    with pytest.raises(HoldingError, match="no tier 'tape'"):
        await holdings.pin([file(7, MIB)], "tape")
    cache.store.close()


async def test_number_of_pins_is_bounded(tmp_path):
    cache = Cache(tmp_path, limits=Limits(pins=2))
    await cache.store.holdings.pin([file(7, 1), file(8, 1)])
    await cache.store.holdings.pin([file(7, 1), file(8, 1)])
    with pytest.raises(HoldingError, match="limit of 2"):
        await cache.store.holdings.pin([file(9, 1)])
    cache.store.close()


async def test_new_version_takes_over_the_pin(tmp_path):
    cache = Cache(tmp_path, capacity=8 * MIB, policy="lru")
    old = file(7, 3 * MIB)
    cache.put(old)
    await cache.store.holdings.pin([old])
    new = replace(old, ino=8, etag="v2", size=2 * MIB)
    assert cache.put(new)
    assert cache.store.tiers[0].promised < 3 * MIB
    for ino in range(20, 40):
        cache.put(file(ino, MIB))
    assert await cache.get(new)
    assert not await cache.get(old)
    charged = cache.store._table.get(new).charged
    assert pinned(cache) == [charged]
    cache.restart()
    assert pinned(cache) == [charged]
    assert await cache.get(new)
    cache.store.close()


async def test_pinned_object_is_moved_to_its_tier_and_never_demoted(tmp_path):
    cache = Cache(tmp_path, (1, 1), capacity=20 * MIB, policy="lru")
    below, nvme = file(7, 2 * MIB), cache.store.tiers[0]
    nvme.health.writable = False
    assert cache.put(below)
    nvme.health.writable = True
    assert (await cache.store.holdings.pin([below]))["tier"] == "tier0"
    config = MoveConfig(bandwidth=0, backoff="never", residence_s=0.0)
    mover = Mover(cache.store.exchange, config, activity=lambda: 0)
    where = cache.store.holdings.where
    await mover.round()
    assert (where(below)["tier"], pinned(cache)[1]) == ("tier0", 0)
    for ino in range(20, 60):
        cache.put(file(ino, MIB))
        await mover.round()
    assert nvme.demotions > 0
    assert where(below)["tier"] == "tier0"
    await cache.store.holdings.pin([below], "tier1")
    await mover.round()
    assert (where(below)["tier"], pinned(cache)[0]) == ("tier1", 0)
    assert await cache.get(below)
    cache.store.close()


async def test_evict_refuses_pinned_ones_and_removes_nothing_then(tmp_path):
    cache = Cache(tmp_path)
    kept, other = file(7, MIB), file(8, MIB)
    cache.put(kept)
    cache.put(other)
    await cache.store.holdings.pin([kept])
    with pytest.raises(HoldingError, match="1 of 2 files are pinned"):
        await cache.store.holdings.evict([other, kept])
    assert await cache.get(other)
    done = await cache.store.holdings.evict([other, kept], force=True)
    assert (done["objects"], cache.used, pinned(cache)) == (2, 0, [0])
    cache.store.close()


async def test_where_says_what_is_here_and_why(tmp_path):
    cache = Cache(tmp_path, capacity=4 * MIB, policy="pin")
    part, large = file(7, 3 * MIB), file(8, 9 * MIB)
    where = cache.store.holdings.where
    assert where(part)["reason"] == "not read lately"
    cache.put(part, 0, 2)
    cache.store.touch(part)
    found = where(part)
    assert (found["tier"], found["resident_bytes"]) == ("tier0", 2 * MIB)
    assert (found["passthrough"], found["passthrough_reason"]) == (False, "not complete")
    assert found["heat"] == pytest.approx(1, abs=0.01)
    assert found["reason"] == "admitted by policy pin"
    cache.put(part, 2, 3)
    assert where(part)["passthrough"] == cache.backing_matches(part)
    assert not cache.put(large)
    assert where(large)["reason"] == "not taken by tier tier0: too large"
    assert not cache.put(file(9, 2 * MIB))
    assert where(file(9, 2 * MIB))["reason"] == "not taken by tier tier0: full"
    cache.store.close()
