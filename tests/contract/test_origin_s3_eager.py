"""Small GETs without a task, of a real server: plain and over TLS, many at a time."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import pytest
import trio
import trio.testing

from tiercache.errors import ObjectChangedError
from tiercache.origin.http_errors import AskAgainError, SlowReplyError
from tiercache.origin.protocol import EagerOrigin, Patience
from tiercache.testing.data import check, pattern
from tiercache.testing.faultproxy import Fault, FaultProxy
from tiercache.testing.tls import LocalAuthority

COUNT = 40
SIZE = 70_000


class Served(NamedTuple):
    """An origin behind a proxy, and the objects k0 to k39 in it."""

    origin: EagerOrigin
    proxy: FaultProxy
    etags: list[str]


@pytest.fixture(params=["http", "https"])
async def served(request, seaweed, as_client_of, open_s3, nursery, tmp_path):
    """With as many idle connections as there are objects; `run` drives what is started."""
    as_client_of(seaweed)
    bucket = seaweed.create_bucket()
    etags = [seaweed.put(bucket, b"k%d" % i, pattern(0, SIZE, i)) for i in range(COUNT)]
    with contextlib.ExitStack() as stack:
        if request.param == "https":
            authority = LocalAuthority(tmp_path)
            proxy = stack.enter_context(FaultProxy(seaweed, tls=authority.server_context()))
            origin = open_s3(f"s3://{bucket}", proxy.url, ca_bundle=authority.ca_bundle)
        else:
            proxy = stack.enter_context(FaultProxy(seaweed))
            origin = open_s3(f"s3://{bucket}", proxy.url)
        async with trio.open_nursery() as warming:
            for _ in range(16):
                warming.start_soon(origin.head, b"k0")
        nursery.start_soon(origin.run)
        yield Served(origin, proxy, etags)
        nursery.cancel_scope.cancel()


class Get:
    """One GET; `outcome` waits for its end."""

    def __init__(self, served, number, etag=None, patience=None, start=0):
        self.into = memoryview(bytearray(SIZE - start))
        self.over = trio.Event()
        self.error = None
        etag = served.etags[number] if etag is None else etag
        key = b"k%d" % number
        self.started = served.origin.start_get(key, etag, start, self.into, self.ended, patience)

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
        assert len(gets) >= 8
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
