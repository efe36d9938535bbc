"""Small GETs at once: no task, no time-outs of their own, if nothing has to be waited for.

The first attempt of nearly every small GET needs neither retry nor hedge. It is made by the bare
store; only one that fails, or is slower than nearly all before it, goes the long way, which then
knows of the attempt: it counts against the budgets of retries and hedges like any other.
"""

from __future__ import annotations

import trio

from tiercache.errors import OriginUnavailableError, TierCacheError
from tiercache.origin.hedge import HedgingOrigin
from tiercache.origin.http_errors import AskAgainError, SlowReplyError
from tiercache.origin.protocol import EagerOrigin, Ended
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

    def start(self, key: bytes, etag: str, start: int, into: memoryview, ended: Ended) -> bool:
        """Begin to fill *into* as `Origin.get_range` would; *ended* is called once, later.

        With an error nothing in *into* counts. What may work later goes on by `go_on`, any other
        error is the last word. False: not started.
        """
        began = trio.current_time()

        def over(error: TierCacheError | None) -> None:
            if error is None:
                self._retrying.requested()
                self._hedging.learn(trio.current_time() - began)
            ended(error)

        patience = self._hedging.patience(len(into))
        started = self._origin.start_get(key, etag, start, into, over, patience)
        if started:
            self._hedging.asked()
        return started

    async def go_on(
        self,
        error: OriginUnavailableError,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress,
    ) -> None:
        """`Origin.get_range` after a first attempt that ended with *error*."""
        failed = None if isinstance(error, AskAgainError) else error
        await self._retrying.get_range(key, etag, start, into, progress, failed=failed)
        if isinstance(error, SlowReplyError):
            self._hedging.won()
