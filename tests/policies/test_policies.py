"""What holds for every policy, whatever happens to it; and what policies cost."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercache import policies_registry
from tiercache.errors import ConfigError
from tiercache.policy import Param
from tiercache.simulation import workloads
from tiercache.simulation.replay import replay

NAMES = ["adaptive", "pin", "s3fifo", "wtinylfu", "lru", "lfu", "fifo", "2random", "arc", "belady"]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["use", "use", "use", "use", "use", "lose", "resize"]),
        st.integers(0, 30),
        st.integers(1, 40),
    ),
    max_size=120,
)


def test_all_are_registered():
    assert set(NAMES) <= set(policies_registry.names())


@pytest.mark.parametrize("name", NAMES)
@given(steps=STEPS, capacity=st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_it_stays_consistent(name, steps, capacity):
    policy = policies_registry.make(name, capacity)
    resident: dict[int, int] = {}
    for now, (step, item, size) in enumerate(steps):
        if step == "resize":
            capacity = size * 5
            policy.resize(capacity)
        elif step == "lose":
            policy.remove(item)
            resident.pop(item, None)
        elif item in resident:
            policy.access(item, now)
        elif make_room(policy, resident, capacity, (item, size, item % 3, now)):
            policy.admit(item, size, item % 3, now)
            resident[item] = size
        policy.check()
        assert isinstance(policy.score(item, now), int | float)
    for item in list(resident):
        policy.remove(item)
    policy.check()
    assert policy.victim(1e6) is None


def make_room(policy, resident, capacity, newcomer):
    _, size, _, now = newcomer
    if not policy.wants(*newcomer):
        return False
    while sum(resident.values()) + size > capacity:
        victim = policy.victim(now)
        assert victim == policy.victim(now), "asked twice, said two things"
        if victim is None:
            return False
        del resident[victim]  # KeyError: it was not there
        policy.remove(victim, evicted=True)
        policy.check()
    return True


@pytest.mark.parametrize("name", [name for name in NAMES if name != "pin"])
def test_residents_admitted_again_change_their_size(name):
    policy = policies_registry.make(name, 100)
    for size in (10, 60, 5):
        policy.admit(1, size, 0, 0.0)
        policy.check()
    policy.remove(1)
    policy.check()
    assert policy.victim(1.0) is None


@pytest.mark.parametrize("name", ["adaptive", "s3fifo", "wtinylfu", "lru", "lfu", "arc", "2random"])
def test_memory_per_item_is_bounded(name):
    """Items are far more than fit: what is remembered of them must not grow with them."""
    count = 10_000
    random = Random(1)
    accesses = [random.getrandbits(40) for _ in range(5 * count)]
    policy = policies_registry.make(name, count)
    tracemalloc.start()
    try:
        replay(policy, workloads.timed(accesses), count)
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size / count < 400  # residents, their ghosts and the replay's own table


def test_parameters_are_checked():
    assert policies_registry.make("s3fifo", 10, {"small": 0.2}).victim(0) is None
    with pytest.raises(ConfigError) as caught:
        policies_registry.make("s3fifo", 10, {"small": 5, "smal": 1, "threshold": "2"})
    assert caught.value.problems == [
        "policy.s3fifo.small: 5 is not from 0.01 to 0.9",
        "policy.s3fifo.smal: no such parameter; there are: ghost, small, threshold",
        "policy.s3fifo.threshold: '2' is not a number",
    ]


def test_unknown_policies_are_told():
    with pytest.raises(ConfigError, match="'adaptiv' is not installed; did you mean 'adaptive'"):
        policies_registry.make("adaptiv", 10)
    with pytest.raises(ConfigError, match=r"cannot load 'no\.such:Thing'"):
        policies_registry.make("mine", 10, entry_point="no.such:Thing")


def test_a_third_party_policy():
    found = policies_registry.make("mine", 10, entry_point="tiercache_policies.lru:Lru")
    found.admit(3, 1, 0, 0.0)
    assert found.victim(1.0) == 3


def test_every_parameter_says_what_it_means():
    for name in NAMES:
        for param in policies_registry.params_of(policies_registry.find(name)).values():
            assert isinstance(param, Param)
            assert param.low <= param.default <= param.high
            assert param.doc
