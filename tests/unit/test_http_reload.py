"""The HTTP client takes on other bounds while it is in use."""

import pytest
import trio
import trio.testing

from tiercache.config import OriginConfig, TransferConfig
from tiercache.errors import OriginUnavailableError
from tiercache.origin import http_client
from tiercache.origin.http_client import HttpClient, HttpLimits
from tiercache.origin.http_connection import Address
from tiercache.origin.http_errors import ConnectError, StalledError
from tiercache.origin.s3 import S3Origin
from tiercache.origin.s3_location import parse_location

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request once `gate` is set."""

    def __init__(self):
        self.gate = trio.Event()
        self.requests = 0
        self.connections = 0

    async def serve(self, stream):
        self.connections += 1
        while await stream.receive_some(4096):
            self.requests += 1
            await self.gate.wait()
            await stream.send_all(REPLY)


@pytest.fixture
async def server(nursery):
    server = Server()
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server.address = Address("127.0.0.1", listener.socket.getsockname()[1], tls=False)
    nursery.start_soon(trio.serve_listeners, server.serve, [listener])
    return server


def limits(**changed):
    values = {
        "connections": 2,
        "threads": 2,
        "inline_body": 1 << 20,
        "connect_timeout_s": 5.0,
        "stall_timeout_s": 30.0,
    }
    return HttpLimits(**{**values, **changed})


@pytest.fixture
def client():
    client = HttpClient(limits(), lambda: None)
    yield client
    client.close()


async def fetch(client, server):
    with await client.exchange(server.address, REQUEST) as reply:
        assert await reply.read(10) == b"ok"


async def settle():
    await trio.testing.wait_all_tasks_blocked(0.05)


async def test_connections_become_more_and_fewer(client, server):
    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(fetch, client, server)
        await settle()
        assert server.requests == 2
        client.reconfigure(limits(connections=5))
        await settle()
        assert server.requests == 5
        client.reconfigure(limits(connections=1))
        client.reconfigure(limits(connections=6))
        await settle()
        assert server.requests == 6, "what runs beyond a lower limit counts"
        client.reconfigure(limits(connections=1))
        server.gate.set()
    assert server.requests == 12
    server.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(fetch, client, server)
        await settle()
        assert server.requests == 13
        server.gate.set()


async def test_time_outs_hold_for_the_next_request(client, server, monkeypatch):
    server.gate.set()
    await fetch(client, server)
    await fetch(client, server)
    assert server.connections == 1
    server.gate = trio.Event()
    client.reconfigure(limits(stall_timeout_s=0.1))
    with trio.fail_after(10), pytest.raises(StalledError, match=r"nothing moved for 0\.1 s"):
        await fetch(client, server)

    async def connect(*_, timeout_s, **__):
        raise ConnectError(f"not within {timeout_s:g} s")

    monkeypatch.setattr(http_client, "connect", connect)
    client.reconfigure(limits(connect_timeout_s=0.7))
    with pytest.raises(ConnectError, match=r"not within 0\.7 s"):
        await fetch(client, server)


async def test_time_outs_hold_for_what_follows_a_request_that_was_under_way(client, server):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, client, server)
        await settle()
        client.reconfigure(limits(stall_timeout_s=0.1))
        server.gate.set()
    server.gate = trio.Event()
    with trio.fail_after(10), pytest.raises(StalledError, match=r"nothing moved for 0\.1 s"):
        await fetch(client, server)
    assert server.connections == 2


async def test_an_s3_origin_passes_them_on(server):
    url = f"http://127.0.0.1:{server.address.port}"
    config = OriginConfig(url="s3://bucket", endpoint_url=url, region="x", anonymous=True)
    origin = S3Origin(config, TransferConfig(), parse_location(config.url))
    origin.reconfigure(TransferConfig(stall_timeout_s=0.1))
    with trio.fail_after(10), pytest.raises(OriginUnavailableError, match=r"0\.1 s"):
        await origin.head(b"key")
    await origin.aclose()
