"""Replies that one task receives for many: right bytes, or an error and never a stuck one."""

from __future__ import annotations

import contextlib
import os
import socket

import pytest
import trio
import trio.testing

from tiercache.errors import (
    ObjectChangedError,
    ObjectNotFoundError,
    OriginReplyError,
    OriginThrottledError,
    OriginUnavailableError,
)
from tiercache.origin.http_connection import Address, Connection
from tiercache.origin.http_errors import (
    ConnectionLostError,
    FramingError,
    SlowReplyError,
    StalledError,
)
from tiercache.origin.http_exchanges import Exchanges
from tiercache.origin.http_threads import ReceiveThreads
from tiercache.origin.protocol import Patience
from tiercache.origin.s3_reply import error_of, receive_range
from tiercache.testing.data import check, pattern

SIZE = 110_000
START = 4096
HEAD = (
    f'HTTP/1.1 206 Partial Content\r\nETag: "v1"\r\nContent-Length: {SIZE}\r\n'
    f"Content-Range: bytes {START}-{START + SIZE - 1}/9999999\r\n\r\n"
).encode()
BODY = pattern(START, SIZE, 3)
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
SLOW_DOWN = b"HTTP/1.1 503 Slow Down\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"


class Get:
    """One exchange over a socket pair; `peer` is the server's end."""

    def __init__(
        self, exchanges, patience=None, then=lambda: None, *, bulky=False, stall_timeout_s=30.0
    ):
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.peer.setblocking(False)
        self.connection = Connection(ours, Address("test", 1, tls=False), stall_timeout_s)
        self.into = memoryview(bytearray(SIZE))
        self.over = trio.Event()
        self.errors = []
        self.reusable = None
        self.then = then
        self.told = []
        self.started = exchanges.start(
            self.connection, b"GET", self.receive(), self.ended, patience, bulky=bulky
        )

    def receive(self):
        refusal, self.reusable = yield from receive_range(
            self.connection.wire, "v1", START, self.into, self.told.append
        )
        if refusal is not None:
            raise error_of(refusal)

    def ended(self, error):
        self.errors.append(error)
        self.over.set()
        self.then()

    async def reply(self, data, step=65536):
        assert self.peer.recv(100) == b"GET"
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(self.peer.dup()))
        async with stream:
            for at in range(0, len(data), step):
                await stream.send_all(data[at : at + step])
                await trio.testing.wait_all_tasks_blocked(0.001)

    @property
    async def error(self):
        await self.over.wait()
        assert len(self.errors) == 1
        return self.errors[0]

    def close(self):
        self.connection.close()
        self.peer.close()


def made(threads=2):
    return Exchanges(ReceiveThreads(threads), deadline_s=60.0)


@pytest.fixture
async def exchanges(nursery):
    exchanges = made()
    nursery.start_soon(exchanges.run)
    return exchanges


@pytest.fixture(params=[False, True], ids=["loop", "thread"])
def bulky(request):
    return request.param


@pytest.fixture
def begin(exchanges, bulky):
    gets = []

    def begin(**options):
        gets.append(Get(exchanges, bulky=bulky, **options))
        assert gets[-1].started
        return gets[-1]

    yield begin
    for get in gets:
        get.close()


@pytest.mark.parametrize("step", [SIZE * 2, 65536, 3000, 101])
async def test_a_reply_is_received_however_it_is_cut(begin, step):
    get = begin()
    await get.reply(HEAD + BODY, step if step > 1000 else 10_007)
    assert await get.error is None
    check(get.into, START, 3)
    assert get.reusable


async def test_many_at_a_time_keep_their_bytes_apart(begin, nursery):
    gets = [begin() for _ in range(30)]
    for number, get in enumerate(gets):
        nursery.start_soon(get.reply, HEAD + BODY, 5_000 + 501 * number)
    for get in gets:
        assert await get.error is None
        check(get.into, START, 3)


async def test_an_exchange_may_begin_where_another_ends(begin):
    second = []
    first = begin(then=lambda: second.append(begin()))
    await first.reply(HEAD + BODY)
    assert await first.error is None
    await second[0].reply(HEAD + BODY)
    assert await second[0].error is None


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ConnectionLostError),
        (HEAD[:50], ConnectionLostError),
        (HEAD + BODY[:-1], ConnectionLostError),
        (b"\0" * 100 + b"\r\n\r\n", FramingError),
        (HEAD.replace(b"v1", b"v2") + BODY, ObjectChangedError),
        (HEAD.replace(b"bytes 4096", b"bytes 4097") + BODY, OriginReplyError),
        (NOT_FOUND, ObjectNotFoundError),
        (SLOW_DOWN, OriginThrottledError),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 999\r\n\r\n<Error>", ObjectNotFoundError),
    ],
)
async def test_what_is_no_plain_sailing_ends_with_its_error(begin, data, error):
    get = begin()
    await get.reply(data)
    get.peer.shutdown(socket.SHUT_RDWR)
    found = await get.error
    assert type(found) is error
    assert bool(get.reusable) == (data in (NOT_FOUND, SLOW_DOWN)), "when all of the reply came"
    if error is OriginThrottledError:
        assert found.retry_after_s == 7


async def test_g05_a_reply_that_does_not_begin_in_time_is_slow(begin):
    get = begin(patience=Patience(0.01, lambda: True))
    assert type(await get.error) is SlowReplyError


async def test_g05_a_slow_reply_that_is_not_given_up_is_waited_for(begin, mock_clock):
    asked = []
    get = begin(patience=Patience(1.0, lambda: bool(asked.append(get))))
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(3):
        mock_clock.jump(1.5)
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert len(asked) == 1 and not get.errors
    await get.reply(HEAD + BODY)
    assert await get.error is None
    check(get.into, START, 3)


async def test_a_slow_reply_that_is_not_given_up_may_stall(begin, mock_clock):
    get = begin(patience=Patience(1.0, lambda: False))
    await trio.testing.wait_all_tasks_blocked()
    for seconds in (1.5, 28, 1):
        assert not get.errors
        mock_clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert type(await get.error) is StalledError


async def test_a_reply_that_began_is_not_slow_but_may_stall(begin):
    get = begin(patience=Patience(0.1, lambda: True), stall_timeout_s=0.2)
    await get.reply(HEAD)
    assert type(await get.error) is StalledError
    assert not get.told


async def test_a_reply_that_trickles_ends_at_the_deadline_with_what_it_brought(exchanges, begin):
    exchanges.deadline_s = 0.5
    get = begin()
    await get.reply(HEAD + BODY[:50_000])
    with trio.move_on_after(10):
        while not get.errors:
            with contextlib.suppress(trio.BrokenResourceError, BrokenPipeError):
                get.peer.send(b"\0")
            await trio.sleep(0.05)
    error = await get.error
    assert type(error) is StalledError
    assert "deadline" in str(error)
    assert get.told[-1] >= 50_000
    check(get.into[:50_000], START, 3)
    assert not get.reusable


async def test_cancellation_ends_all_and_nobody_writes_afterwards(bulky):
    ended = []
    async with trio.open_nursery() as nursery:
        exchanges = made(threads=1)
        nursery.start_soon(exchanges.run)
        gets = [Get(exchanges, bulky=bulky) for _ in range(4)]
        for get in gets[:3]:  # one in the thread, two that wait for it
            await get.reply(HEAD + BODY[:50_000])
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    late = Get(exchanges, bulky=bulky)
    assert not late.started
    late.close()
    for get in gets:
        ended += get.errors
        get.close()
    assert [type(error) for error in ended] == [ConnectionLostError] * 4


async def test_a_bug_in_a_thread_ends_the_exchange_and_then_all():
    exchanges = made()
    gets = [Get(exchanges, bulky=True), Get(exchanges)]
    gets[0].told = None  # progress fails

    async def run():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchanges.run)
            with contextlib.suppress(trio.BrokenResourceError):
                await gets[0].reply(HEAD + BODY)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(AttributeError)
    assert [len(get.errors) for get in gets] == [1, 1]
    for get in gets:
        assert isinstance(get.errors[0], OriginUnavailableError)
        get.close()


async def test_a_connection_is_not_left_blocking_by_a_refusal(begin):
    get = begin()
    await get.reply(NOT_FOUND)
    assert type(await get.error) is ObjectNotFoundError
    assert not os.get_blocking(get.connection.fileno())


async def test_bulky_ones_are_received_in_so_many_threads_the_others_beside_them(
    exchanges, nursery
):
    gets = [Get(exchanges, bulky=True) for _ in range(5)]
    for get in gets[:2]:
        await get.reply(HEAD + BODY[:50_000])
    for get in gets[2:]:
        await get.reply(HEAD + BODY)
    small = Get(exchanges)
    await small.reply(HEAD + BODY)
    assert await small.error is None
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert not any(get.errors for get in gets), "both threads are taken"
    gets[1].peer.send(BODY[50_000:])
    for get in gets[1:]:
        assert await get.error is None
        check(get.into, START, 3)
        assert get.told[-1] == SIZE
    gets[0].peer.send(BODY[50_000:])
    assert await gets[0].error is None
    for get in [*gets, small]:
        get.close()


async def test_a_connection_that_is_closed_already_is_not_started(exchanges):
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    peer.close()
    connection = Connection(ours, Address("test", 1, tls=False), 30.0)
    assert not exchanges.start(connection, b"GET", iter(()), lambda _error: None)
    connection.close()
