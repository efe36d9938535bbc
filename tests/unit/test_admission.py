import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tiercache.transfer.admission import Admission
from tiercache.types import Priority


def admission(connections=2, reserved=1, memory=100, reclaim=lambda n: None):
    return Admission(connections, reserved, memory, reclaim)


async def test_grants_within_bounds_and_queues_beyond():
    a = admission()
    first = a.request(Priority.DEMAND, 10)
    second = a.request(Priority.DEMAND, 10)
    third = a.request(Priority.DEMAND, 10)
    assert first.granted and second.granted and not third.granted
    a.release_connection()
    assert third.granted


async def test_prefetch_never_takes_the_reserved_connection_or_memory():
    a = admission(connections=3, reserved=1)
    got = [a.request(Priority.PREFETCH, 30) for _ in range(3)]
    assert [t.granted for t in got] == [True, True, False]
    assert a.request(Priority.DEMAND, 30).granted


async def test_metadata_goes_before_demand_before_prefetch():
    a = admission(connections=1, reserved=0)
    a.request(Priority.DEMAND, 0)
    tickets = {p: a.request(p, 0) for p in reversed(Priority)}
    for priority in Priority:
        assert not tickets[priority].granted
        a.release_connection()
        assert tickets[priority].granted


async def test_promoted_prefetch_overtakes():
    a = admission(connections=1, reserved=0)
    a.request(Priority.DEMAND, 0)
    early, late = a.request(Priority.PREFETCH, 0), a.request(Priority.PREFETCH, 0)
    a.promote(late, Priority.DEMAND)
    a.release_connection()
    assert late.granted and not early.granted


async def test_a_large_demand_is_not_starved_by_smaller_ones():
    a = admission(connections=9, reserved=0)
    small = a.request(Priority.DEMAND, 60)
    large = a.request(Priority.DEMAND, 75)
    later = a.request(Priority.DEMAND, 10)
    assert not large.granted and not later.granted
    a.release_memory(small)
    assert large.granted and later.granted


async def test_reclaim_is_asked_for_what_is_missing():
    asked = []

    def reclaim(n):
        asked.append(n)
        a.memory_used -= n

    a = admission(connections=9, reserved=0, reclaim=reclaim)
    a.request(Priority.DEMAND, 75)
    assert a.request(Priority.DEMAND, 75).granted
    assert asked == [50]


async def test_a_body_larger_than_the_budget_is_let_in_alone():
    assert admission().request(Priority.DEMAND, 10_000).granted


@pytest.mark.parametrize("granted", [True, False])
async def test_cancelled_waiter_leaves_nothing_behind(granted):
    a = admission(connections=1, reserved=0)
    holder = None if granted else a.request(Priority.DEMAND, 5)
    with trio.move_on_after(0) as scope:
        scope.cancel()
        await a.connection(Priority.METADATA)
        await trio.lowlevel.checkpoint()
    if granted:
        a.release_connection()
    else:
        a.release_connection()
        a.release_memory(holder)
    assert (a.connections_used, a.memory_used, a.waiting) == (0, 0, 0)


@given(
    st.lists(
        st.tuples(st.sampled_from(list(Priority)), st.integers(0, 60), st.booleans()), max_size=40
    )
)
def test_bounds_hold_and_everyone_is_served(requests):
    async def scenario():
        a = admission(connections=3, reserved=1, memory=100)
        tickets = []
        for priority, nbytes, release in requests:
            tickets.append(a.request(priority, nbytes))
            assert a.connections_used <= 3 and a.memory_used <= 100
            if release:
                finish_one(a, tickets)
        while tickets:
            finish_one(a, tickets)
        assert (a.connections_used, a.memory_used, a.waiting) == (0, 0, 0)

    def finish_one(a, tickets):
        ticket = next(t for t in tickets if t.granted)
        tickets.remove(ticket)
        a.release_connection()
        a.release_memory(ticket)

    trio.run(scenario)


async def test_a_queue_that_the_next_round_takes_over_is_no_congestion():
    a = admission(connections=2, reserved=0)
    for _ in range(4):
        a.request(Priority.PREFETCH, 1)
    assert a.waiting == 2 and not a.congested
    a.request(Priority.PREFETCH, 1)
    assert a.congested
