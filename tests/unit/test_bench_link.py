"""The link: bytes arrive as they were sent, late, and no faster than it lets them."""

import os
import socketserver
import threading
import time

import pytest

from bench.client import Get, ParallelClient
from bench.link import Link, LinkSpeed, Pacer
from bench.nginx import Nginx, available
from bench.workspace import content, verify
from tiercache.types import MIB

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while self.rfile.readline():
            while self.rfile.readline().strip():
                pass
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {MIB}\r\n\r\n"
            self.wfile.write(head.encode() + content(0, MIB, 7))


@pytest.fixture
def server():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listener.server_address[1]}"
        listener.shutdown()
        thread.join()


def test_bytes_come_through_unchanged_but_later(server):
    gets = [Get(REQUEST, 200, 0, MIB)] * 3
    with Link(server, LinkSpeed(1e9, 0.05)) as link:
        assert link.endpoint_url.startswith("http://127.0.0.1:")
        start = time.monotonic()
        with ParallelClient(link.endpoint_url, 1, MIB) as plain:
            assert plain.fetch(gets, lambda offset, body: verify(body, offset, 7)) == 3 * MIB
        assert time.monotonic() - start >= 4 * 0.05  # a handshake and three requests


def test_all_connections_share_the_rate(server):
    gets = [Get(REQUEST, 200, 0, MIB)] * 4
    with Link(server, LinkSpeed(20e6, 0.0)) as link:
        start = time.monotonic()
        with ParallelClient(link.endpoint_url, 4, MIB) as plain:
            plain.fetch(gets)
        # What is under way when the last byte was sent, a chunk each, is not waited for.
        assert time.monotonic() - start >= 3 * MIB / 20e6


def test_a_late_sender_gets_little_of_the_past_back():
    pacer = Pacer(1e6)
    assert pacer.reserve(1000, now=10.0) == pytest.approx(-0.001)
    assert pacer.reserve(10_000, now=10.0) == pytest.approx(0.009)


@pytest.mark.parametrize("place", [0, MIB - 1])
def test_wrong_bytes_are_seen(place):
    data = bytearray(content(3 * MIB, MIB, 5))
    verify(memoryview(data), 3 * MIB, 5)
    data[place] ^= 1
    with pytest.raises(ValueError, match="MiB 3"):
        verify(memoryview(data), 3 * MIB, 5)


@pytest.mark.skipif(not available(), reason="nginx is not installed")
def test_nginx_starts_answers_and_ends(server, tmp_path):
    with Nginx(tmp_path / "nginx", server) as front:
        pid = front.pid
        with ParallelClient(front.url, 1, MIB) as plain:
            get = Get(REQUEST, 200, 0, MIB)
            plain.fetch([get], lambda offset, body: verify(body, offset, 7))
        assert front.secure_url.startswith("https://")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
