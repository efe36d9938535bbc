"""Many exchanges driven by one task.

A task per request costs more than a small body: its spawning, its time-outs, and a turn of the
selector for every wait. Here each exchange is a `Steps` generator and a callback; one task waits
for all sockets at once and drives those that have something, bulky ones in threads. Connections
come kept alive and go back so: whatever is not plain sailing ends the exchange and is for others to
put right.
"""

from __future__ import annotations

import select
from dataclasses import dataclass

import outcome
import trio

from tiercache.errors import OriginUnavailableError, TierCacheError
from tiercache.origin.http_connection import Connection
from tiercache.origin.http_errors import ConnectionLostError, SlowReplyError, StalledError
from tiercache.origin.http_threads import ReceiveThreads
from tiercache.origin.http_wire import Steps
from tiercache.origin.protocol import Ended, Patience

_NOTHING = memoryview(b"")
_LATE = "no answer within the deadline"


@dataclass(slots=True, eq=False)
class _Exchange:
    """`want` is the memory to receive into next; of a *bulky* one only its thread knows."""

    connection: Connection
    steps: Steps[None]
    ended: Ended
    patience: Patience | None
    moved_at: float
    over_at: float
    bulky: bool
    want: memoryview


class Exchanges:
    """Runs exchanges, bulky ones in *threads*; none takes longer than `deadline_s`."""

    def __init__(self, threads: ReceiveThreads, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._threads = threads
        self._running: dict[int, _Exchange] = {}
        self._in_threads: dict[_Exchange, None] = {}
        self._bug: BaseException | None = None  # what no reply should cause, for `run` to raise
        self._left_thread = trio.lowlevel.ParkingLot()
        self._epoll = select.epoll()
        self._check_at = float("inf")
        self._wait = trio.CancelScope()

    def start(
        self,
        connection: Connection,
        request: bytes,
        steps: Steps[None],
        ended: Ended,
        patience: Patience | None = None,
        *,
        bulky: bool = False,
    ) -> bool:
        """Send *request* and drive *steps* with the reply; call *ended* later, never before.

        A *bulky* reply is received, and *steps* are driven, in a thread once it begins. Given up
        when *patience* is over, it ends with `SlowReplyError`. The connection is the caller's again
        when *ended* is called. False: it could not be sent, and is lost.
        """
        if self._epoll.closed or not connection.send_now(request):
            return False
        fd = connection.fileno()
        try:
            self._epoll.register(fd, select.EPOLLIN)
        except OSError:
            return False
        now = trio.current_time()
        want = _NOTHING if bulky else next(steps)
        exchange = _Exchange(
            connection, steps, ended, patience, now, now + self.deadline_s, bulky, want
        )
        self._running[fd] = exchange
        self._look_at(self._ends_at(exchange))
        return True

    async def run(self) -> None:
        """Drive what was started, until cancelled; that ends all exchanges."""
        try:
            while True:
                await self._turn()
        finally:
            await self._end_all()

    async def _end_all(self) -> None:
        running = list(self._running.values())
        for exchange in running:
            self._forget(exchange)
            exchange.steps.close()
        self._epoll.close()  # whatever their owners do now, nothing starts any more
        for exchange in running:
            exchange.ended(ConnectionLostError("the transfer was cancelled"))
        for exchange in self._in_threads:
            exchange.connection.cut_off()
        with trio.CancelScope(shield=True):
            while self._in_threads:
                await self._left_thread.park()

    async def _turn(self) -> None:
        with trio.CancelScope(deadline=self._check_at) as self._wait:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
        for fd, _ in self._epoll.poll(0):
            exchange = self._running[fd]
            if exchange.bulky:
                self._forget(exchange)
                self._drive_in_thread(exchange)
            else:
                self._drive(exchange)
        if self._bug is not None:
            raise self._bug
        now = trio.current_time()
        if now >= self._check_at:
            self._end_late(now)

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

    def _drive_in_thread(self, exchange: _Exchange) -> None:
        def left(result: outcome.Outcome[None]) -> None:
            del self._in_threads[exchange]
            self._left_thread.unpark_all()
            error = result.error if isinstance(result, outcome.Error) else None
            if error is not None and not isinstance(error, TierCacheError):
                self._bug, error = error, OriginUnavailableError("receiving failed")
                self._wait.cancel()
            exchange.ended(error)

        self._in_threads[exchange] = None
        connection, steps = exchange.connection, exchange.steps
        self._threads.start(lambda: connection.run_blocking(steps), left)

    def _end(self, exchange: _Exchange, error: TierCacheError | None) -> None:
        self._forget(exchange)
        exchange.steps.close()  # lets go of the caller's buffer
        exchange.ended(error)

    def _forget(self, exchange: _Exchange) -> None:
        fd = exchange.connection.fileno()
        del self._running[fd]
        self._epoll.unregister(fd)

    def _end_late(self, now: float) -> None:
        self._check_at = float("inf")
        for exchange in list(self._running.values()):
            ends_at = self._ends_at(exchange)
            if ends_at > now:
                self._look_at(ends_at)
            elif now >= exchange.over_at:
                self._end(exchange, StalledError(_LATE))
            elif exchange.patience is None:
                self._end(exchange, exchange.connection.stalled())
            elif exchange.patience.give_up():
                self._end(exchange, SlowReplyError("no answer in the usual time"))
            else:
                exchange.patience = None
                self._look_at(self._ends_at(exchange))
        for exchange in self._in_threads:  # where the kernel times stalls
            if exchange.over_at > now:
                self._look_at(exchange.over_at)
            else:
                exchange.connection.cut_off(StalledError(_LATE))

    def _ends_at(self, exchange: _Exchange) -> float:
        patience = exchange.patience
        seconds = patience.seconds if patience else exchange.connection.stall_timeout_s
        return min(exchange.moved_at + seconds, exchange.over_at)

    def _look_at(self, moment: float) -> None:
        if moment < self._check_at:
            self._check_at = self._wait.deadline = moment
