"""When to stop moving because it mostly fails, and when to try again. Pure."""

from __future__ import annotations


class Suspension:
    """Counts outcomes; suspends at *percent* failures among at least *tries* attempts.

    While suspended one attempt is let through after *wait_s*, then after twice that, and so on up
    to *wait_max_s*; the first success ends it. Times are seconds.
    """

    def __init__(self, percent: int, tries: int, wait_s: float, wait_max_s: float) -> None:
        self.reconfigure(percent, tries, wait_s, wait_max_s)
        self._tried = self._failed = 0
        self._resume_at = 0.0
        self.suspended = False

    def reconfigure(self, percent: int, tries: int, wait_s: float, wait_max_s: float) -> None:
        """Judge by other bounds from now on; what was counted stays."""
        self._percent = percent
        self._tries = tries
        self._first_wait_s = self._wait_s = wait_s
        self._wait_max_s = wait_max_s

    def permits(self, now: float) -> bool:
        """Whether a move may be tried now."""
        return not self.suspended or now >= self._resume_at

    def ended(self, now: float, *, failed: bool) -> None:
        """A move was tried."""
        if self.suspended:
            self._probed(now, failed=failed)
            return
        self._tried += 1
        self._failed += failed
        if self._tried >= self._tries:
            if 100 * self._failed >= self._percent * self._tried:
                self.suspended = True
                self._resume_at = now + self._wait_s
            self._tried = self._failed = 0

    def _probed(self, now: float, *, failed: bool) -> None:
        if failed:
            self._wait_s = min(2 * self._wait_s, self._wait_max_s)
            self._resume_at = now + self._wait_s
        else:
            self.suspended = False
            self._wait_s = self._first_wait_s
