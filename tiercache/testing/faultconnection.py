"""One client connection of a `FaultProxy`: its requests, and what their rules make of replies."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from tiercache.testing import proxyhttp
from tiercache.testing.faultreply import altered, invented
from tiercache.testing.faults import Rule
from tiercache.testing.proxyhttp import Reply, Request

if TYPE_CHECKING:
    from tiercache.testing.faultproxy import FaultProxy

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: close sends RST


class CutError(Exception):
    """The connection ends here, on purpose."""


class Connection:
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
        """Raise `CutError` if the connection is to end."""
        if self.aborted:
            raise CutError

    def run(self) -> None:
        """Serve requests until either side ends the connection."""
        try:
            with self._sock.makefile("rb") as stream:
                while self._serve_one(stream):
                    pass
        except (OSError, http.client.HTTPException, CutError):
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
            yield altered(invented(request, fault), request, fault)
            return
        reply, upstream = self._proxy.ask(request, fault)
        with contextlib.closing(upstream):
            yield altered(reply, request, fault)

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
        raise CutError
