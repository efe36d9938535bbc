"""A second GET for the few that are much slower than the rest ("hedged requests").

Some GETs meet a server or a connection that is stuck; asking once more usually answers at once
(Dean and Barroso, "The Tail at Scale", 2013). A GET whose first byte takes longer than nearly all
before gets a rival, which asks for its first block only, into memory of its own. Whoever has bytes
first wins and the other is cancelled; the rival's are copied only after the first request has
ended, so there is one writer at any time, and what follows them is asked for anew. A budget ties
hedges to requests: when the whole store becomes slow, the delay follows and few GETs are sent twice
meanwhile.

`run` sends the rivals; without it everything just passes through.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import trio

from tiercache.config import TransferConfig
from tiercache.errors import OriginUnavailableError, TierCacheError
from tiercache.origin.budget import Budget
from tiercache.origin.latencies import Latencies
from tiercache.origin.protocol import Origin, Patience, RangedGet
from tiercache.origin.wrapper import OriginWrapper
from tiercache.types import BLOCK_SIZE, Progress

log = logging.getLogger(__name__)

#: Hedges that may be saved up while all goes well; also how many run at a time.
_BURST = 4

_FIRST, _RIVAL = 1, 2


class _LostError(Exception):
    """Thrown into the first request when it came second. Never leaves this module."""


class _Race:
    """One GET, and perhaps its rival."""

    def __init__(self, get: RangedGet) -> None:
        self.get = get
        self.clock = trio.lowlevel.current_clock()
        self.started_at = trio.current_time()
        self.latency_s: float | None = None  # of the winner's first bytes
        self.first_won = False
        self.first = trio.CancelScope()
        self.rival = trio.CancelScope()
        self.head = memoryview(b"")  # what the rival won with
        self._claims: list[int] = []

    def claim(self, who: int) -> bool:
        """*who* has bytes: whether that is before the other. On any thread."""
        # Appending is atomic, so of two threads that append exactly one finds itself first.
        self._claims.append(who)
        return self._claims[0] == who

    def advance(self, filled: int) -> None:
        """Progress of the first request; on any thread."""
        if not self.first_won:
            if not self.claim(_FIRST):
                raise _LostError
            self.first_won = True
            self.latency_s = self.clock.current_time() - self.started_at
        if self.get.progress is not None:
            self.get.progress(filled)


class HedgingOrigin(OriginWrapper):
    """Sends *inner* a second GET where the first is slow. `hedges` and `hedges_won` only grow."""

    def __init__(self, inner: Origin, config: TransferConfig) -> None:
        super().__init__(inner)
        self._budget = Budget(config.hedge_budget, _BURST, saved=1.0)
        self._latencies = Latencies(config.hedge_delay_min_s)
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
        self._budget.resize(config.hedge_budget, _BURST)
        if self._latencies.reconfigure(config.hedge_delay_min_s):
            self._waiting.set()

    def on_hedge(self, hedge: Callable[[int], None]) -> None:
        """Install who is told of every extra request and its size."""
        self._on_hedge = hedge

    @property
    def delay_s(self) -> float | None:
        """After which time a GET counts as slow; None while too little is known."""
        return self._latencies.slow_s

    async def get_range(
        self,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress | None = None,
    ) -> None:
        """See `Origin.get_range`."""
        if not self._running or not self._budget.per_request or not into:
            await self.inner.get_range(key, etag, start, into, progress)
            return
        self.asked()
        race = _Race(RangedGet(key, etag, start, into, progress))
        self._races[race] = None
        if self.delay_s is not None:
            self._waiting.set()
        try:
            await self._first(race)
            if race.head:
                self.won()
                await self._take_over(race)
        finally:
            self._races.pop(race, None)
            race.rival.cancel()
            if race.latency_s is not None:
                self.learn(race.latency_s)

    async def _first(self, race: _Race) -> None:
        """Run the first request to its end, or until its rival has won."""
        with race.first:
            try:
                await self.inner.get_range(*race.get._replace(progress=race.advance))
            except (_LostError, OriginUnavailableError):
                if not race.head:
                    raise

    async def _take_over(self, race: _Race) -> None:
        """Go on behind what the rival won with; nobody else writes to the buffer any more."""
        get, done = race.get, len(race.head)
        get.into[:done] = race.head
        if get.progress is not None:
            get.progress(done)
        if done < len(get.into):
            await self.inner.get_range(*get.behind(done))

    def patience(self, size: int) -> Patience | None:
        """What a GET of *size* bytes that is made elsewhere takes for slow; None: nothing.

        Giving it up takes a hedge from the budget, as the GET is then sent again.
        """
        slow_s = self._latencies.slow_s
        if not self._running or not self._budget.per_request or slow_s is None:
            return None
        return Patience(slow_s, partial(self._spend, size))

    def asked(self) -> None:
        """A GET was sent, which brings its part of a hedge."""
        self._budget.deposit()

    def won(self) -> None:
        """A hedge was the faster one."""
        self.hedges_won += 1

    def _spend(self, size: int) -> bool:
        """Take a hedge of *size* bytes from the budget; False when there is none."""
        if not self._budget.withdraw():
            return False
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
            if not self._races or self.delay_s is None:
                self._waiting = trio.Event()
                await self._waiting.wait()
                continue
            oldest = next(iter(self._races))
            left = oldest.started_at + self.delay_s - trio.current_time()
            if left <= 0:
                return
            await trio.sleep(left)

    def _hedge_oldest(self, nursery: trio.Nursery) -> None:
        race, _ = self._races.popitem(last=False)
        size = min(len(race.get.into), BLOCK_SIZE)
        if race.latency_s is None and self._rivals < _BURST and self._spend(size):
            nursery.start_soon(self._ask_again, race, size)

    async def _ask_again(self, race: _Race, size: int) -> None:
        head, began = memoryview(bytearray(size)), trio.current_time()
        self._rivals += 1
        try:
            with race.rival:
                await self.inner.get_range(*race.get._replace(into=head, progress=None))
                if race.claim(_RIVAL):
                    race.head, race.latency_s = head, trio.current_time() - began
                    race.first.cancel()
        except TierCacheError as error:
            log.debug("the second request for %r failed: %s", race.get.key, error)
        finally:
            self._rivals -= 1

    def learn(self, latency_s: float) -> None:
        """Note how long a GET took to begin, or a small one to end."""
        if self._latencies.learn(latency_s):
            self._waiting.set()
