"""What ties extra requests to those that are made anyway: a store in trouble is not buried."""

from __future__ import annotations


class Budget:
    """A token bucket: each request brings a part of an extra one, which takes a whole token.

    *saved* tokens are there at the beginning, *burst* at most; without *saved* it begins full.
    """

    def __init__(self, per_request: float, burst: int, saved: float | None = None) -> None:
        self.per_request = per_request
        self._burst = float(burst)
        self._tokens = self._burst if saved is None else saved

    def resize(self, per_request: float, burst: int) -> None:
        """Other bounds: what is missing from a full bucket stays missing."""
        self.per_request = per_request
        self._tokens = max(0.0, self._tokens + burst - self._burst)
        self._burst = float(burst)

    def deposit(self) -> None:
        """A request was made."""
        self._tokens = min(self._burst, self._tokens + self.per_request)

    def withdraw(self) -> bool:
        """Whether an extra one may be made."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
