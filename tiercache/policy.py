"""What decides who stays in a tier: pure, synchronous, no clock, no I/O, no global randomness.

Items are inode numbers, sizes are bytes, time is an argument in seconds. A policy never holds more
than it was told of: whoever drives it removes what is gone.
"""

from __future__ import annotations

from typing import Protocol


class EvictionPolicy(Protocol):
    """Orders the residents of one tier. Every call is O(1) or O(log n)."""

    def admit(self, item: int, size: int, now: float) -> None:
        """*item* begins to be resident. Admitting it again updates its size."""

    def access(self, item: int, now: float) -> None:
        """A resident *item* was opened or read by the daemon."""

    def victim(self, now: float) -> int | None:
        """Who should leave next, or None: nobody does and the newcomer bypasses the tier."""

    def remove(self, item: int) -> None:
        """*item* is no longer resident. Unknown items are ignored."""

    def check(self) -> None:
        """Re-derive every counter; raise AssertionError if one is off. For tests."""
