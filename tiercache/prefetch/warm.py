"""One fill of the tiers: first what it takes, then the blocks, then whether all of it is there.

Each pass walks the names anew, so memory does not grow with their number; a block that is resident
costs nothing, which is what makes a fill that was interrupted resume.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import trio

from tiercache.errors import BypassedError, OriginUnavailableError, TierCacheError
from tiercache.prefetch import planfile
from tiercache.prefetch.warm_survey import Survey, cuts, spread
from tiercache.tier.store import TierStore
from tiercache.transfer.fetcher import Fetcher
from tiercache.transfer.rates import TokenBucket
from tiercache.types import BLOCK_SIZE, Inode

#: So many pieces in a row that the origin does not give: it is down, and the fill ends.
_FAILURES_MAX: Final = 16

#: Pieces looked at without giving way to readers.
_SLICE: Final = 64


class Files(Protocol):
    """Finds files."""

    def files(
        self, pattern: bytes, *, literal: bool = False, deep: bool = True
    ) -> AsyncGenerator[Inode, None]:
        """The files at or below *pattern*, if any; not *deep*: of no directory below it.

        Raises what the origin raised.
        """


@dataclass(frozen=True, slots=True)
class Wanted:
    """What should be filled: *paths* (files, directories, patterns), or what *manifest* lists.

    *rate*: bytes per second, 0: no limit. *tier*: the only one to fill, None: the hottest that
    takes an object. *check*: fetch nothing, only say what is missing.
    """

    paths: tuple[bytes, ...] = ()
    manifest: Path | None = None
    rate: int = 0
    tier: str | None = None
    check: bool = False


class Piece(NamedTuple):
    """Blocks [first, end) of a file."""

    obj: Inode
    first: int
    end: int

    @property
    def nbytes(self) -> int:
        """Its size."""
        return min(self.end * BLOCK_SIZE, self.obj.size) - self.first * BLOCK_SIZE


#: A file, None where a name means none, and the bytes of it; no end: to its end.
_Span = tuple[Inode | None, int, int | None]


class State(enum.StrEnum):
    """How far a fill is."""

    SURVEY = "surveying"
    FETCH = "fetching"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Progress:
    """Bytes of what was missing: fetched, refused by the tiers, not given by the origin."""

    fetched_bytes: int = 0
    bypassed_bytes: int = 0
    failed_bytes: int = 0


@dataclass(slots=True)
class Sources:
    """The parts of a mount that a fill needs. *part*: largest GET, *entries_max*: of a manifest."""

    files: Files
    store: TierStore
    fetcher: Fetcher
    mountpoint: Path
    part: int
    workers: int
    entries_max: int


@dataclass(slots=True, eq=False)
class Fill:
    """Runs once. Its counts may be read at any time.

    `where` and `excess_bytes` say, once the survey is over, which tiers have room for how much.
    """

    sources: Sources
    wanted: Wanted
    state: State = State.SURVEY
    survey: Survey = field(default_factory=Survey)
    where: dict[str, int] = field(default_factory=dict)
    excess_bytes: int = 0
    left: Survey | None = None
    progress: Progress = field(default_factory=Progress)
    error: str | None = None
    _failures: int = 0

    async def run(self) -> None:
        """Until it is over; raises only Cancelled."""
        try:
            await self._count(self.survey)
            self._place()
            if not self.wanted.check:
                self.state = State.FETCH
                await self._fetch()
            self.left = self.survey if self.wanted.check else await self._count(Survey())
            self.state = State.FAILED if self._failures >= _FAILURES_MAX else State.DONE
        except* TierCacheError as group:
            self.error = str(_first(group))
            self.state = State.FAILED
        finally:
            if self.state in (State.SURVEY, State.FETCH):
                self.state = State.CANCELLED

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for is resident, known once it is over."""
        return self.state is State.DONE and self.left is not None and self.left.complete

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "state": str(self.state),
            "complete": self.complete,
            "survey": self.survey.as_dict(),
            "where": self.where,
            "excess_bytes": self.excess_bytes,
            "left": None if self.left is None else self.left.as_dict(),
            "fetched_bytes": self.progress.fetched_bytes,
            "bypassed_bytes": self.progress.bypassed_bytes,
            "failed_bytes": self.progress.failed_bytes,
            "error": self.error,
        }

    # -- what is wanted --------------------------------------------------------------------------

    async def _count(self, survey: Survey) -> Survey:
        async with aclosing(self._pieces(survey)) as pieces:
            async for piece in pieces:
                missing = self.sources.store.missing(*piece)
                survey.add(piece.nbytes, missing, piece.obj.size, self._part)
        return survey

    @property
    def _part(self) -> int:
        """Blocks per request: no more than the rate allows in a second, so that it is even."""
        part = self.sources.part
        if self.wanted.rate:
            part = min(part, max(self.wanted.rate, BLOCK_SIZE))
        return part // BLOCK_SIZE

    def _place(self) -> None:
        """Say where what is missing finds room, before any of it comes."""
        tier = self.wanted.tier
        free = [found for found in self.sources.store.warming.free() if tier in (None, found[0])]
        self.where, self.excess_bytes = spread(self.survey.missing_bytes, free)

    async def _pieces(self, survey: Survey) -> AsyncGenerator[Piece, None]:
        """Everything that is wanted; what cannot be had is counted in *survey*."""
        seen = 0
        async with aclosing(self._spans()) as spans:
            async for obj, start, stop in spans:
                seen += 1
                if seen % _SLICE == 0:
                    await trio.lowlevel.checkpoint()
                if obj is None or start >= max(obj.size, 1):
                    survey.unknown += 1
                elif obj.archived:
                    survey.archived += 1
                else:
                    end = obj.size if stop is None else min(stop, obj.size)
                    yield Piece(obj, start // BLOCK_SIZE, -(-end // BLOCK_SIZE))

    async def _spans(self) -> AsyncGenerator[_Span, None]:
        if self.wanted.manifest is None:
            for path in self.wanted.paths:
                async with aclosing(self._named(path, 0, None, literal=False)) as named:
                    async for found in named:
                        yield found
            return
        sources = self.sources
        entries = planfile.read(self.wanted.manifest, sources.mountpoint, sources.entries_max)
        async with aclosing(entries) as items:
            async for path, start, stop in items:
                async with aclosing(self._named(path, start, stop, literal=True)) as named:
                    async for found in named:
                        yield found

    async def _named(
        self, path: bytes, start: int, stop: int | None, *, literal: bool
    ) -> AsyncGenerator[_Span, None]:
        nothing = True
        async with aclosing(self.sources.files.files(path, literal=literal)) as files:
            async for obj in files:
                nothing = False
                yield obj, start, stop
        if nothing:
            yield None, start, stop

    # -- fetching --------------------------------------------------------------------------------

    async def _fetch(self) -> None:
        send, receive = trio.open_memory_channel[Piece](0)
        bucket = TokenBucket(self.wanted.rate)
        async with trio.open_nursery() as nursery:
            for _ in range(self.sources.workers):
                nursery.start_soon(self._work, receive, bucket)
            async with send, aclosing(self._pieces(Survey())) as pieces:
                async for piece in pieces:
                    for first, end in self.sources.store.missing(*piece):
                        for cut in cuts(first, end, self._part):
                            await send.send(Piece(piece.obj, *cut))
                    if self._failures >= _FAILURES_MAX:
                        break

    async def _work(self, pieces: trio.MemoryReceiveChannel[Piece], bucket: TokenBucket) -> None:
        async for piece in pieces:
            if self._failures < _FAILURES_MAX:
                # Others may have taken what came meanwhile.
                while wait_s := bucket.wait_s(trio.current_time(), borrow=False):  # noqa: ASYNC110
                    await trio.sleep(wait_s)
                bucket.take(piece.nbytes, trio.current_time())
                await self._bring(piece)

    async def _bring(self, piece: Piece) -> None:
        obj, first, end = piece
        try:
            with self.sources.store.warming.preferring(obj, self.wanted.tier):
                await self.sources.fetcher.warm(obj, first, end)
        except BypassedError:
            self.progress.bypassed_bytes += piece.nbytes
        except TierCacheError as error:
            self.progress.failed_bytes += piece.nbytes
            self.error = self.error or str(error)
            self._failures += isinstance(error, OriginUnavailableError)
        else:
            self._failures = 0
            if self.sources.store.missing(obj, first, end):
                self.progress.bypassed_bytes += piece.nbytes
            else:
                self.progress.fetched_bytes += piece.nbytes


def _first(group: BaseExceptionGroup[TierCacheError]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
