"""Whether a tier can be used, decided from what its disk answers.

A tier that cannot be written is bypassed, never an error to a reader: it is probed at growing
intervals and taken back. `full` and `read-only` tiers still serve what they hold.

Writes happen on any thread, so failures are reported from any thread; each report is a few plain
assignments, and the last one wins.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable

from tiercache.tier.limits import Limits

log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)

#: Shortages of this process, not faults of the disk.
_TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)


class Warnings:
    """One line per subject and interval; what is held back is counted in the next line."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def warn(self, subject: str, text: str) -> None:
        """Log *text* unless something about *subject* was logged within the interval."""
        now = time.monotonic()
        if now < self._next.get(subject, 0.0):
            self._held[subject] = self._held.get(subject, 0) + 1
            return
        self._next[subject] = now + self._interval_s
        held = self._held.pop(subject, 0)
        log.warning("%s%s", text, f" ({held} more like it)" if held else "")


class Health:
    """State of one tier: `ok`, `full`, `read-only` or `failed`, with the reason."""

    def __init__(self, name: str, limits: Limits, now: Callable[[], float]) -> None:
        self._name = name
        self._limits = limits
        self._now = now
        self._interval_s = limits.probe_min_s
        self._next_probe = 0.0
        self.warnings = Warnings(limits.warn_interval_s)
        self.state = "ok"
        self.reason = ""
        self.readable = True
        self.writable = True

    def write_failed(self, error: OSError) -> None:
        """A write to the tier failed; on any thread."""
        if error.errno in _TRANSIENT:
            self.warnings.warn("transient", f"tier {self._name}: {_text(error)}; not cached")
            return
        if error.errno in _FULL:
            state = "full"
        else:
            state = "read-only" if error.errno == errno.EROFS else "failed"
        self.readable = state != "failed"
        self.reason = _text(error)
        if self.writable:
            self._interval_s = self._limits.probe_min_s
            self._next_probe = self._now() + self._interval_s
        self.state = state
        self.writable = False
        self.warnings.warn(state, f"tier {self._name} is bypassed, {state}: {self.reason}")

    @property
    def probe_due(self) -> bool:
        """Whether it is time to see if the tier is usable again."""
        return not self.writable and self._now() >= self._next_probe

    def probed(self, error: OSError | None) -> None:
        """What a probe found: back in service, or a longer wait."""
        if error is not None:
            self._interval_s = min(2 * self._interval_s, self._limits.probe_max_s)
            self._next_probe = self._now() + self._interval_s
            return
        log.info("tier %s is back in service", self._name)
        self.state, self.reason = "ok", ""
        self.readable = self.writable = True


def _text(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
