"""How much may be moved per second: token buckets. Pure: time is an argument."""

from __future__ import annotations

#: Rounding of clocks and sums must not make anybody wait a second time for nothing.
_ROUNDING_S = 1e-6


class TokenBucket:
    """A rate that one second's worth may be ahead of, kept in the long run; 0: no limit.

    What is taken is not bounded by what is there: a large body leaves a debt that must be paid off
    before the next. Those who may *borrow* go on until the debt is a second's worth.
    """

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._tokens = per_s
        self._at = 0.0

    def wait_s(self, now: float, *, borrow: bool) -> float:
        """Seconds until something may be taken; 0: now."""
        if not self.per_s:
            return 0.0
        self._fill(now)
        missing = -self._tokens - (self.per_s if borrow else 0.0)
        wait = missing / self.per_s
        return wait if wait > _ROUNDING_S else 0.0

    def take(self, amount: float, now: float) -> None:
        """Take *amount*, whatever is there."""
        if self.per_s:
            self._fill(now)
            self._tokens -= amount

    def _fill(self, now: float) -> None:
        self._tokens = min(self.per_s, self._tokens + (now - self._at) * self.per_s)
        self._at = now


class Rates:
    """The limits of a mount: bytes of bodies and requests per second, 0 where there is none."""

    def __init__(self, bytes_per_s: float = 0.0, requests_per_s: float = 0.0) -> None:
        self._bytes = TokenBucket(bytes_per_s)
        self._requests = TokenBucket(requests_per_s)
        self.limited = bool(bytes_per_s or requests_per_s)

    def reconfigure(self, bytes_per_s: float, requests_per_s: float) -> None:
        """Keep to other rates; a debt under a rate that changed is forgiven."""
        if bytes_per_s != self._bytes.per_s:
            self._bytes = TokenBucket(bytes_per_s)
        if requests_per_s != self._requests.per_s:
            self._requests = TokenBucket(requests_per_s)
        self.limited = bool(bytes_per_s or requests_per_s)

    def wait_s(self, nbytes: int, now: float, *, borrow: bool) -> float:
        """Seconds until a request for *nbytes* may be sent."""
        wait = self._requests.wait_s(now, borrow=borrow)
        return max(wait, self._bytes.wait_s(now, borrow=borrow)) if nbytes else wait

    def take(self, nbytes: int, now: float) -> None:
        """Count a request for *nbytes*, also one that was not asked for here (a retry)."""
        self._requests.take(1, now)
        self._bytes.take(nbytes, now)
