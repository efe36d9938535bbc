"""One kept-alive connection: a non-blocking socket or SSLSocket that drives `http_wire` steps.

Small replies are received on the loop, large ones by a thread that blocks in `recv_into`
without the GIL. `trio.SSLStream` is not used: its memory BIOs triple the cost of a TLS body.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import NamedTuple, TypeVar

import trio

from tiercache.errors import OriginUnavailableError
from tiercache.origin.http_errors import (
    ConnectError,
    ConnectionLostError,
    NameResolutionError,
    StalledError,
    TlsError,
)
from tiercache.origin.http_threads import ReceiveThreads
from tiercache.origin.http_wire import Steps, Wire

T = TypeVar("T")

_TIMEVAL = Struct("@ll")  # seconds, microseconds


class Address(NamedTuple):
    """Where to connect. With *tls* the certificate must name *host*."""

    host: str
    port: int
    tls: bool


class Connection:
    """A connection in use by one exchange at a time. After any failure it must be closed."""

    def __init__(self, sock: socket.socket, address: Address, stall_timeout_s: float) -> None:
        self.address = address
        self.wire = Wire()
        self.received = 0  # bytes since the last request
        self.idle_since = 0.0
        self._socket = sock
        # The kernel's own time-out: Python's would cost a poll() and a turn of the GIL per receive.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(stall_timeout_s))
        self.stall_timeout_s = stall_timeout_s
        self._cut: Exception | None = None

    async def send(self, data: bytes) -> None:
        """Send a whole request."""
        self.received = 0
        left = memoryview(data)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._wait(trio.lowlevel.wait_writable)
            except ssl.SSLWantReadError:
                await self._wait(trio.lowlevel.wait_readable)
            except OSError as error:
                raise ConnectionLostError(f"sending failed: {error}") from error

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._socket.fileno()

    def send_now(self, data: bytes) -> bool:
        """Send a whole request at once; False when that failed, which leaves it unusable."""
        self.received = 0
        try:
            return self._socket.send(data) == len(data)
        except OSError:
            return False

    def receive_now(self, into: memoryview) -> int | None:
        """Receive what is there; None when nothing is. Raises `ConnectionLostError`."""
        try:
            count = self._socket.recv_into(into)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        except OSError as error:
            raise ConnectionLostError(f"receiving failed: {error}") from error
        self.received += count
        return count

    async def run(self, steps: Steps[T]) -> T:
        """Drive *steps* on the loop."""
        try:
            want = next(steps)
            while True:
                want = steps.send(await self._receive(want))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()  # lets go of the caller's buffer

    async def wait_reply(self) -> None:
        """Wait until something arrives; a checkpoint even when it already has."""
        await self._wait(trio.lowlevel.wait_readable)

    async def run_in_thread(self, steps: Steps[T], threads: ReceiveThreads) -> T:
        """Drive *steps* in a thread.

        When cancelled, the socket is shut down so that the thread ends at once, and its end is
        awaited: nothing writes to the caller's buffer afterwards.
        """
        return await threads.run(lambda: self.run_blocking(steps), self.cut_off)

    def run_blocking(self, steps: Steps[T]) -> T:
        """Drive *steps* in the calling thread."""
        try:
            # Where the kernel's time-out is over OpenSSL asks again, so it is told of Python's.
            self._socket.settimeout(self.stall_timeout_s if self.address.tls else None)
            want = next(steps)
            while True:
                count = self._receive_blocking(want)
                if self._cut is not None:
                    raise self._cut
                self.received += count
                want = steps.send(count)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()
            self._socket.setblocking(False)

    def _receive_blocking(self, into: memoryview) -> int:
        try:
            return self._socket.recv_into(into)
        except (BlockingIOError, TimeoutError):
            raise self.stalled() from None
        except OSError as error:
            raise ConnectionLostError(f"receiving failed: {error}") from error

    async def _receive(self, into: memoryview) -> int:
        while True:
            try:
                count = self._socket.recv_into(into)
            except (BlockingIOError, ssl.SSLWantReadError):
                await self._wait(trio.lowlevel.wait_readable)
            except ssl.SSLWantWriteError:
                await self._wait(trio.lowlevel.wait_writable)
            except OSError as error:
                raise ConnectionLostError(f"receiving failed: {error}") from error
            else:
                self.received += count
                return count

    async def _wait(self, ready: Callable[[socket.socket], Awaitable[None]]) -> None:
        with trio.move_on_after(self.stall_timeout_s) as scope:
            await ready(self._socket)
        if scope.cancelled_caught:
            raise self.stalled()

    def stalled(self) -> StalledError:
        """What it means that nothing moves any more."""
        return StalledError(f"nothing moved for {self.stall_timeout_s:g} s")

    def cut_off(self, error: OriginUnavailableError | None = None) -> None:
        """End `run_blocking` in its thread at once, which then raises *error*."""
        self._cut = error or ConnectionLostError("the transfer was cancelled")
        with contextlib.suppress(OSError):
            # Not SSLSocket.shutdown: that drops the TLS layer under the receiving thread, which
            # would then take ciphertext for data.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    @property
    def is_quiet(self) -> bool:
        """Whether an idle connection can carry a request: still open, nothing unasked arrived."""
        try:
            self._socket.recv_into(bytearray(1))
        except (BlockingIOError, ssl.SSLWantReadError):
            return self._cut is None
        except OSError:
            return False
        return False

    def close(self) -> None:
        """Close at once; harmless when closed."""
        self._socket.close()


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))


async def connect(
    address: Address,
    tls: ssl.SSLContext | None,
    *,
    timeout_s: float,
    stall_timeout_s: float,
) -> Connection:
    """A new connection, IPv6 or IPv4, whichever answers first; `ConnectError` if none does."""
    with trio.move_on_after(timeout_s):
        sock = await _connect_socket(address)
        try:
            if tls is not None:
                sock = await _start_tls(sock, tls, address.host)
        except BaseException:
            sock.close()
            raise
        return Connection(sock, address, stall_timeout_s)
    raise ConnectError(f"{address.host}:{address.port} did not answer within {timeout_s:g} s")


async def _connect_socket(address: Address) -> socket.socket:
    try:
        stream = await trio.open_tcp_stream(address.host, address.port)
    except socket.gaierror as error:
        raise NameResolutionError(f"cannot resolve {address.host}: {error.strerror}") from error
    except OSError as error:
        reason = error.__cause__ or error
        raise ConnectError(
            f"cannot connect to {address.host}:{address.port}: {_reason(reason)}"
        ) from error
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _reason(error: BaseException) -> str:
    """Cause without errno; of several addresses, that of the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    # trio puts the address into `strerror`, which the message holds already.
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


async def _start_tls(sock: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    secure = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    try:
        await _handshake(secure)
    except ssl.SSLCertVerificationError as error:
        secure.close()
        raise TlsError(f"certificate of {host} is not trusted: {error.verify_message}") from error
    except OSError as error:
        secure.close()
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise TlsError(f"TLS handshake with {host} failed: {reason or error}") from error
    except BaseException:
        secure.close()
        raise
    return secure


async def _handshake(secure: ssl.SSLSocket) -> None:
    while True:
        try:
            return secure.do_handshake()
        except ssl.SSLWantReadError:
            await trio.lowlevel.wait_readable(secure)
        except ssl.SSLWantWriteError:
            await trio.lowlevel.wait_writable(secure)
