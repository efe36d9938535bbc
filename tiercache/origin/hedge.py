"""A second GET for the few that are much slower than the rest ("hedged requests").

Some GETs meet a server or a connection that is stuck; asking once more usually answers at once
(Dean and Barroso, "The Tail at Scale", 2013). A GET whose first byte takes longer than nearly all
before gets a rival. Whoever has bytes first wins and the other is cancelled: the rival receives
into memory of its own, and its bytes are copied only after the first request has ended, so there
is one writer at any time. A budget ties hedges to requests: when the whole store becomes slow, the
delay follows and few GETs are sent twice meanwhile.

`run` sends the rivals; without it everything just passes through.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from mmap import mmap

import trio

from tiercache.config import TransferConfig
from tiercache.errors import OriginUnavailableError, TierCacheError
from tiercache.origin.protocol import Origin, Patience
from tiercache.origin.wrapper import OriginWrapper
from tiercache.types import Progress

#: First-byte times that the delay is taken from.
_SAMPLES = 512

#: No hedging on less evidence than this.
_SAMPLES_MIN = 64

#: The delay is computed anew after so many samples.
_REFRESH = 32

#: Slower than this part of the samples, with some slack, is slow.
_QUANTILE = 0.99
_SLACK = 1.25

#: Hedges that may be saved up while all goes well; also how many run at a time.
_BURST = 4


_FIRST, _RIVAL = 1, 2


class _LostError(Exception):
    """Thrown into the transfer that came second. Never leaves this module."""


class _Race:
    """One GET, and perhaps its rival."""

    def __init__(
        self, key: bytes, etag: str, start: int, into: memoryview, progress: Progress | None
    ) -> None:
        self.key = key
        self.etag = etag
        self.start = start
        self.into = into
        self.progress = progress
        self.clock = trio.lowlevel.current_clock()
        self.started_at = trio.current_time()
        self.first_byte_at: float | None = None
        self.scope = trio.CancelScope()
        self.rival: _Rival | None = None
        self._claims: list[int] = []

    def claim(self, who: int) -> bool:
        """*who* has bytes: whether that is before the other. On any thread."""
        # Appending is atomic, so of two threads that append exactly one finds itself first.
        self._claims.append(who)
        return self._claims[0] == who

    @property
    def won_by_rival(self) -> bool:
        """Whether the rival has bytes and the first request had none before."""
        return self._claims[:1] == [_RIVAL]

    def advance(self, filled: int) -> None:
        """Progress of the first request; on any thread."""
        if self.first_byte_at is None:
            if not self.claim(_FIRST):
                raise _LostError
            self.first_byte_at = self.clock.current_time()
        if self.progress is not None:
            self.progress(filled)


class _Rival:
    """The second request of a race: runs in a task of its own, into memory of its own."""

    def __init__(self, race: _Race) -> None:
        self.race = race
        self.scope = trio.CancelScope()
        # Not zeroed, unlike a bytearray: most rivals of large bodies never receive a byte.
        self.scratch = memoryview(mmap(-1, len(race.into)))
        self.began = trio.current_time()
        self.latency_s = 0.0
        self.filled = 0
        self.error: TierCacheError | None = None
        self.over = False
        self.changed = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def advance(self, filled: int) -> None:
        """Progress of the rival; on any thread."""
        if not self.filled:
            self.latency_s = self.race.clock.current_time() - self.began
            if not self.race.claim(_RIVAL):
                raise _LostError
        self.filled = filled
        self._token.run_sync_soon(self.wake)

    def wake(self) -> None:
        """There is news; on the loop."""
        if self.race.won_by_rival:
            self.race.scope.cancel()
        self.changed.set()
        self.changed = trio.Event()

    async def hand_over(self) -> None:
        """Move what comes to the caller's buffer, which nobody else writes to any more."""
        race, done = self.race, 0
        while done < len(self.scratch):
            changed, over, filled = self.changed, self.over, self.filled
            if filled > done:
                race.into[done:filled] = self.scratch[done:filled]
                done = filled
                if race.progress is not None:
                    race.progress(done)
            elif over:
                raise self.error or OriginUnavailableError("the second request ended early")
            else:
                await changed.wait()


class HedgingOrigin(OriginWrapper):
    """Sends *inner* a second GET where the first is slow. `hedges` and `hedges_won` only grow."""

    def __init__(self, inner: Origin, config: TransferConfig) -> None:
        super().__init__(inner)
        self._per_get = config.hedge_budget
        self._delay_min_s = config.hedge_delay_min_s
        self._tokens = 1.0
        self._delay_s: float | None = None
        self._latencies: deque[float] = deque(maxlen=_SAMPLES)
        self._fresh = 0
        self._races: OrderedDict[_Race, None] = OrderedDict()
        self._waiting = trio.Event()
        self._running = False
        self._rivals = 0
        self._on_hedge: Callable[[int], None] = lambda _size: None
        self.hedges = 0
        self.hedges_won = 0

    def reconfigure(self, config: TransferConfig) -> None:
        """See `Origin.reconfigure`."""
        super().reconfigure(config)
        self._per_get = config.hedge_budget
        self._delay_min_s = config.hedge_delay_min_s
        self._set_delay()

    def on_hedge(self, hedge: Callable[[int], None]) -> None:
        """Install who is told of every extra request and its size."""
        self._on_hedge = hedge

    @property
    def delay_s(self) -> float | None:
        """After which time a GET counts as slow; None while too little is known."""
        return self._delay_s

    async def get_range(
        self,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress | None = None,
    ) -> None:
        """See `Origin.get_range`."""
        if not self._running or not self._per_get or not into:
            await self.inner.get_range(key, etag, start, into, progress)
            return
        self.asked()
        race = _Race(key, etag, start, into, progress)
        self._races[race] = None
        if self._delay_s is not None:
            self._waiting.set()
        try:
            await self._first(race)
        finally:
            self._races.pop(race, None)
            if race.rival is not None:
                race.rival.scope.cancel()
            self._learn(race)
            race.rival = None  # no cycle, or its memory would wait for a garbage collection

    async def _first(self, race: _Race) -> None:
        """Run the first request to its end, or to the end of the rival that beats it."""
        error: Exception | None = None
        with race.scope:
            try:
                await self.inner.get_range(race.key, race.etag, race.start, race.into, race.advance)
            except (_LostError, OriginUnavailableError) as failure:
                error = failure
            else:
                return
        if race.rival is not None and race.won_by_rival:
            self.won()
            await race.rival.hand_over()
        elif error is not None:
            raise error

    def patience(self, size: int) -> Patience | None:
        """What a GET of *size* bytes that is made elsewhere takes for slow; None: nothing.

        Giving it up takes a hedge from the budget, as the GET is then sent again.
        """
        if not self._running or not self._per_get or self._delay_s is None:
            return None
        return Patience(self._delay_s, partial(self._spend, size))

    def asked(self) -> None:
        """A GET was sent, which brings its part of a hedge."""
        self._tokens = min(float(_BURST), self._tokens + self._per_get)

    def won(self) -> None:
        """A hedge was the faster one."""
        self.hedges_won += 1

    def _spend(self, size: int) -> bool:
        """Take a hedge of *size* bytes from the budget; False when there is none."""
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        self.hedges += 1
        self._on_hedge(size)
        return True

    async def run(self) -> None:
        """Send a rival to every race that takes too long, until cancelled."""
        self._running = True
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._next_slow()
                    self._hedge_oldest(nursery)
        finally:
            self._running = False

    async def _next_slow(self) -> None:
        """Until the oldest race is slow. Races begin in order, so it is the next to be."""
        while True:
            if not self._races or self._delay_s is None:
                self._waiting = trio.Event()
                await self._waiting.wait()
                continue
            oldest = next(iter(self._races))
            left = oldest.started_at + self._delay_s - trio.current_time()
            if left <= 0:
                return
            await trio.sleep(left)

    def _hedge_oldest(self, nursery: trio.Nursery) -> None:
        race, _ = self._races.popitem(last=False)
        if race.first_byte_at is not None or self._rivals >= _BURST:
            return
        if not self._spend(len(race.into)):
            return
        race.rival = _Rival(race)
        nursery.start_soon(self._ask_again, race.rival)

    async def _ask_again(self, rival: _Rival) -> None:
        race = rival.race
        self._rivals += 1
        try:
            with rival.scope:
                await self.inner.get_range(
                    race.key, race.etag, race.start, rival.scratch, rival.advance
                )
        except _LostError:
            pass
        except TierCacheError as error:
            rival.error = error
        finally:
            self._rivals -= 1
            rival.over = True
            rival.wake()

    def _learn(self, race: _Race) -> None:
        """Note how long the first byte took; of a lost race the winner's time alone is known."""
        if race.rival is not None and race.won_by_rival:
            latency_s = race.rival.latency_s
        elif race.first_byte_at is not None:
            latency_s = race.first_byte_at - race.started_at
        else:
            return
        self.learn(latency_s)

    def learn(self, latency_s: float) -> None:
        """Note how long a GET took to begin, or a small one to end."""
        self._latencies.append(latency_s)
        self._fresh += 1
        if self._fresh >= _REFRESH:
            self._set_delay()

    def _set_delay(self) -> None:
        """Say anew what is slow, if enough is known."""
        if len(self._latencies) >= _SAMPLES_MIN:
            self._fresh = 0
            ordered = sorted(self._latencies)
            slow = ordered[int(_QUANTILE * (len(ordered) - 1))]
            self._delay_s = max(self._delay_min_s, _SLACK * slow)
            self._waiting.set()
