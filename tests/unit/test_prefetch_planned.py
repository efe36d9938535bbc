"""Who leaves a tier while a plan says what will be read."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.prefetch.foresight import Foresight
from tiercache.prefetch.plan import NEVER, Plan, PlanItem
from tiercache.simulation.replay import Access, Replay, replay
from tiercache_policies.belady import Belady
from tiercache_policies.lru import Lru
from tiercache_policies.pin import Pin


def name(item):
    return b"%06d" % item


class Readers:
    """A plan of the files *order*, and a tier of *capacity* files under *policy* that follows it.

    Numbers below 1000 are files of the plan.
    """

    def __init__(self, order, capacity, policy=Lru, *, spread=1024):
        self.plan = Plan([PlanItem(name(item)) for item in order], window=1, spread=spread)
        self.foresight = Foresight()
        self.foresight.key_of = name
        self.policy = self.foresight.over(policy(capacity))
        self.foresight.follow(self.plan)
        self.tier = Replay(self.policy, capacity)

    def open(self, item):
        self.plan.opened(name(item))
        self.foresight.opened(item, name(item))

    def read(self, item):
        """Open it, miss or hit, close it."""
        self.open(item)
        hit = self.tier.use(Access(0.0, item))
        self.foresight.released(item)
        self.policy.check()
        return hit

    def prefetch(self, item):
        return self.tier.use(Access(0.0, item))


def shuffled_epochs(items, epochs, seed):
    chance = random.Random(seed)
    return [item for _ in range(epochs) for item in chance.sample(range(items), items)]


@pytest.mark.parametrize("policy", [Lru, Pin])
@pytest.mark.parametrize("capacity", [5, 13, 50, 95])
def test_e03_shuffled_epochs_hit_what_belady_would(policy, capacity):
    order = shuffled_epochs(100, 4, seed=capacity)
    readers = Readers(order, capacity, policy)
    for item in order:
        readers.read(item)
    best = replay(Belady(capacity, order), (Access(0.0, item) for item in order), capacity)
    assert readers.tier.counts.hits == best.hits
    alone = replay(policy(capacity), (Access(0.0, item) for item in order), capacity)
    assert alone.hits < best.hits or policy is Pin  # which is as good when all is used once


def test_what_is_never_used_again_goes_before_what_is_used_last():
    readers = Readers([1, 2, 3, 4, 2, 1], 3)
    for item in (1, 2, 3):
        readers.read(item)
    assert readers.policy.victim(0.0) is None  # for 3, which is never used again itself
    readers.prefetch(4)
    assert set(readers.tier.resident) == {1, 2, 4}
    readers.read(4)
    assert not readers.read(3)  # an entry less was planned
    assert set(readers.tier.resident) == {1, 2, 4}


def test_what_was_fetched_ahead_is_still_to_be_read():
    readers = Readers([1, 2, 3, 4, 1, 2, 3, 4], 2)
    readers.prefetch(1)
    readers.prefetch(2)
    readers.read(1)  # needed at 4 now, and 2 at 1
    assert readers.policy.victim(0.0) == 1
    assert not readers.prefetch(3)
    assert set(readers.tier.resident) == {2, 3}


def test_nothing_fetched_ahead_displaces_what_is_needed_sooner():
    readers = Readers([1, 2, 3, 1, 2, 3], 2)
    readers.prefetch(1)
    readers.prefetch(2)
    readers.prefetch(3)
    assert set(readers.tier.resident) == {1, 2}


def test_a_file_stays_while_it_is_being_read():
    readers = Readers([1, 2, 3, 2, 3, 1], 2)
    readers.prefetch(1)
    readers.prefetch(2)
    readers.open(1)  # its next use is the last of all
    readers.prefetch(3)
    assert set(readers.tier.resident) == {1, 2}
    assert not readers.foresight.released(2)  # opened before the plan was set
    readers.open(1)
    assert not readers.foresight.released(1)
    assert readers.policy.victim(0.0) is None
    assert readers.foresight.released(1)
    readers.prefetch(3)
    assert set(readers.tier.resident) == {2, 3}


def test_who_was_left_behind_is_needed_in_the_next_epoch_only():
    readers = Readers([*range(12), *range(12)], 2, spread=4)
    readers.prefetch(0)
    readers.prefetch(3)
    for item in (1, 2, 4, 5, 6, 7, 8):
        readers.open(item)
    assert readers.plan.skipped == 2
    assert readers.policy.victim(0.0) == 3  # at 15, and 0 at 12
    readers.prefetch(9)
    assert set(readers.tier.resident) == {0, 9}
    readers.policy.check()


def test_files_that_the_plan_does_not_mention_are_the_policys():
    readers = Readers([1, 2, 3, 1, 2, 3], 3)
    for item in (1001, 1, 2):
        readers.tier.use(Access(0.0, item))
    readers.prefetch(3)  # of all, 1001 was not used for the longest time
    assert set(readers.tier.resident) == {1, 2, 3}
    readers.tier.use(Access(0.0, 1002))  # the policy lets it in, the plan says for whom
    assert set(readers.tier.resident) == {1, 2, 1002}


def test_a_policy_that_lets_nobody_go_keeps_the_plan_from_other_files():
    readers = Readers([1, 2, 1, 2], 2, Pin)
    for item in (1, 1001):
        readers.tier.use(Access(0.0, item))
    readers.prefetch(2)
    readers.tier.use(Access(0.0, 1002))
    assert set(readers.tier.resident) == {1, 1001}


@pytest.mark.parametrize("end", ["read", "cleared"])
def test_without_a_plan_the_policy_decides(end):
    readers = Readers([1, 2, 1, 2, 1], 2)
    readers.prefetch(2)
    readers.prefetch(1)
    assert readers.policy.victim(0.0) != 1
    if end == "cleared":
        readers.foresight.follow(None)
    else:
        for item in (1, 2, 1, 2, 1):
            readers.read(item)
        assert readers.plan.done
    readers.tier.use(Access(0.0, 7))
    assert readers.policy.victim(0.0) == {"cleared": 1, "read": 1}[end]
    readers.policy.check()


def test_residents_of_before_are_known_once_introduced():
    readers = Readers([1, 2, 3, 2, 1], 2)
    readers.foresight.follow(None)
    for item in (1, 2):
        readers.tier.use(Access(0.0, item))
    readers.foresight.follow(readers.plan)
    for item in (1, 2, 3):  # the last one has just left
        readers.policy.consider(item)
    readers.policy.remove(3)
    readers.open(1)
    readers.foresight.released(1)
    assert readers.policy.victim(0.0) == 1


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=60),
    st.lists(st.tuples(st.sampled_from("rofx"), st.integers(0, 15)), max_size=80),
    st.integers(1, 6),
)
def test_the_victim_is_always_the_one_needed_last(order, steps, spread):
    readers = Readers(order, 5, Pin, spread=spread)
    for step, item in steps:
        if step == "r":
            readers.read(item)
        elif step == "o":
            readers.open(item)
        elif step == "x":
            readers.foresight.released(item)
        else:
            readers.prefetch(item)
        readers.policy.check()
        victim = readers.policy.victim(0.0)
        assert victim == readers.policy.victim(0.0)
        if readers.plan.done or victim is None:
            continue
        left = [i for p, i in enumerate(order) if not readers.plan._past(p)]
        known = [i for i in readers.tier.resident if i in order]
        closed = [i for i in known if i not in readers.foresight._open]
        uses = {i: left.index(i) if i in left else NEVER for i in closed}
        assert uses[victim] == max(uses.values())
