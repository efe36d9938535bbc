"""What decides who stays in a tier: pure, synchronous, no clock, no I/O, no global randomness.

Items are numbers that name one object version each (the daemon uses inode numbers), sizes are
bytes, time is an argument in seconds. Groups are datasets, numbered by whoever drives the policy.
The same classes run in the daemon and in the simulator.

Whoever drives a policy keeps this order for every use of an item:

    resident:      access(item)
    not resident:  wants(item)? no: it bypasses the tier.
                   yes: while it does not fit, victim() leaves through remove(); None: it bypasses.
                   Then admit(item).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a policy: a number from *low* to *high*, both included."""

    default: float
    low: float
    high: float
    doc: str


class EvictionPolicy(Protocol):
    """Orders the residents of one tier. Every call is O(1) or O(log n).

    It is made as `Class(capacity, **params)`: *capacity* in bytes, parameters as the class declares
    them. What it remembers of items that are not resident is bounded by the capacity too.
    """

    def resize(self, capacity: int) -> None:
        """The tier holds *capacity* bytes from now on."""

    def wants(self, item: int, size: int, group: int, now: float) -> bool:
        """A non-resident *item* was used: may it enter? False: serve it past the tier."""

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """*item* begins to be resident. Admitting it again updates its size."""

    def access(self, item: int, now: float) -> None:
        """A resident *item* was used. Unknown items are ignored."""

    def victim(self, now: float) -> int | None:
        """Who should leave for the item last wanted, or None: nobody does.

        Removes nobody; asked again without a change in between, it says the same.
        """

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """*item* is no longer resident; *evicted*: this policy said so. Unknown: ignored."""

    def score(self, item: int, now: float) -> float:
        """How much *item* deserves its place, larger is more; comparable within one policy."""

    def check(self) -> None:
        """Re-derive every counter; raise AssertionError if one is off. For tests."""


class Policy:
    """What most policies have in common; a base class for convenience, not a requirement."""

    __slots__ = ()

    #: What `Class(capacity, **params)` takes, by name.
    params: ClassVar[dict[str, Param]] = {}

    def resize(self, capacity: int) -> None:
        """The capacity does not matter."""

    def wants(self, item: int, size: int, group: int, now: float) -> bool:
        """Everybody is welcome."""
        return True

    def score(self, item: int, now: float) -> float:
        """All are worth the same."""
        return 0.0

    def check(self) -> None:
        """Nothing to re-derive."""
