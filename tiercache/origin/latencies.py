"""How long GETs take to begin, and from when on one counts as slow."""

from __future__ import annotations

from collections import deque

#: First-byte times that are looked at.
_SAMPLES = 512

#: Nothing is called slow on less evidence than this.
_SAMPLES_MIN = 64

#: It is computed anew after so many samples.
_REFRESH = 32

#: Slower than this part of the samples, with some slack, is slow.
_QUANTILE = 0.99
_SLACK = 1.25


class Latencies:
    """`slow_s`: after which time a GET counts as slow, *min_s* at least; None: too little known."""

    def __init__(self, min_s: float) -> None:
        self.slow_s: float | None = None
        self._min_s = min_s
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._fresh = 0

    def reconfigure(self, min_s: float) -> bool:
        """Call nothing slow before another time; whether `slow_s` was set anew."""
        self._min_s = min_s
        return self._judge()

    def learn(self, latency_s: float) -> bool:
        """Note how long a GET took to begin; whether `slow_s` was set anew."""
        self._samples.append(latency_s)
        self._fresh += 1
        return self._fresh >= _REFRESH and self._judge()

    def _judge(self) -> bool:
        if len(self._samples) < _SAMPLES_MIN:
            return False
        self._fresh = 0
        slow = sorted(self._samples)[int(_QUANTILE * (len(self._samples) - 1))]
        self.slow_s = max(self._min_s, _SLACK * slow)
        return True
