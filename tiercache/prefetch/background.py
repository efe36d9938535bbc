"""Fills free space with the rest of the dataset that readers are streaming through.

One dataset at a time, by the names in it, behind all that anybody waits for or that is fetched
ahead: no request of it is sent while another one queues. It takes free space only, less what the
tiers keep free by evictions, so nobody leaves because of it. It ends when all of the dataset is
local, when no tier has room, when the dataset is no longer used, or when the origin cannot answer.
"""

from __future__ import annotations

import enum
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

import trio

from tiercache.config import PrefetchConfig
from tiercache.errors import BypassedError, OriginUnavailableError, TierCacheError
from tiercache.heat import group_name
from tiercache.prefetch.activity import IDLE_S, Activity
from tiercache.prefetch.warm import Piece, Sources
from tiercache.prefetch.warm_survey import cuts
from tiercache.transfer.fetch import Reason
from tiercache.types import BLOCK_SIZE, Inode

#: Requests at a time: a reader that comes has to share the link with no more.
_WORKERS: Final = 4

#: Pieces looked at without giving way to readers.
_SLICE: Final = 64


class Outcome(enum.StrEnum):
    """Why a fill ended."""

    DONE = "nothing is left to fetch"
    FULL = "no tier has room"
    IDLE = "no longer read"
    UNAVAILABLE = "the origin does not answer"
    OFF = "switched off"


class BackgroundFill:
    """Told of opens and reads by the prefetcher; `run` fetches. On the loop.

    *depth*: directories of this depth are datasets, as in `[heat]`.
    """

    def __init__(
        self,
        sources: Sources,
        config: PrefetchConfig,
        depth: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._depth = depth
        self._now = now
        self._activity = Activity()
        self._due = trio.Event()
        self._dataset: bytes | None = None
        self._last: tuple[bytes, Outcome] | None = None
        self._scope = trio.CancelScope()
        self._full = False
        self._failed = False
        self.enabled = config.background_fill

    def reconfigure(self, config: PrefetchConfig) -> None:
        """Be on or off from now on; what is on its way is taken back."""
        self.enabled = config.background_fill
        if not self.enabled:
            self._activity = Activity()
            self._scope.cancel()

    def used(self, obj: Inode, *, opens: int = 0, nbytes: int = 0) -> None:
        """*obj* is in use: *opens* of it, and *nbytes* read, while it was not all local."""
        name = group_name(obj.key, self._depth)
        if self._activity.used(name, self._now(), opens=opens, nbytes=nbytes):
            self._due.set()
        if name == self._dataset:
            self._scope.deadline = trio.current_time() + IDLE_S

    def status(self) -> dict[str, Any]:
        """For `tiercache status`: what is being filled, and how the last one ended."""
        last = None
        if self._last is not None:
            last = {"dataset": _text(self._last[0]), "ended": str(self._last[1])}
        return {
            "enabled": self.enabled,
            "dataset": None if self._dataset is None else _text(self._dataset),
            "fetched_bytes": self._sources.fetcher.fetched[Reason.FILL],
            "last": last,
        }

    async def run(self) -> None:
        """Fill what is due, until cancelled."""
        while True:
            name = self._activity.due(self._now()) if self.enabled else None
            if name is None:
                await self._due.wait()
                self._due = trio.Event()
                continue
            self._dataset = name
            outcome = await self._fill(name)
            self._dataset, self._last = None, (name, outcome)
            self._activity.over(name, self._now())

    async def _fill(self, name: bytes) -> Outcome:
        self._failed = False
        self._full = self._room <= 0
        if self._full:
            return Outcome.FULL
        with trio.CancelScope(deadline=trio.current_time() + IDLE_S) as self._scope:
            try:
                await self._fetch(name)
            except* TierCacheError:  # a directory cannot be listed
                self._failed = True
        if self._scope.cancelled_caught:
            return Outcome.IDLE if self.enabled else Outcome.OFF
        if self._failed:
            return Outcome.UNAVAILABLE
        return Outcome.FULL if self._full else Outcome.DONE

    async def _fetch(self, name: bytes) -> None:
        send, receive = trio.open_memory_channel[Piece](0)
        async with trio.open_nursery() as nursery:
            for _ in range(_WORKERS):
                nursery.start_soon(self._work, receive)
            async with send, aclosing(self._missing(name)) as pieces:
                async for piece in pieces:
                    if self._full or self._failed or piece.nbytes > self._room:
                        self._full = not self._failed
                        break
                    await send.send(piece)

    @property
    def _room(self) -> int:
        return self._sources.store.warming.spare()

    async def _missing(self, name: bytes) -> AsyncGenerator[Piece, None]:
        """What is not local of *name*, as the requests that bring it."""
        part = self._sources.part // BLOCK_SIZE
        # A directory of less than the depth is the dataset of the files right in it.
        deep = len(name.split(b"/") if name else ()) == self._depth
        files = self._sources.files.files(name, literal=True, deep=deep)
        seen = 0
        async with aclosing(files):
            async for obj in files:
                seen += 1
                if seen % _SLICE == 0:
                    await trio.lowlevel.checkpoint()
                if obj.archived:
                    continue
                for run in self._sources.store.missing(obj, 0, obj.blocks):
                    for cut in cuts(*run, part):
                        yield Piece(obj, *cut)

    async def _work(self, pieces: trio.MemoryReceiveChannel[Piece]) -> None:
        async for piece in pieces:
            if not (self._full or self._failed):
                await self._bring(piece)

    async def _bring(self, piece: Piece) -> None:
        try:
            await self._sources.fetcher.warm(*piece, Reason.FILL)
        except BypassedError:
            # No room, or a rule or the policy wants nothing of this file: others may enter.
            self._full |= piece.obj.size > self._room
        except OriginUnavailableError:
            self._failed = True
        except TierCacheError:
            pass  # one file has changed or may not be read


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape") or "."
