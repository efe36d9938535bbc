"""GETs at once: no task, no time-outs of their own, if nothing has to be waited for.

The first attempt of nearly every GET needs neither retry nor hedge. It is made by the bare
store; only one that fails, or is slower than nearly all before it, goes the long way, which then
knows of the attempt: it counts against the budgets of retries and hedges like any other.
"""

from __future__ import annotations

import trio

from tiercache.errors import TierCacheError
from tiercache.origin.hedge import HedgingOrigin
from tiercache.origin.http_errors import AskAgainError, SlowReplyError
from tiercache.origin.protocol import EagerOrigin, Ended, FirstAttempt, RangedGet
from tiercache.origin.retry import RetryingOrigin
from tiercache.types import Progress


class EagerGets:
    """First attempts by *origin*, further ones by *retrying*, which stands in front of it."""

    def __init__(
        self, origin: EagerOrigin, hedging: HedgingOrigin, retrying: RetryingOrigin
    ) -> None:
        self._origin = origin
        self._hedging = hedging
        self._retrying = retrying

    def start(self, get: RangedGet, ended: Ended) -> bool:
        """Begin what `Origin.get_range` does; *ended* is called once, later.

        With an error only what the GET's progress was told of counts. What may work later goes on
        by `go_on`, any other error is the last word. False: not started.
        """
        timed = _Timed(get.progress or _unheard)

        def over(error: TierCacheError | None) -> None:
            if error is None:
                self._retrying.requested()
                self._hedging.learn(timed.latency_s())
            ended(error)

        heard = get if get.progress is None else get._replace(progress=timed.advance)
        started = self._origin.start_get(heard, over, self._hedging.patience(len(get.into)))
        if started:
            self._hedging.asked()
        return started

    async def go_on(self, get: RangedGet, first: FirstAttempt) -> None:
        """Carry *get* on after a *first* attempt that ended with an error."""
        again = isinstance(first.failed, AskAgainError)
        await self._retrying.go_on(get, first._replace(failed=None) if again else first)
        if isinstance(first.failed, SlowReplyError):
            self._hedging.won()


def _unheard(_filled: int) -> None:
    """Nobody wants to know."""


class _Timed:
    """When a GET began to bring bytes."""

    __slots__ = ("_began", "_clock", "_first_at", "_progress")

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._clock = trio.lowlevel.current_clock()
        self._began = self._clock.current_time()
        self._first_at: float | None = None

    def advance(self, filled: int) -> None:
        """Pass progress on; on any thread."""
        if self._first_at is None:
            self._first_at = self._clock.current_time()
        self._progress(filled)

    def latency_s(self) -> float:
        """How long it took, up to now if nobody was told."""
        return (self._first_at or self._clock.current_time()) - self._began
