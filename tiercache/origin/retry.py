"""The one place that asks an origin again.

A failed call is repeated while three bounds allow it: attempts in a row, a deadline, and a budget
that ties retries to requests, so that an origin in trouble is not buried under our retries.
Between attempts a random part of a doubling interval passes ("full jitter", which spreads a herd
best); what the origin asks for in Retry-After comes on top, bounded by an attempt's fair share of
the deadline. Only `OriginUnavailableError` is worth a retry: 404, 403 and a changed object stay.

A ranged read goes on behind its last good byte. Attempts and deadline start anew whenever it has
gained 64 KiB: a slow or shaky link that moves data is never cut off, one that does not always is.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

import trio

from tiercache.config import TransferConfig
from tiercache.errors import OriginUnavailableError
from tiercache.origin.budget import Budget
from tiercache.origin.protocol import LIST_PAGE_MAX, FirstAttempt, Origin, RangedGet
from tiercache.origin.wrapper import OriginWrapper
from tiercache.types import KIB, ListPage, ObjectInfo, Progress

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Gaining this much counts as the link being alive.
GAIN_MIN = 64 * KIB

#: Told of every attempt that failed in a way that is worth another.
Failed = Callable[[OriginUnavailableError], None]

#: One warning in this time; an outage fails thousands of reads alike.
WARN_INTERVAL_S = 10.0


class RetryingOrigin(OriginWrapper):
    """Retries what *inner* could not do now, within the bounds of *config*.

    `requests`, `retries` and `failures` (calls given up) only grow. An error leaves here unchanged
    when it is not worth a retry or no retry is left.
    """

    def __init__(self, inner: Origin, config: TransferConfig, random: Random | None = None) -> None:
        super().__init__(inner)
        self._config = config
        self._random = random or Random()
        # Full at first: with enough for every connection to use all its attempts once.
        self._budget = Budget(config.retry_budget, config.attempts * config.connections)
        self._warnings = _RateLimit(WARN_INTERVAL_S)
        self._on_failed: Failed = lambda _error: None
        self.requests = 0
        self.retries = 0
        self.failures = 0

    def reconfigure(self, config: TransferConfig) -> None:
        """See `Origin.reconfigure`."""
        super().reconfigure(config)
        self._config = config
        self._budget.resize(config.retry_budget, config.attempts * config.connections)

    def on_failed(self, failed: Failed) -> None:
        """Install who is told of failed attempts."""
        self._on_failed = failed

    async def check(self) -> None:
        """See `Origin.check`."""
        await self._retry("check", b"", self.inner.check)

    async def list(
        self,
        prefix: bytes,
        token: str | None = None,
        *,
        delimiter: bool = True,
        limit: int = LIST_PAGE_MAX,
    ) -> ListPage:
        """See `Origin.list`."""
        call = functools.partial(self.inner.list, prefix, token, delimiter=delimiter, limit=limit)
        return await self._retry("list", prefix, call)

    async def head(self, key: bytes) -> ObjectInfo:
        """See `Origin.head`."""
        return await self._retry("head", key, functools.partial(self.inner.head, key))

    async def get_range(
        self,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress | None = None,
    ) -> None:
        """See `Origin.get_range`. *progress* never falls back, whatever is repeated."""
        await self.go_on(RangedGet(key, etag, start, into, progress))

    async def go_on(self, get: RangedGet, first: FirstAttempt | None = None) -> None:
        """`get_range`, after a *first* attempt perhaps; its time is part of the deadline."""
        so_far = _Filled(get.progress, first.filled if first else 0)
        heard = get._replace(progress=so_far.advance)

        async def rest() -> None:
            await self.inner.get_range(*heard.behind(so_far.count))

        await self._retry("get_range", get.key, rest, so_far, first)

    def requested(self) -> None:
        """Count a request, made here or elsewhere: it brings its part of a retry."""
        self.requests += 1
        self._budget.deposit()

    async def _retry(
        self,
        operation: str,
        key: bytes,
        call: Callable[[], Awaitable[T]],
        filled: _Filled | None = None,
        first: FirstAttempt | None = None,
    ) -> T:
        """The result of *call*, tried until it succeeds or a bound is reached."""
        self.requested()
        started = first.began if first else trio.current_time()
        course = _Course(self._config, operation, key, filled or _Filled(None, 0), started)
        if first is not None and first.failed is not None:
            await trio.sleep(self._failed(course, first.failed))
        while True:
            try:
                return await _within(course.deadline, call)
            except OriginUnavailableError as error:
                wait_s = self._failed(course, error)
            await trio.sleep(wait_s)

    def _failed(self, course: _Course, error: OriginUnavailableError) -> float:
        """How long to wait before the next attempt; raises *error* if there is to be none."""
        self._on_failed(error)
        now = trio.current_time()
        course.failed(now)
        wait_s = self._wait_s(course, error.retry_after_s)
        if course.is_over(now + wait_s) or not self._budget.withdraw():
            self._give_up(course, error)
            raise error
        self.retries += 1
        logger.debug(
            "%s of %r failed, again in %.2f s: %s", course.operation, course.key, wait_s, error
        )
        return wait_s

    def _wait_s(self, course: _Course, retry_after_s: float | None) -> float:
        config = self._config
        ceiling = min(config.backoff_max_s, config.backoff_base_s * 2.0 ** (course.failures - 1))
        asked = min(max(retry_after_s or 0.0, 0.0), config.deadline_s / config.attempts)
        return asked + self._random.uniform(0.0, ceiling)

    def _give_up(self, course: _Course, error: OriginUnavailableError) -> None:
        self.failures += 1
        suppressed = self._warnings.admit(trio.current_time())
        if suppressed is not None:
            logger.warning(
                "%s of %r given up after %d attempts: %s (%d like warnings not shown)",
                course.operation,
                course.key,
                course.attempts,
                error,
                suppressed,
            )


async def _within(deadline: float, call: Callable[[], Awaitable[T]]) -> T:
    """The result of *call*; `OriginUnavailableError` when it takes longer than *deadline*."""
    with trio.CancelScope(deadline=deadline):
        return await call()
    raise OriginUnavailableError("no answer within the deadline")


@dataclass(slots=True)
class _Course:
    """How one call has gone so far."""

    config: TransferConfig
    operation: str
    key: bytes
    filled: _Filled
    started: float
    attempts: int = 0
    failures: int = 0  # in a row, without a gain
    gained: int = 0

    @property
    def deadline(self) -> float:
        """When even a running attempt is ended."""
        return self.started + self.config.deadline_s

    def failed(self, now: float) -> None:
        """Count a failure; a gain since the last one starts the bounds anew."""
        self.attempts += 1
        self.failures += 1
        if self.filled.count - self.gained >= GAIN_MIN:
            self.gained, self.failures, self.started = self.filled.count, 1, now

    def is_over(self, next_start: float) -> bool:
        """Whether no attempt may start at *next_start*."""
        spent = self.failures >= self.config.attempts or next_start >= self.deadline
        return spent or self.filled.refused


class _Filled:
    """How far a buffer is filled over several attempts. `advance` may run on a pool thread."""

    def __init__(self, progress: Progress | None, count: int) -> None:
        self.count = count
        #: The caller's own callback failed: that is no fault of the origin.
        self.refused = False
        self._progress = progress

    def advance(self, filled: int) -> None:
        """Note *filled* bytes of all."""
        if filled <= self.count:
            return
        self.count = filled
        if self._progress is not None:
            try:
                self._progress(self.count)
            except BaseException:
                self.refused = True
                raise


class _RateLimit:
    """Admits one event per interval and counts the others."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next = float("-inf")
        self._suppressed = 0

    def admit(self, now: float) -> int | None:
        """The number of events refused since the last admitted one, or None: refused."""
        if now < self._next:
            self._suppressed += 1
            return None
        suppressed, self._suppressed = self._suppressed, 0
        self._next = now + self._interval_s
        return suppressed
