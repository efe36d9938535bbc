"""How many requests at a time suit the origin: additive increase, multiplicative decrease.

A round is as many finished requests as are allowed at a time. While a round was bounded by the
limit, a larger limit is tried; it stays if throughput grew with it, and goes back to what it was
if requests only waited longer. A throttled request, or a round much slower than the best without
more throughput, cuts the limit. Each disappointment doubles the number of rounds before the next
trial, so that a link known to be full is left alone.

The rule is that of TCP (Chiu and Jain 1989) with the delay as a second signal, as in TCP Vegas.
Pure: time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiercache.types import KIB

#: What a request costs beside its bytes, so that rounds of small bodies can be compared.
_REQUEST_COST = 64 * KIB

#: Shorter rounds are noise.
_ROUND_MIN_S = 0.05

#: A trial pays if throughput grew by this part of what the limit grew by.
_GAIN = 0.3

#: A trial that did not pay is taken back if requests took this much longer.
_SLOWER = 1.1

#: A round this much slower than the fastest, without more throughput, means a queue at the origin.
_QUEUE = 3.0

_CUT_THROTTLED = 0.7
_CUT_QUEUE = 0.85

#: After a cut, further throttled replies are to requests sent before it.
_CALM_S = 1.0

_PATIENCE_MAX = 64


@dataclass(slots=True)
class _Round:
    began: float
    count: int = 0
    full: int = 0
    work: int = 0
    latency_s: float = 0.0


@dataclass(slots=True)
class _Trial:
    """What the limit was and gave before it was raised."""

    limit: int
    rate: float
    latency_s: float


class Concurrency:
    """`limit` moves between *low* and *high*, both included; starts in the middle."""

    def __init__(self, low: int, high: int) -> None:
        self._low = min(low, high)
        self._high = high
        self.limit = max(self._low, high // 2)
        self._round: _Round | None = None
        self._trial: _Trial | None = None
        self._step = 1
        self._hold = 0
        self._patience = 2
        self._fastest_s = float("inf")
        self._rate = 0.0
        self._calm_until = float("-inf")

    def reconfigure(self, low: int, high: int) -> None:
        """Move between other bounds; what was learned within them stays."""
        self._low, self._high = min(low, high), high
        within = max(self._low, min(self.limit, high))
        if within != self.limit:
            self.limit = within
            self._trial = self._round = None

    def finished(self, nbytes: int, latency_s: float, now: float, *, full: bool) -> None:
        """A request ended well, *latency_s* to its first byte; *full*: others had to wait."""
        current = self._round
        if current is None:
            current = self._round = _Round(now - latency_s)
        current.count += 1
        current.full += full
        current.work += nbytes + _REQUEST_COST
        current.latency_s += latency_s
        elapsed = now - current.began
        if current.count >= self.limit and elapsed >= _ROUND_MIN_S:
            self._round = _Round(now)
            if 2 * current.full >= current.count:
                self._judge(current.work / elapsed, current.latency_s / current.count)
            else:
                self._trial = None  # fewer were wanted than allowed: nothing to learn

    def throttled(self, now: float) -> None:
        """The origin said that this is too much."""
        if now < self._calm_until:
            return
        self._calm_until = now + _CALM_S
        self._cut(_CUT_THROTTLED)

    def _judge(self, rate: float, latency_s: float) -> None:
        before, self._rate = self._rate, rate
        self._fastest_s = min(self._fastest_s * 1.01, latency_s)  # forgets slowly
        if latency_s > _QUEUE * self._fastest_s and rate < before:
            self._fastest_s = latency_s  # if it is not a queue but the origin, this is normal now
            self._cut(_CUT_QUEUE)
        elif self._hold:
            self._hold -= 1
        elif self._trial is None or self._paid(self._trial, rate):
            self._raise(rate, latency_s)
        elif latency_s > _SLOWER * self._trial.latency_s:
            self._set(self._trial.limit)
            self._wait()
        else:
            self._wait()

    def _paid(self, trial: _Trial, rate: float) -> bool:
        growth = self.limit / trial.limit - 1
        return rate >= trial.rate * (1 + _GAIN * growth)

    def _raise(self, rate: float, latency_s: float) -> None:
        if self.limit == self._high:
            return
        self._trial = _Trial(self.limit, rate, latency_s)
        self._set(self.limit + self._step)
        self._step = min(self._step + 1, max(1, self.limit // 4))

    def _cut(self, factor: float) -> None:
        self._set(int(self.limit * factor))
        self._wait()

    def _wait(self) -> None:
        self._trial, self._step, self._round = None, 1, None
        self._hold = self._patience
        self._patience = min(2 * self._patience, _PATIENCE_MAX)

    def _set(self, limit: int) -> None:
        self.limit = max(self._low, min(limit, self._high))
