"""Fill, then never evict: the optimum for a dataset read once per epoch in any order.

With a cache of fraction f of the dataset each epoch after the first hits f, which no demand policy
can exceed when every block is used once per epoch ("MinIO" cache of CoorDL, VLDB 2021). It is
wrong for skewed data and for datasets that are no longer read.
"""

from __future__ import annotations

from tiercache.policy import Policy


class Pin(Policy):
    """Keeps whoever came first."""

    __slots__ = ()

    def __init__(self, capacity: int) -> None:
        """Nothing depends on *capacity*."""

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """Nothing to remember."""

    def access(self, item: int, now: float) -> None:
        """Nothing to remember."""

    def victim(self, now: float) -> int | None:
        """Never anyone."""
        return None

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """Nothing to forget."""
