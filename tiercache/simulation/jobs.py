"""One policy with one capacity over one trace, and the two bounds no policy passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol, runtime_checkable

from tiercache.policy import EvictionPolicy, Policy
from tiercache.simulation.replay import Access, Counts, Replay

#: Uses between two calls of `tick`.
_PART: Final = 8192


@runtime_checkable
class Clairvoyant(Protocol):
    """A policy that wants to know the future, as Belady's does."""

    def foresee(self, future: Iterable[int]) -> None:
        """*future*: the items of all uses, in order."""


class Unbounded(Policy):
    """Keeps everything: the most any cache can hit, for it misses first uses only."""

    __slots__ = ()

    def __init__(self, capacity: int) -> None:
        del capacity

    def admit(self, item: int, size: int, group: int, now: float) -> None:
        """It stays."""

    def access(self, item: int, now: float) -> None:
        """It stays."""

    def victim(self, now: float) -> int | None:
        """Nobody."""
        return None

    def remove(self, item: int, *, evicted: bool = False) -> None:
        """Nothing is known of it."""


@dataclass(frozen=True, slots=True)
class Job:
    """*make* makes the policy called *policy* for *capacity* bytes; pickled to get to a process."""

    policy: str
    capacity: int
    make: Callable[[int], EvictionPolicy]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What *counts* a job ended with, in how many seconds."""

    policy: str
    capacity: int
    counts: Counts
    seconds: float


@dataclass(frozen=True, slots=True)
class Source:
    """The uses all jobs replay: *trace*, the first *skip* of which only warm the cache up.

    *equal_sizes*: every object weighs 1, and capacities count objects.
    """

    trace: Iterable[Access]
    skip: int = 0
    equal_sizes: bool = False

    def accesses(self) -> Iterator[Access]:
        """The uses, each of at least one byte."""
        if self.equal_sizes:
            return (Access(time, item, 1, group) for time, item, _, group in self.trace)
        return (access if access.size else access._replace(size=1) for access in self.trace)


def run(job: Job, source: Source, tick: Callable[[int], object]) -> Outcome:
    """Replay; *tick* is told now and then of so many more uses, and may raise to end it."""
    started = time.perf_counter()
    policy = job.make(job.capacity)
    if isinstance(policy, Clairvoyant):
        policy.foresee(access.item for access in source.accesses())
    replay = Replay(policy, job.capacity)
    accesses = source.accesses()
    _use(replay, islice(accesses, source.skip), tick)
    replay.counts = Counts()
    _use(replay, accesses, tick)
    return Outcome(job.policy, job.capacity, replay.counts, time.perf_counter() - started)


def _use(replay: Replay, accesses: Iterator[Access], tick: Callable[[int], object]) -> None:
    while part := list(islice(accesses, _PART)):
        for access in part:
            replay.use(access)
        tick(len(part))
