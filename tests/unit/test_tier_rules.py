"""Rules on real tiers: who is never kept, who is pinned, how much of a tier some may take."""

from tiercache.config import RuleConfig
from tiercache.testing.tiers import Cache, file
from tiercache.types import MIB


def shard(n, size=MIB):
    return file(100 + n, size, key=b"raw/%d" % n)


def tier_of(cache, obj):
    return cache.store.holdings.where(obj)["tier"]


async def test_what_no_tier_may_take_bypasses_and_says_which_rule(tmp_path):
    rules = [RuleConfig(name="scratch", path="scratch/**", admit=False)]
    cache = Cache(tmp_path, (1, 1), rules=rules)
    never, other = file(7, MIB, key=b"scratch/a"), file(8, MIB, key=b"data/a")
    assert not cache.put(never)
    assert cache.put(other)
    found = cache.store.holdings.where(never)
    assert found["rule"] == "scratch"
    assert found["reason"] == "not taken by tier tier1: refused by rule scratch"
    assert cache.store.status()[0]["bypass_reasons"] == {"refused by rule scratch": 1}
    await cache.store.holdings.pin([never])
    assert cache.put(never), "a person overrules the rules"
    cache.store.close()


def test_first_match_wins(tmp_path):
    rules = [
        RuleConfig(name="index", suffixes=(".idx",)),
        RuleConfig(name="rest", admit=False),
    ]
    cache = Cache(tmp_path, rules=rules)
    assert cache.put(file(7, MIB, key=b"a.idx"))
    assert not cache.put(file(8, MIB, key=b"a.bin"))
    cache.store.close()


def test_share_caps_a_tier_and_the_rest_goes_to_the_next(tmp_path):
    rules = [RuleConfig(name="raw", path="raw/*", share=(("tier0", 4 * MIB),))]
    cache = Cache(tmp_path, (1, 1), rules=rules)
    for n in range(6):
        assert cache.put(shard(n))
    tiers = [tier_of(cache, shard(n)) for n in range(6)]
    assert tiers == ["tier0"] * 3 + ["tier1"] * 3, "with its overhead a fourth exceeds 4 MiB"
    assert cache.put(file(7, 50 * MIB))
    for again in (cache.restart, cache.crash):
        cache.store.flush()
        again()
        assert cache.put(shard(9))
        assert tier_of(cache, shard(9)) == "tier1"
        cache.store.evict(shard(9).ino)
    cache.store.evict(shard(0).ino)
    assert cache.put(shard(10))
    assert tier_of(cache, shard(10)) == "tier0"
    cache.store.close()


def test_share_holds_while_many_are_written_at_once(tmp_path):
    rules = [RuleConfig(name="raw", path="raw/*", share=(("tier0", 4 * MIB),))]
    cache = Cache(tmp_path, rules=rules)
    made = [cache.store.reserve(shard(n), 0, 1) for n in range(6)]
    assert [reservation is not None for reservation in made] == [True] * 3 + [False] * 3
    made[0].close()
    assert cache.store.reserve(shard(8), 0, 1) is not None
    large = shard(20, 3 * MIB)
    assert cache.store.reserve(large, 0, 1) is None
    cache.store.close()


async def test_rule_pins_what_was_used_as_long_as_it_is_there(tmp_path):
    rules = [RuleConfig(name="index", suffixes=(".idx",), pin=True)]
    cache = Cache(tmp_path, rules=rules, capacity=8 * MIB, policy="lru")
    index, too_large = file(7, 2 * MIB, key=b"a.idx"), file(8, 7 * MIB, key=b"b.idx")
    assert cache.put(index)
    for again in (lambda: None, cache.restart, cache.crash):
        cache.store.flush()
        again()
        for ino in range(20, 40):
            cache.put(file(ino, MIB))
        assert await cache.get(index)
    assert cache.store.holdings.where(index)["pinned"]
    assert not cache.store.holdings.where(too_large)["pinned"]
    cache.rules = ()
    cache.restart()
    assert cache.store.tiers[0].pinned == cache.store.tiers[0].promised == 0
    cache.store.touch(index)
    for ino in range(40, 60):
        cache.put(file(ino, MIB))
    assert not await cache.get(index)
    cache.store.close()
