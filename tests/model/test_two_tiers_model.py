"""Two tiers and their mover against a dict: copies move, leave and come back, and never lie."""

import tempfile
from functools import partial
from pathlib import Path

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tiercache.config import MoveConfig, RuleConfig
from tiercache.errors import HoldingError
from tiercache.testing.tiers import Cache, file
from tiercache.tier.store import Limits
from tiercache.transfer.mover import Mover
from tiercache.types import MIB

NVME, HDD = 6 * MIB, 9 * MIB
OBJECTS = [
    file(10 + n, size, key=b"%s/%d" % (b"raw" if n % 2 else b"idx", n))
    for n, size in enumerate((1, 5000, 400_000, MIB, MIB + 1, 2 * MIB, 3 * MIB, 7 * MIB))
]
RULES = (RuleConfig(name="raw", path="raw/*", share=(("tier0", 3 * MIB),)),)
MOVES = MoveConfig(bandwidth=0, backoff="never", residence_s=0.0, margin=1.0)

objects = st.sampled_from(OBJECTS)


class TwoTiers(RuleBasedStateMachine):
    """`blocks` is what was written and nobody removed; `pinned` is what must stay."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.blocks = {obj: set() for obj in OBJECTS}
        self.pinned = set()
        self.orphans = False

    @initialize(policy=st.sampled_from(["lru", "pin", "adaptive"]))
    def start(self, policy):
        limits = Limits(objects=3, fds=2, unlink_inline=2 * MIB)
        root = Path(self.directory.name)
        self.cache = Cache(root, (1, 1), policy=policy, limits=limits, rules=RULES)
        self.cache.set_capacities(NVME, HDD)
        self.opened()

    def opened(self):
        self.mover = Mover(self.cache.store.exchange, MOVES, activity=lambda: 0)
        trio.run(self.cache.store._keeping._introduce)
        self.counted = self.removed()

    def removed(self):
        return sum(tier.evictions for tier in self.cache.store.tiers)

    # -- what happens ----------------------------------------------------------------------------

    @rule(obj=objects, data=st.data())
    def put(self, obj, data):
        first = data.draw(st.integers(0, obj.blocks - 1))
        end = data.draw(st.integers(first + 1, obj.blocks))
        if self.cache.put(obj, first, end):
            self.blocks[obj] |= set(range(first, end))

    @rule(obj=objects)
    def fill(self, obj):
        if self.cache.fill(obj):
            self.blocks[obj] = set(range(obj.blocks))

    @rule(obj=objects, times=st.integers(1, 5))
    def use(self, obj, times):
        for _ in range(times):
            self.cache.clock.now += 1.0
            self.cache.store.touch(obj)

    @rule()
    def move(self):
        trio.run(self.mover.round)

    @rule(obj=objects)
    def evict(self, obj):
        self.cache.store.evict(obj.ino)
        self.blocks[obj].clear()

    @rule(obj=objects, tier=st.sampled_from([None, "tier0", "tier1"]))
    def pin(self, obj, tier):
        try:
            trio.run(self.cache.store.holdings.pin, [obj], tier)
        except HoldingError:
            return
        self.pinned.add(obj)

    @rule(obj=objects)
    def unpin(self, obj):
        trio.run(self.cache.store.holdings.unpin, [obj.key])
        self.pinned.discard(obj)

    @rule(boot=st.sampled_from([None, "boot-2", "boot-3"]))
    def restart(self, boot):
        self.cache.restart(boot=boot)
        self.opened()

    @rule(flushed=st.booleans())
    def crash(self, flushed):
        """What was not flushed may be forgotten; its files are orphans until a sweep."""
        if flushed:
            self.cache.store.flush()
        queued = bool(self.cache.store._removal.queue)
        self.cache.crash()
        self.opened()
        if not flushed:
            self.blocks = {obj: self.resident(obj) & had for obj, had in self.blocks.items()}
            self.pinned = {obj for obj in OBJECTS if self.cache.store.holdings.pins.get(obj)}
        self.orphans = self.orphans or not flushed or queued

    # -- what must hold --------------------------------------------------------------------------

    def resident(self, obj):
        return {block for block in range(obj.blocks) if self.cache.store.has(obj, block)}

    @invariant()
    def what_is_gone_was_removed_and_what_is_here_reads_right(self):
        if not hasattr(self, "cache"):
            return
        gone = 0
        for obj in OBJECTS:
            here = self.resident(obj)
            if not here >= self.blocks[obj]:
                gone += 1
                assert obj not in self.pinned, "a pinned object left"
            self.blocks[obj] = here
            for block in here:
                size = min(MIB, obj.size - block * MIB)
                assert trio.run(partial(self.cache.get, obj, block * MIB, size))
        removed = self.removed()
        assert gone <= removed - self.counted
        self.counted = removed

    @invariant()
    def accounts_agree_with_the_disk_and_with_each_other(self):
        if not hasattr(self, "cache"):
            return
        store = self.cache.store
        items = [item for obj in OBJECTS if (item := store._table.get(obj)) is not None]
        assert {item.ino for item in items if item.pinned} == {obj.ino for obj in self.pinned}
        for tier, capacity in zip(store.tiers, (NVME, HDD), strict=True):
            here = [item for item in items if item.tier is tier]
            charged = sum(item.charged for item in here)
            assert tier.used <= capacity
            assert sum(place.totals.nbytes for place in tier.places) == charged
            assert tier.pinned == sum(item.charged for item in here if item.pinned)
            assert sum(tier.shares.values()) == sum(item.charged for item in here if item.rule)
            assert not any(tier.share_reserved.values())
            tier.policy.check()
        assert sum(store.tiers[0].shares.values()) <= 3 * MIB or self.pinned
        if not self.orphans:
            assert self.cache.on_disk() <= self.cache.used
            names = [path.name for path in self.cache.files()]
            assert len(names) == len(set(names)) == sum(item.place is not None for item in items)

    def teardown(self):
        if hasattr(self, "cache"):
            self.cache.store.close()
        self.directory.cleanup()


TwoTiers.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestTwoTiers = TwoTiers.TestCase
