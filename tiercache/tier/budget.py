"""How much may still be written to a tier today: flash wears out. Pure."""

from __future__ import annotations

import struct

_DAY_S = 86400
_RECORD = struct.Struct("<QQ")


class WriteBudget:
    """At most *per_day* bytes in each UTC day; 0: no limit. Times are seconds since the epoch.

    `record` and `restore` carry the count over a restart.
    """

    __slots__ = ("_day", "per_day", "written")

    def __init__(self, per_day: int) -> None:
        self.per_day = per_day
        #: Bytes written on the day of the last call.
        self.written = 0
        self._day = 0

    def allows(self, nbytes: int, now: float) -> bool:
        """Whether *nbytes* more are within the budget."""
        if not self.per_day:
            return True
        self._turn(now)
        return self.written + nbytes <= self.per_day

    def spend(self, nbytes: int, now: float) -> None:
        """*nbytes* were written."""
        self._turn(now)
        self.written += nbytes

    def record(self) -> bytes:
        """The count, to be kept."""
        return _RECORD.pack(self._day, self.written)

    def restore(self, record: bytes | None) -> None:
        """Go on from a kept count; anything else than one is ignored."""
        if record is not None and len(record) == _RECORD.size:
            self._day, self.written = _RECORD.unpack(record)

    def _turn(self, now: float) -> None:
        day = int(now // _DAY_S)
        if day != self._day:
            self._day, self.written = day, 0
