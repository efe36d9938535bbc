"""Who goes next when connections, memory or rates are short.

Every origin request needs one connection and the bytes of its body. Both are granted together, in
order of priority and then of arrival, so nobody holds memory while queueing for a connection.
Prefetch and background work never get the reserved connections nor the last quarter of the
memory: a reader that misses finds room at once. Where rates are limited, readers and metadata may
go a second's worth into debt, which the others then pay off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from tiercache.config import TransferConfig
from tiercache.transfer.buffers import rounded
from tiercache.transfer.rates import Rates
from tiercache.types import Priority


def _done() -> None:
    """Nothing is left to tell."""


class Ticket:
    """One request's place: queued, then granted.

    `body` is what comes over the wire, `memory` what it takes here.
    """

    __slots__ = ("body", "granted", "memory", "on_grant", "priority")

    def __init__(
        self, priority: Priority, body: int, memory: int, on_grant: Callable[[], None]
    ) -> None:
        self.priority = priority
        self.body = body
        self.memory = memory
        self.on_grant = on_grant
        self.granted = False


class Admission:
    """Bounds on connections, on bytes in memory, and on rates.

    *reclaim* is asked for at least so many bytes when memory is short; it frees what it can
    through `memory_used` before it returns.
    """

    def __init__(
        self,
        connections: int,
        reserved: int,
        memory: int,
        reclaim: Callable[[int], None],
        rates: Rates | None = None,
    ) -> None:
        self._connections = connections
        self._memory = memory
        self._connections_spare = reserved
        self._memory_spare = memory // 4
        self._reclaim = reclaim
        self._rates = rates or Rates()
        self._queues: dict[Priority, deque[Ticket]] = {p: deque() for p in Priority}
        self._paused = trio.Event()
        self._pause = trio.CancelScope()
        self._resume_at = float("inf")
        self.connections_used = 0
        self.memory_used = 0

    async def run(self) -> None:
        """Let the queue move on when a limited rate allows, until cancelled."""
        while True:
            await self._paused.wait()
            with trio.CancelScope(deadline=self._resume_at) as self._pause:
                await trio.sleep_forever()
            self._paused = trio.Event()
            self._resume_at = float("inf")
            self._dispatch()

    def ticket(self, priority: Priority, body: int, on_grant: Callable[[], None] = _done) -> Ticket:
        """A place in the queue for one connection and the memory of *body* bytes, not yet taken."""
        return Ticket(priority, body, self._charge(body), on_grant)

    def queue(self, ticket: Ticket) -> None:
        """Take the place of *ticket*, whose `on_grant` is called in time, maybe at once."""
        self._queues[ticket.priority].append(ticket)
        self._dispatch()

    def request(
        self, priority: Priority, body: int, on_grant: Callable[[], None] = _done
    ) -> Ticket:
        """Queue for one connection and the memory of *body* bytes; *on_grant* says when."""
        ticket = self.ticket(priority, body, on_grant)
        self.queue(ticket)
        return ticket

    async def connection(self, priority: Priority) -> Ticket:
        """Wait for a connection alone. A checkpoint only when it must wait."""
        granted = trio.Event()
        ticket = self.request(priority, 0, granted.set)
        if not ticket.granted:
            try:
                await granted.wait()
            except trio.Cancelled:
                self.withdraw(ticket)
                raise
        return ticket

    def grow(self, ticket: Ticket, body: int) -> None:
        """Make a queued *ticket* one for *body* bytes."""
        assert not ticket.granted
        ticket.body, ticket.memory = body, self._charge(body)

    def promote(self, ticket: Ticket, priority: Priority) -> None:
        """Move a queued *ticket* to a sooner *priority*; no effect once granted."""
        if ticket.granted or priority >= ticket.priority:
            return
        self._queues[ticket.priority].remove(ticket)
        ticket.priority = priority
        self._queues[priority].append(ticket)
        self._dispatch()

    def withdraw(self, ticket: Ticket) -> None:
        """Give up a ticket whose owner was cancelled, granted in the meantime or not."""
        if ticket.granted:
            self.connections_used -= 1
            self.memory_used -= ticket.memory
        else:
            self._queues[ticket.priority].remove(ticket)
            ticket.on_grant = _done
        self._dispatch()

    def release_connection(self) -> None:
        """The request is over."""
        self.connections_used -= 1
        self._dispatch()

    def release_memory(self, ticket: Ticket) -> None:
        """The bytes are no longer needed."""
        self.memory_used -= ticket.memory
        self._dispatch()

    def resize(self, connections: int) -> None:
        """Allow so many *connections* from now on; those in use stay."""
        if connections != self._connections:
            self._connections = connections
            self._dispatch()

    def reconfigure(self, connections: int, config: TransferConfig) -> None:
        """Allow so many *connections* and what *config* says of the reserved ones and of rates."""
        self._connections = connections
        self._connections_spare = config.connections_reserved
        self._rates.reconfigure(config.bandwidth, config.requests_per_s)
        self._dispatch()

    def charge(self, body: int = 0) -> None:
        """A request for *body* bytes was sent that nobody asked for here: a retry, a hedge."""
        if self._rates.limited:
            self._rates.take(body, trio.current_time())

    @property
    def waiting(self) -> int:
        """Requests that are queued."""
        return sum(map(len, self._queues.values()))

    @property
    def memory_ahead(self) -> int:
        """The part of the memory that what is fetched ahead of readers may take."""
        return self._memory - self._memory_spare

    @property
    def congested(self) -> bool:
        """Whether more is queued ahead of readers than the connections take over in one go."""
        return len(self._queues[Priority.PREFETCH]) > self._connections

    def _charge(self, body: int) -> int:
        # No more than anybody can get, so that the largest body is let in alone.
        return min(rounded(body), self._memory - self._memory_spare)

    def _dispatch(self) -> None:
        # Strict order: a large demand at the head is not overtaken by smaller prefetches.
        for priority, queue in self._queues.items():
            while queue:
                if not self._fits(queue[0], priority):
                    return
                self._grant(queue.popleft())

    def _grant(self, ticket: Ticket) -> None:
        self.connections_used += 1
        self.memory_used += ticket.memory
        self.charge(ticket.body)
        ticket.granted = True
        # It holds its owner, who holds the ticket: such a cycle would hold memory for long.
        on_grant, ticket.on_grant = ticket.on_grant, _done
        on_grant()

    def _fits(self, ticket: Ticket, priority: Priority) -> bool:
        spare = priority > Priority.DEMAND
        connections = self._connections
        if spare:
            connections = max(1, connections - self._connections_spare)
        if self.connections_used >= connections:
            return False
        if self._rates.limited and not self._in_time(ticket, borrow=not spare):
            return False
        memory = self._memory - (self._memory_spare if spare else 0)
        return not ticket.memory or self._room(ticket.memory, memory)

    def _in_time(self, ticket: Ticket, *, borrow: bool) -> bool:
        now = trio.current_time()
        wait_s = self._rates.wait_s(ticket.body, now, borrow=borrow)
        if wait_s and now + wait_s < self._resume_at:
            self._resume_at = self._pause.deadline = now + wait_s
            self._paused.set()
        return not wait_s

    def _room(self, nbytes: int, memory: int) -> bool:
        missing = self.memory_used + nbytes - memory
        if missing > 0:
            self._reclaim(missing)
        return self.memory_used + nbytes <= memory
