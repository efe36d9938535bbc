"""A link of known rate and round trip time, as a forwarder in a process of its own.

Bytes go from socket to socket by `splice`, so that neither Python nor a copy touches them: it
carries some GB/s for about 0.15 CPU seconds per GB, where shaping is far from being its limit. All
connections share the rate of the way back, which is where data flows. A request reaches the server
one round trip late, and so does the first one of a connection once more, for its handshake.

It speaks TCP and knows no HTTP: what is signed stays signed, what is encrypted stays encrypted.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

_PIPE = 1 << 20
_CHUNK = 256 << 10
#: How late a sender may wake up without its share of the link being lost.
_SLACK_S = 0.002
_REQUEST = 64 << 10
_END_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Bytes per second that all replies share, and the round trip time in seconds."""

    bytes_per_s: float
    latency_s: float


#: A real link to an object store of the same region.
REAL_LINK = LinkSpeed(500e6, 0.02)


class Link:
    """`with Link(url, speed) as link:` forwards `link.endpoint_url` to *url* until the end."""

    def __init__(self, upstream_url: str, speed: LinkSpeed) -> None:
        self._upstream = urlsplit(upstream_url)
        self.speed = speed
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def endpoint_url(self) -> str:
        """Where clients connect; valid once started."""
        return f"{self._upstream.scheme}://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Process id of the forwarder."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        speed = self.speed
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "bench.link", self._upstream.hostname or ""),
                *map(str, (self._upstream.port or 80, speed.bytes_per_s, speed.latency_s)),
            ],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,  # its end is the forwarder's end, should we be killed
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C at the terminal is ours to handle
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise OSError("the forwarder did not start")
        self._port = int(line)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            with self._process as process:
                process.kill()
                process.wait(_END_TIMEOUT_S)


class Pacer:
    """Shares one rate among all who send."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def reserve(self, size: int, now: float) -> float:
        """Seconds to wait after sending *size* bytes at *now*."""
        with self._lock:
            self._free_at = max(now - _SLACK_S, self._free_at) + size / self._bytes_per_s
            return self._free_at - now


def forward(
    client: socket.socket, upstream: tuple[str, int], speed: LinkSpeed, pacer: Pacer
) -> None:
    """Carry one connection until either side ends it."""
    with client, contextlib.suppress(OSError):
        time.sleep(speed.latency_s)
        with socket.create_connection(upstream) as server:
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=_replies, args=(server, client, pacer), daemon=True)
            back.start()
            try:
                _requests(client, server, speed.latency_s)
            finally:
                _shut(server)
                back.join()


def _requests(client: socket.socket, server: socket.socket, latency_s: float) -> None:
    while data := client.recv(_REQUEST):
        time.sleep(latency_s)
        server.sendall(data)


def _replies(server: socket.socket, client: socket.socket, pacer: Pacer) -> None:
    read_end, write_end = os.pipe()
    try:
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE)
        while count := os.splice(server.fileno(), write_end, _CHUNK):
            left = count
            while left:
                left -= os.splice(read_end, client.fileno(), left)
            wait = pacer.reserve(count, time.monotonic())
            if wait > 0:
                time.sleep(wait)
    except OSError:
        pass  # one side ended it
    finally:
        os.close(read_end)
        os.close(write_end)
        _shut(client)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Forward until standard input ends; the port is the only line of standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("bytes_per_s", type=float)
    parser.add_argument("latency_s", type=float)
    parsed = parser.parse_args()
    speed = LinkSpeed(parsed.bytes_per_s, parsed.latency_s)
    threading.Thread(target=_end_with_owner, daemon=True).start()
    pacer = Pacer(speed.bytes_per_s)
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            arguments = (client, (parsed.host, parsed.port), speed, pacer)
            threading.Thread(target=forward, args=arguments, daemon=True).start()


def _end_with_owner() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
