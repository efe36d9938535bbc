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

import contextlib
import dataclasses
import http.client
import itertools
import re
import socket
import ssl
import struct
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from typing import BinaryIO, Self

from tiercache.testing import proxyhttp
from tiercache.testing.faults import Fault, Match, Pacer, Rule, s3_error
from tiercache.testing.proxyhttp import Reply, Request
from tiercache.testing.s3server import S3Server

__all__ = ["Fault", "FaultProxy", "Request", "Rule", "s3_error"]

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: close sends RST


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
        self._connections: set[_Connection] = set()
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
            connection = _Connection(self, sock)
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

    def gone(self, connection: _Connection) -> None:
        """Forget *connection*, whose socket is closed."""
        with self._changed:
            self._connections.discard(connection)

    def hold(self, rule: Rule, connection: _Connection) -> None:
        """Block until *rule* is released; `_CutError` when *connection* is to end."""
        with self._changed:
            self._changed.wait_for(lambda: rule.released or connection.aborted)
        connection.check()

    def pause(self, seconds: float, connection: _Connection) -> None:
        """Block for *seconds*; `_CutError` when *connection* is to end."""
        if seconds > 0:
            with self._changed:
                self._changed.wait_for(lambda: connection.aborted, seconds)
        connection.check()

    def pace(self, size: int, rule: Rule, connection: _Connection) -> None:
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


class _CutError(Exception):
    """The connection ends here, on purpose."""


class _Connection:
    """One client connection and its thread."""

    def __init__(self, proxy: FaultProxy, sock: socket.socket) -> None:
        self._proxy = proxy
        self._sock = sock
        self.aborted = False

    def abort(self, how: int) -> None:
        """Make the thread end with RST. Called under the proxy's lock, from any thread.

        SHUT_RD wakes a thread that reads or holds and keeps FIN from going out before RST; only
        SHUT_RDWR wakes one whose client does not read.
        """
        self.aborted = True
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            # The method of the base class: that of a TLS socket would drop its encryption.
            socket.socket.shutdown(self._sock, how)

    def check(self) -> None:
        """Raise `_CutError` if the connection is to end."""
        if self.aborted:
            raise _CutError

    def run(self) -> None:
        """Serve requests until either side ends the connection."""
        try:
            with self._sock.makefile("rb") as stream:
                while self._serve_one(stream):
                    pass
        except (OSError, http.client.HTTPException, _CutError):
            pass  # the client gave up, the server did, or a fault says so
        finally:
            self._proxy.gone(self)
            self._sock.close()

    def _serve_one(self, stream: BinaryIO) -> bool:
        """Answer the next request; whether the connection may carry another."""
        request = proxyhttp.read_head(stream)
        if request is None:
            return False
        if request.headers.get("expect", "").lower() == "100-continue":
            self._sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        proxyhttp.read_body(stream, request)
        rule = self._proxy.arrived(request)
        with self._answer(request, rule) as reply:
            self._send(reply, request, rule)
        asked_to_close = request.headers.get("connection", "").lower() == "close"
        told_to_close = (reply.header("Connection") or "").lower() == "close"
        return not (rule.fault.close_after or asked_to_close or told_to_close)

    @contextlib.contextmanager
    def _answer(self, request: Request, rule: Rule) -> Iterator[Reply]:
        """The reply, faults of its content included; its body is valid within."""
        fault = rule.fault
        self._proxy.pause(self._proxy.latency_s + fault.delay_s, self)
        if fault.hang:
            self._proxy.hold(rule, self)
        if fault.reset_before:
            self._cut(reset=True)
        if fault.status is not None or fault.redirect is not None:
            yield _altered(_invented(request, fault), request, fault)
            return
        reply, upstream = self._proxy.ask(request, fault)
        with contextlib.closing(upstream):
            yield _altered(reply, request, fault)

    def _send(self, reply: Reply, request: Request, rule: Rule) -> None:
        fault = rule.fault
        request.status = reply.status
        self._sock.sendall(proxyhttp.head_bytes(reply))
        marks = {fault.stall_after, fault.reset_after, fault.truncate_after} - {None}
        pieces = proxyhttp.split_at(reply.body, [mark for mark in marks if mark is not None])
        for piece in itertools.chain(pieces, [b""]):
            self._interrupt(request.sent, rule)
            if piece:
                request.sent += len(piece)  # first: a client that has it must find it counted
                self._sock.sendall(piece if reply.length is not None else proxyhttp.chunk(piece))
                self._proxy.pace(len(piece), rule, self)
        if reply.length is None:
            self._sock.sendall(proxyhttp.chunk(b""))

    def _interrupt(self, sent: int, rule: Rule) -> None:
        """Do what is to be done after *sent* bytes of the body."""
        if sent == rule.fault.stall_after:
            self._proxy.hold(rule, self)
        if sent == rule.fault.reset_after:
            self._cut(reset=True)
        if sent == rule.fault.truncate_after:
            self._cut()

    def _cut(self, *, reset: bool = False) -> None:
        if reset:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        raise _CutError


def _invented(request: Request, fault: Fault) -> Reply:
    """A reply that no server made."""
    status = fault.status or 307
    reason = http.client.responses.get(status, "Unknown")
    headers = [("Content-Type", "application/xml")]
    if fault.redirect is not None:
        headers.append(("Location", fault.redirect))
    body = b"" if request.method == "HEAD" else fault.body
    headers.append(("Content-Length", str(len(body))))
    return Reply(status, reason, headers, [body], len(body))


def _altered(reply: Reply, request: Request, fault: Fault) -> Reply:
    """*reply* with the faults of its headers and its body."""
    stated = reply.header("Content-Range")
    if stated is not None:
        reply.set_header("Content-Range", _content_range(stated, fault))
    if fault.length_delta and reply.length is not None:
        reply.length += fault.length_delta
        reply.set_header("Content-Length", str(reply.length))
        reply.body = proxyhttp.resized(reply.body, reply.length)
    if fault.corrupt_at is not None:
        reply.body = proxyhttp.with_flipped_bit(reply.body, fault.corrupt_at)
    if fault.chunked and request.method != "HEAD":
        reply.length = None
        reply.set_header("Content-Length", None)
    if reply.length is None:
        reply.set_header("Transfer-Encoding", "chunked")
    for name, value in fault.headers.items():
        reply.set_header(name, value)
    return reply


def _content_range(stated: str, fault: Fault) -> str | None:
    """`bytes A-B/SIZE`, moved or dropped."""
    if fault.drop_content_range:
        return None
    return re.sub(
        r"(\d+)-(\d+)/",
        lambda m: "{}-{}/".format(*(int(end) + fault.shift_content_range for end in m.groups())),
        stated,
    )
