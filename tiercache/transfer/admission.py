"""Who goes next when connections or memory are short.

Every origin request needs one connection and the bytes of its body. Both are granted together, in
order of priority and then of arrival, so nobody holds memory while queueing for a connection.
Prefetch and background work never get the reserved connections nor the last quarter of the
memory: a reader that misses finds room at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from tiercache.types import Priority


class Ticket:
    """One request's place: queued, then granted."""

    __slots__ = ("granted", "nbytes", "priority")

    def __init__(self, priority: Priority, nbytes: int) -> None:
        self.priority = priority
        self.nbytes = nbytes
        self.granted = trio.Event()


class Admission:
    """Bounds on connections and on bytes in memory.

    *reclaim* is asked for at least so many bytes when memory is short; it frees what it can
    through `release_memory` before it returns.
    """

    def __init__(
        self, connections: int, reserved: int, memory: int, reclaim: Callable[[int], None]
    ) -> None:
        self._connections = connections
        self._memory = memory
        self._connections_spare = reserved
        self._memory_spare = memory // 4
        self._reclaim = reclaim
        self._queues: dict[Priority, deque[Ticket]] = {p: deque() for p in Priority}
        self.connections_used = 0
        self.memory_used = 0

    def request(self, priority: Priority, nbytes: int) -> Ticket:
        """Queue for one connection and *nbytes* of memory; await `ticket.granted`."""
        ticket = Ticket(priority, min(nbytes, self._memory - self._memory_spare))
        self._queues[priority].append(ticket)
        self._dispatch()
        return ticket

    async def connection(self, priority: Priority) -> Ticket:
        """Wait for a connection alone. A checkpoint only when it must wait."""
        ticket = self.request(priority, 0)
        if not ticket.granted.is_set():
            try:
                await ticket.granted.wait()
            except trio.Cancelled:
                self.withdraw(ticket)
                raise
        return ticket

    def promote(self, ticket: Ticket, priority: Priority) -> None:
        """Move a queued *ticket* to a sooner *priority*; no effect once granted."""
        if ticket.granted.is_set() or priority >= ticket.priority:
            return
        self._queues[ticket.priority].remove(ticket)
        ticket.priority = priority
        self._queues[priority].append(ticket)
        self._dispatch()

    def withdraw(self, ticket: Ticket) -> None:
        """Give up a ticket whose owner was cancelled, granted in the meantime or not."""
        if ticket.granted.is_set():
            self.connections_used -= 1
            self.memory_used -= ticket.nbytes
        else:
            self._queues[ticket.priority].remove(ticket)
        self._dispatch()

    def release_connection(self) -> None:
        """The request is over."""
        self.connections_used -= 1
        self._dispatch()

    def release_memory(self, ticket: Ticket) -> None:
        """The bytes are no longer needed."""
        self.memory_used -= ticket.nbytes
        self._dispatch()

    @property
    def waiting(self) -> int:
        """Requests that are queued."""
        return sum(map(len, self._queues.values()))

    def _dispatch(self) -> None:
        # Strict order: a large demand at the head is not overtaken by smaller prefetches.
        for priority, queue in self._queues.items():
            while queue:
                if not self._fits(queue[0], priority):
                    return
                ticket = queue.popleft()
                self.connections_used += 1
                self.memory_used += ticket.nbytes
                ticket.granted.set()

    def _fits(self, ticket: Ticket, priority: Priority) -> bool:
        spare = priority > Priority.DEMAND
        connections = self._connections - (self._connections_spare if spare else 0)
        if self.connections_used >= connections:
            return False
        memory = self._memory - (self._memory_spare if spare else 0)
        return not ticket.nbytes or self._room(ticket.nbytes, memory)

    def _room(self, nbytes: int, memory: int) -> bool:
        missing = self.memory_used + nbytes - memory
        if missing > 0:
            self._reclaim(missing)
        return self.memory_used + nbytes <= memory
