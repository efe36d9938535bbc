"""GETs without a task, of a real server: plain and over TLS, small and large, many at a time."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import pytest
import trio
import trio.testing

from tiercache.config import TransferConfig
from tiercache.errors import ObjectChangedError, OriginThrottledError, OriginUnavailableError
from tiercache.origin.eager import EagerGets
from tiercache.origin.hedge import HedgingOrigin
from tiercache.origin.http_errors import AskAgainError, SlowReplyError, StalledError
from tiercache.origin.protocol import EagerOrigin, FirstAttempt, Patience, RangedGet
from tiercache.origin.retry import RetryingOrigin
from tiercache.testing.data import check, pattern
from tiercache.testing.faultproxy import Fault, FaultProxy
from tiercache.testing.tls import LocalAuthority
from tiercache.types import MIB

COUNT = 40
SIZE = 70_000
LARGE = 3 * MIB + 12345
IMPATIENT = TransferConfig(stall_timeout_s=1.0)


class Served(NamedTuple):
    """An origin behind a proxy, and the objects k0 to k39 in it, and `large`."""

    origin: EagerOrigin
    proxy: FaultProxy
    etags: list[str]
    large: str


@pytest.fixture(params=["http", "https"])
async def served(request, seaweed, as_client_of, open_s3, nursery, tmp_path):
    """With as many idle connections as there are objects; `run` drives what is started."""
    as_client_of(seaweed)
    bucket = seaweed.create_bucket()
    etags = [seaweed.put(bucket, b"k%d" % i, pattern(0, SIZE, i)) for i in range(COUNT)]
    large = seaweed.put(bucket, b"large", pattern(0, LARGE, 99))
    with contextlib.ExitStack() as stack:
        if request.param == "https":
            authority = LocalAuthority(tmp_path)
            proxy = stack.enter_context(FaultProxy(seaweed, tls=authority.server_context()))
            origin = open_s3(f"s3://{bucket}", proxy.url, IMPATIENT, ca_bundle=authority.ca_bundle)
        else:
            proxy = stack.enter_context(FaultProxy(seaweed))
            origin = open_s3(f"s3://{bucket}", proxy.url, IMPATIENT)
        async with trio.open_nursery() as warming:
            for _ in range(16):
                warming.start_soon(origin.head, b"k0")
        nursery.start_soon(origin.run)
        yield Served(origin, proxy, etags, large)
        nursery.cancel_scope.cancel()


class Get:
    """One GET, of `large` without a *number*; `outcome` waits for its end."""

    def __init__(self, served, number=None, etag=None, patience=None, start=0):
        if number is None:
            key, size, etag = b"large", LARGE, etag or served.large
        else:
            key, size, etag = b"k%d" % number, SIZE, etag or served.etags[number]
        self.into = memoryview(bytearray(size - start))
        self.over = trio.Event()
        self.error = None
        self.told = []
        get = RangedGet(key, etag, start, self.into, self.told.append)
        self.started = served.origin.start_get(get, self.ended, patience)

    def ended(self, error):
        self.error = error
        self.over.set()

    async def outcome(self):
        with trio.fail_after(20):
            await self.over.wait()
        return self.error


async def test_bytes_are_right_and_connections_are_used_again(served):
    opened = 0
    for _ in range(5):
        gets = []
        for number in range(COUNT):
            get = Get(served, number, start=number)
            if get.started:
                gets.append((number, get))
        assert gets
        opened += len(gets)
        for number, get in gets:
            assert await get.outcome() is None
            check(get.into, number, number)
    ours = [request for request in served.proxy.requests if request.method == "GET"]
    assert len(ours) == opened


async def test_another_version_is_refused_and_the_connection_survives(served):
    get = Get(served, 3, etag="0" * 32)
    assert type(await get.outcome()) is ObjectChangedError
    get = Get(served, 3)
    assert await get.outcome() is None
    check(get.into, 0, 3)


async def test_a_connection_closed_by_the_server_is_to_be_asked_again(served):
    served.proxy.rule(Fault(reset_before=True), times=1)
    assert isinstance(await Get(served, 5).outcome(), AskAgainError)


async def test_g05_a_stuck_one_is_given_up_and_others_go_on(served):
    served.proxy.rule(Fault(hang=True), path="/k7$", times=1)
    stuck = Get(served, 7, patience=Patience(0.05, lambda: True))
    other = Get(served, 8, patience=Patience(20, lambda: True))
    assert type(await stuck.outcome()) is SlowReplyError
    assert await other.outcome() is None
    check(other.into, 0, 8)


async def test_large_ones_are_received_beside_small_ones(served):
    for start in (0, 1, MIB + 5):
        large = [Get(served, start=start + number) for number in range(3)]
        small = [Get(served, number) for number in range(4)]
        assert all(get.started for get in large + small)
        for number, get in enumerate(large):
            assert await get.outcome() is None
            check(get.into, start + number, 99)
            assert get.told == sorted(get.told)
            assert get.told[-1] == len(get.into)
        for number, get in enumerate(small):
            assert await get.outcome() is None
            check(get.into, 0, number)
    assert type(await Get(served, etag="0" * 32).outcome()) is ObjectChangedError


@pytest.mark.parametrize("after", [0, MIB + MIB // 2])
async def test_a_body_that_stalls_is_given_up_after_the_time_out(served, after):
    rule = served.proxy.rule(Fault(stall_after=after), path="/large$", times=2)
    get = Get(served)
    assert type(await get.outcome()) is StalledError
    check(get.into[: get.told[-1] if get.told else 0], 0, 99)
    into = memoryview(bytearray(LARGE))
    with trio.fail_after(20), pytest.raises(StalledError):
        await served.origin.get_range(b"large", served.large, 0, into)
    assert rule.hits == 2


async def test_silence_counts_against_the_origin_unlike_a_closed_connection(served):
    served.proxy.rule(Fault(hang=True), path="/k7$", times=1)
    assert type(await Get(served, 7).outcome()) is StalledError


async def test_a_refusal_leaves_the_connection_open(served):
    served.proxy.rule(Fault(status=503, body=b"<Error/>"), path="/k3$", times=30)
    for _ in range(30):
        get = Get(served, 3)
        assert get.started, "one that was closed is not idle"
        assert type(await get.outcome()) is OriginThrottledError


async def test_a_large_one_that_is_cut_off_goes_on_where_it_ended(served, nursery):
    config = TransferConfig(backoff_base_s=0.001)
    hedging = HedgingOrigin(served.origin, config)
    retrying = RetryingOrigin(hedging, config)
    eager = EagerGets(served.origin, hedging, retrying)
    into, told, ends = memoryview(bytearray(LARGE)), [], []
    over = trio.Event()

    def ended(error):
        ends.append(error)
        over.set()

    served.proxy.rule(Fault(truncate_after=MIB + MIB // 2), path="/large$", times=1)
    get = RangedGet(b"large", served.large, 0, into, told.append)
    assert eager.start(get, ended)
    with trio.fail_after(20):
        await over.wait()
    (error,) = ends
    assert isinstance(error, OriginUnavailableError)
    done = told[-1]
    assert 0 < done <= MIB + MIB // 2
    check(into[:done], 0, 99)
    await eager.go_on(get, FirstAttempt(trio.current_time(), done, error))
    check(into, 0, 99)
    assert told == sorted(told)
    asked = [r.headers["range"] for r in served.proxy.requests if r.path.endswith("/large")]
    assert asked == [f"bytes=0-{LARGE - 1}", f"bytes={done}-{LARGE - 1}"]
    assert retrying.retries == 1
