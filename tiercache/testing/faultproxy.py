"""A proxy between an S3 client and an S3 server that logs every request and misbehaves on demand.

    with FaultProxy(server) as proxy:
        rule = proxy.rule(Fault(status=503), method="GET", path=r"/shard-7[.]tar$", times=2)
        ...  # read through proxy.url
        assert rule.hits == 2

The first rule that fits a request and has `times` left decides its fate; without one it passes
through untouched. Each client connection has a thread; nothing here is random. Replies that hang
or stall go on when their rule is released and end with the proxy, so no test needs a sleep.
"""

from __future__ import annotations

import dataclasses
import http.client
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable
from typing import Self

from tiercache.testing import proxyhttp
from tiercache.testing.faultconnection import Connection
from tiercache.testing.faults import Fault, Match, Pacer, Rule, s3_error
from tiercache.testing.proxyhttp import Reply, Request
from tiercache.testing.s3server import S3Server

__all__ = ["Fault", "FaultProxy", "Request", "Rule", "s3_error"]


class FaultProxy:
    """Listens on loopback in front of *upstream*, an `S3Server` or a URL.

    *latency_s* is added to every request and *bandwidth* (bytes per second) shared by all replies.
    With *tls* the proxy speaks TLS to its clients. `ignore_range` on signed requests needs an
    `S3Server`, whose credentials sign the wider request.
    """

    def __init__(
        self,
        upstream: S3Server | str,
        *,
        latency_s: float = 0.0,
        bandwidth: float | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._server = upstream if isinstance(upstream, S3Server) else None
        url = upstream.endpoint_url if isinstance(upstream, S3Server) else upstream
        self._netloc = urllib.parse.urlsplit(url).netloc
        self._tls = tls
        self.latency_s = latency_s
        self._pacer = Pacer(bandwidth)
        self._pass = Rule(Fault(), Match(), times=None, skip=0)
        #: Guards all state below; notified when any of it changes.
        self._changed = threading.Condition()
        self._requests: list[Request] = []
        self._rules: list[Rule] = []
        self._connections: set[Connection] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Where clients connect; stays the same over `go_down` and `come_up`."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second that all replies share; may be set at any time."""
        return self._pacer.bytes_per_s

    @bandwidth.setter
    def bandwidth(self, bytes_per_s: float | None) -> None:
        self._pacer.bytes_per_s = bytes_per_s

    @property
    def requests(self) -> list[Request]:
        """Every request so far, in order of arrival."""
        with self._changed:
            return list(self._requests)

    def matching(
        self, *, method: str | None = None, path: str | None = None, range: str | None = None
    ) -> list[Request]:
        """The requests so far that a rule with these arguments would fit."""
        match = Match.of(method, path, range)
        return [request for request in self.requests if match.fits(request)]

    def wait_for(self, count: int, *, timeout_s: float = 30.0) -> list[Request]:
        """Block until *count* requests have arrived and return all; `TimeoutError` otherwise."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._requests) >= count, timeout_s):
                raise TimeoutError(f"{len(self._requests)} of {count} requests in {timeout_s:g} s")
            return list(self._requests)

    def rule(
        self,
        fault: Fault,
        *,
        method: str | None = None,
        path: str | None = None,
        range: str | None = None,
        times: int | None = None,
        skip: int = 0,
    ) -> Rule:
        """Apply *fault* to the next *times* requests (None: all) that fit, after *skip* of them.

        *method* is exact; *path* and *range* are regular expressions, searched in the unescaped
        path (`/BUCKET/KEY`) and in the Range header (empty when a request has none).
        """
        rule = Rule(fault, Match.of(method, path, range), times=times, skip=skip)
        with self._changed:
            self._rules.append(rule)
        return rule

    def release(self, rule: Rule) -> None:
        """Let replies that hang or stall under *rule* go on, those to come included."""
        with self._changed:
            rule.released = True
            self._changed.notify_all()

    def clear(self) -> None:
        """Forget all rules and requests; what hangs or stalls goes on."""
        with self._changed:
            for rule in self._rules:
                rule.released = True
            self._rules = []
            self._requests = []
            self._changed.notify_all()

    def start(self) -> None:
        """Listen on a free port of loopback."""
        self.come_up()

    def close(self) -> None:
        """End every connection and thread."""
        self.go_down()
        with self._changed:
            for connection in self._connections:
                connection.abort(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def go_down(self) -> None:
        """Refuse new connections and reset those there are, as when the host is gone."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
            listener.close()
        self.reset_connections()

    def come_up(self) -> None:
        """Listen again on the same port."""
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=256)
        self._port = self._listener.getsockname()[1]
        self._spawn(self._accept)

    def reset_connections(self) -> None:
        """RST every client connection, idle or in the middle of a reply."""
        with self._changed:
            for connection in self._connections:
                connection.abort(socket.SHUT_RD)
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _spawn(self, run: Callable[[], None]) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=run, name="faultproxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        listener = self._listener
        while listener is not None:
            try:
                sock, _ = listener.accept()
            except OSError:
                return  # went down
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            connection = Connection(self, sock)
            with self._changed:
                self._connections.add(connection)
            self._spawn(connection.run)

    # Below: for connections only.

    def arrived(self, request: Request) -> Rule:
        """Log *request* and decide its fate."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
            return next((rule for rule in self._rules if rule.claim(request)), self._pass)

    def gone(self, connection: Connection) -> None:
        """Forget *connection*, whose socket is closed."""
        with self._changed:
            self._connections.discard(connection)

    def hold(self, rule: Rule, connection: Connection) -> None:
        """Block until *rule* is released; `CutError` when *connection* is to end."""
        with self._changed:
            self._changed.wait_for(lambda: rule.released or connection.aborted)
        connection.check()

    def pause(self, seconds: float, connection: Connection) -> None:
        """Block for *seconds*; `CutError` when *connection* is to end."""
        if seconds > 0:
            with self._changed:
                self._changed.wait_for(lambda: connection.aborted, seconds)
        connection.check()

    def pace(self, size: int, rule: Rule, connection: Connection) -> None:
        """Block for as long as sending *size* bytes should have taken."""
        self.pause(max(self._pacer.reserve(size), rule.pacer.reserve(size)), connection)

    def ask(self, request: Request, fault: Fault) -> tuple[Reply, http.client.HTTPConnection]:
        """The server's reply to *request*."""
        asked = self._without_range(request) if fault.ignore_range else request
        return proxyhttp.ask(self._netloc, asked)

    def _without_range(self, request: Request) -> Request:
        """The same request for the whole object; signed anew, since Range may be signed."""
        if self._server is None:
            kept = [(n, v) for n, v in request.raw_headers if n.lower() != "range"]
            return dataclasses.replace(request, raw_headers=kept)
        bucket, _, key = request.path.lstrip("/").partition("/")
        url = self._server.shared_client.generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": key}
        )
        target = url.partition(self._netloc)[2]
        kept = [(n, v) for n, v in request.raw_headers if n.lower().startswith("if-")]
        return dataclasses.replace(
            request, target=target, raw_headers=[("Host", self._netloc), *kept]
        )
