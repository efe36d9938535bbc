"""Many small exchanges driven by one task.

A task per request costs more than a small body: its spawning, its time-outs, and a turn of the
selector for every wait. Here each exchange is a `Steps` generator and a callback; one task waits
for all sockets at once and drives those that have something. Connections come kept alive and go
back so: whatever is not plain sailing ends the exchange and is for others to put right.
"""

from __future__ import annotations

import select

import trio

from tiercache.errors import TierCacheError
from tiercache.origin.http_connection import Connection
from tiercache.origin.http_errors import ConnectionLostError, SlowReplyError
from tiercache.origin.http_wire import Steps
from tiercache.origin.protocol import Ended, Patience


class _Exchange:
    __slots__ = ("connection", "ended", "moved_at", "patience", "steps", "want")

    def __init__(
        self, connection: Connection, steps: Steps[None], ended: Ended, patience: Patience | None
    ) -> None:
        self.connection = connection
        self.steps = steps
        self.want = next(steps)
        self.ended = ended
        self.patience = patience
        self.moved_at = trio.current_time()


class Exchanges:
    """Runs exchanges. *stall_timeout_s* is the longest time without a byte."""

    def __init__(self, stall_timeout_s: float) -> None:
        self.stall_timeout_s = stall_timeout_s
        self._running: dict[int, _Exchange] = {}
        self._epoll = select.epoll()
        self._some = trio.Event()
        self._check_at = float("inf")
        self._wait = trio.CancelScope()

    def start(
        self,
        connection: Connection,
        request: bytes,
        steps: Steps[None],
        ended: Ended,
        patience: Patience | None = None,
    ) -> bool:
        """Send *request* and drive *steps* with the reply; call *ended* later, never before.

        Given up when *patience* is over, it ends with `SlowReplyError`. The connection is the
        caller's again when *ended* is called. False: it could not be sent, and is lost.
        """
        if self._epoll.closed or not connection.send_now(request):
            return False
        exchange = _Exchange(connection, steps, ended, patience)
        fd = connection.fileno()
        self._running[fd] = exchange
        self._epoll.register(fd, select.EPOLLIN)
        self._look_at(self._ends_at(exchange))
        self._some.set()
        return True

    async def run(self) -> None:
        """Drive what was started, until cancelled; that ends all exchanges."""
        try:
            while True:
                await self._some.wait()
                self._some = trio.Event()
                while self._running:
                    await self._turn()
        finally:
            running = list(self._running.values())
            for exchange in running:
                self._forget(exchange)
            self._epoll.close()  # whatever their owners do now, nothing starts any more
            for exchange in running:
                exchange.ended(ConnectionLostError("the transfer was cancelled"))

    async def _turn(self) -> None:
        with trio.CancelScope(deadline=self._check_at) as self._wait:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
        for fd, _ in self._epoll.poll(0):
            self._drive(self._running[fd])
        now = trio.current_time()
        if now >= self._check_at:
            self._end_stalled(now)

    def _drive(self, exchange: _Exchange) -> None:
        connection, steps = exchange.connection, exchange.steps
        try:
            while (count := connection.receive_now(exchange.want)) is not None:
                exchange.patience = None
                exchange.want = steps.send(count)
        except StopIteration:
            self._end(exchange, None)
        except TierCacheError as error:
            self._end(exchange, error)
        else:
            exchange.moved_at = trio.current_time()

    def _end(self, exchange: _Exchange, error: TierCacheError | None) -> None:
        self._forget(exchange)
        exchange.ended(error)

    def _forget(self, exchange: _Exchange) -> None:
        fd = exchange.connection.fileno()
        del self._running[fd]
        self._epoll.unregister(fd)
        exchange.steps.close()  # lets go of the caller's buffer

    def _end_stalled(self, now: float) -> None:
        self._check_at = float("inf")
        for exchange in list(self._running.values()):
            ends_at = self._ends_at(exchange)
            if ends_at > now:
                self._look_at(ends_at)
            elif exchange.patience is None:
                stalled = f"nothing moved for {self.stall_timeout_s:g} s"
                self._end(exchange, ConnectionLostError(stalled))
            elif exchange.patience.give_up():
                self._end(exchange, SlowReplyError("no answer in the usual time"))
            else:
                exchange.patience = None
                self._look_at(self._ends_at(exchange))

    def _ends_at(self, exchange: _Exchange) -> float:
        patience = exchange.patience
        seconds = self.stall_timeout_s if patience is None else patience.seconds
        return exchange.moved_at + seconds

    def _look_at(self, moment: float) -> None:
        if moment < self._check_at:
            self._check_at = self._wait.deadline = moment
