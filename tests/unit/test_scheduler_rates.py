import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tiercache.transfer.admission import Admission
from tiercache.transfer.rates import Rates, TokenBucket
from tiercache.types import Priority


def test_no_limit_never_waits():
    bucket = TokenBucket(0)
    bucket.take(1e18, 0.0)
    assert bucket.wait_s(0.0, borrow=False) == 0


def test_a_large_body_leaves_a_debt():
    bucket = TokenBucket(100)
    assert bucket.wait_s(0.0, borrow=False) == 0
    bucket.take(400, 0.0)
    assert bucket.wait_s(0.0, borrow=False) == pytest.approx(3)
    assert bucket.wait_s(0.0, borrow=True) == pytest.approx(2)
    assert bucket.wait_s(3.0, borrow=False) == 0


@given(
    st.floats(1, 1e9),
    st.lists(st.tuples(st.integers(0, 10**8), st.booleans(), st.floats(0, 5)), max_size=50),
)
def test_the_rate_holds_in_the_long_run(per_s, takes):
    bucket, now, total, largest = TokenBucket(per_s), 0.0, 0, 0
    for amount, borrow, pause in takes:
        now += pause + bucket.wait_s(now + pause, borrow=borrow)
        bucket.take(amount, now)
        total, largest = total + amount, max(largest, amount)
        # One second's worth may be saved, one borrowed, and one body may overshoot.
        assert total <= per_s * (now + 2) * 1.001 + largest + 1


async def finish(admission, seconds, log, priority, body):
    await trio.sleep(seconds)
    granted = trio.Event()
    ticket = admission.request(priority, body, granted.set)
    await granted.wait()
    log.append((priority, trio.current_time()))
    admission.release_connection()
    admission.release_memory(ticket)


async def test_requests_per_second_are_kept(autojump_clock):
    admission = Admission(100, 0, 100, lambda _n: None, Rates(0, 10))
    start, log = trio.current_time(), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admission.run)
        async with trio.open_nursery() as jobs:
            for _ in range(60):
                jobs.start_soon(finish, admission, 0, log, Priority.PREFETCH, 0)
        nursery.cancel_scope.cancel()
    assert len(log) == 60
    assert 4.5 <= trio.current_time() - start <= 5.5  # ten of them at once, from what was saved


async def test_bandwidth_is_kept_and_readers_go_before_readahead(autojump_clock):
    admission = Admission(100, 0, 1 << 30, lambda _n: None, Rates(1000, 0))
    start, log = trio.current_time(), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admission.run)
        async with trio.open_nursery() as jobs:
            for _ in range(20):
                jobs.start_soon(finish, admission, 0, log, Priority.PREFETCH, 500)
            for _ in range(4):
                jobs.start_soon(finish, admission, 3.2, log, Priority.DEMAND, 250)
        nursery.cancel_scope.cancel()
    assert 9.0 <= trio.current_time() - start <= 11.5
    demands = [at - start for priority, at in log if priority is Priority.DEMAND]
    assert max(demands) < 3.5  # they borrow; readahead pays it off


async def test_metadata_needs_no_bandwidth():
    admission = Admission(4, 0, 100, lambda _n: None, Rates(1, 0))
    admission.charge(1_000_000)
    assert admission.request(Priority.METADATA, 0).granted
    assert not admission.request(Priority.PREFETCH, 1).granted
