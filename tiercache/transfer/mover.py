"""Moves objects between the local tiers in the background: never for a reader, never in its way.

What should move is decided by `tier.exchange`; here is when, how fast, and what to do when it
fails. Moves take turns with the readers: while anybody reads, each chunk is followed by a rest of
several times the time it took, so a disk that is slow because it is busy is left alone for longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import trio

from tiercache.config import MoveConfig
from tiercache.tier.exchange import Exchange, Move
from tiercache.tier.moving import Pace
from tiercache.tier.residency import Residency
from tiercache.tier.tier import Tier
from tiercache.transfer.suspension import Suspension

log = logging.getLogger(__name__)

#: Rest after a chunk while readers are active, in times of what the chunk took.
_REST = 8

#: Longest wait between two probes while suspended, in intervals.
_PROBE_MAX = 32


def _suspension(config: MoveConfig) -> tuple[int, int, float, float]:
    """Arguments of `Suspension`."""
    interval_s = config.interval_s
    return (
        config.suspend_error_pct,
        config.suspend_error_min,
        interval_s,
        _PROBE_MAX * interval_s,
    )


class Mover:
    """The background of the exchange between tiers. On the loop, in one task."""

    def __init__(
        self,
        exchange: Exchange,
        config: MoveConfig,
        *,
        activity: Callable[[], int],
    ) -> None:
        """*activity*: grows whenever somebody reads the mount."""
        self._exchange = exchange
        self._config = config
        self._activity = activity
        self._seen = 0
        self._free_at = 0.0
        self._limiter = trio.CapacityLimiter(config.concurrency)
        self._suspension = Suspension(*_suspension(config))
        self._planned_at = 0.0
        self._pause = trio.CancelScope()
        self.failures = 0
        self._set_demotes()

    def reconfigure(self, config: MoveConfig) -> None:
        """Move by other rules from now on; a chunk that is being copied ends under the old ones."""
        self._config = config
        self._limiter.total_tokens = config.concurrency
        self._suspension.reconfigure(*_suspension(config))
        self._free_at = 0.0
        self._pause.deadline = self._planned_at + config.interval_s
        self._set_demotes()

    def _set_demotes(self) -> None:
        for tier in self._exchange.tiers[:-1]:
            tier.demotes = not self._config.dry_run

    def status(self) -> dict[str, Any]:
        """Facts for `tiercache status`."""
        return {
            "suspended": self.suspended,
            "failures": self.failures,
            "dry_run": self._config.dry_run,
        }

    @property
    def suspended(self) -> bool:
        """Whether moves are suspended because most of them failed."""
        return self._suspension.suspended

    async def run(self) -> None:
        """Plan and move at every interval, until cancelled."""
        while True:
            self._planned_at = trio.current_time()
            with trio.CancelScope(deadline=self._planned_at + self._config.interval_s) as scope:
                self._pause = scope  # a shorter interval ends it
                await trio.sleep_forever()
            await self.round()

    async def round(self) -> None:
        """Everything that should move now: first down, to make room, then up."""
        # From the bottom, so that the tier below has room for what comes down.
        for tier in reversed(self._exchange.tiers):
            if tier.used > tier.high_water:
                await self._relieve(tier)
        async with trio.open_nursery() as nursery:
            for item in self._exchange.promotable():
                async with self._limiter:
                    pass
                nursery.start_soon(self._promote, item)

    async def _relieve(self, tier: Tier) -> None:
        while (move := self._exchange.demotion(tier, tier.low_water)) is not None:
            if not await self._do(move):
                return

    async def _promote(self, item: Residency) -> None:
        async with self._limiter:
            while (move := self._exchange.promotion(item)) is not None:
                if not await self._do(move):
                    return

    async def _do(self, move: Move) -> bool:
        """Whether *move* was made, so that planning can go on."""
        if self._config.dry_run:
            log.info("would move %s", move)
            return False
        if not self._suspension.permits(trio.current_time()):
            return False
        try:
            done = await self._exchange.carry_out(move, self._pacer(move))
        except OSError as error:
            self.failures += 1
            self._ended(failed=True)
            log.info("could not move %s: %s", move, error.strerror)
            return False
        self._ended(failed=False)
        return done

    def _ended(self, *, failed: bool) -> None:
        before = self.suspended
        self._suspension.ended(trio.current_time(), failed=failed)
        if self.suspended and not before:
            log.warning("moves between tiers are suspended: most of them fail")
        elif before and not self.suspended:
            log.info("moves between tiers go on")

    # -- pace ------------------------------------------------------------------------------------

    def _pacer(self, move: Move) -> Pace:
        async def pace(nbytes: int, took_s: float) -> None:
            now = trio.current_time()
            if self._config.bandwidth:
                self._free_at = max(now, self._free_at) + nbytes / self._config.bandwidth
            rest_s = _REST * took_s if self._readers_active(move) else 0.0
            await trio.sleep_until(max(self._free_at, now + rest_s))

        return pace

    def _readers_active(self, move: Move) -> bool:
        """Whether somebody read since the last chunk."""
        if self._config.backoff == "never":
            return False
        if self._config.backoff == "same_device":
            tiers = {move.source, *([move.target.tier] if move.target else [])}
            seen = sum(tier.hit_bytes for tier in tiers)
        else:
            seen = self._activity()
        active, self._seen = seen != self._seen, seen
        return active
