"""Fetches what a plan says comes next, just in time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

import trio

from tiercache.errors import NotDirectoryError, TierCacheError
from tiercache.prefetch.foresight import Foresight
from tiercache.prefetch.plan import Plan
from tiercache.tier.store import TierStore
from tiercache.transfer.fetch import Reason
from tiercache.transfer.fetcher import Fetcher
from tiercache.types import BLOCK_SIZE, Inode

log = logging.getLogger(__name__)

#: So many requests are of one size before it is looked at again: a large entry is few ranges.
_STEP = 8

#: Smaller requests cost stores much that keep objects in chunks of several MiB.
_PART_MIN = 2 * BLOCK_SIZE


class Paths(Protocol):
    """Finds files by path."""

    async def find(self, path: bytes) -> Inode | None:
        """The file at *path* below the mount, None if there is none; asks the origin if it must."""


class Planner:
    """Runs one plan. The tree tells it of opens and reads; `run` fetches.

    Who evicts is told through *foresight*, which its owner has follow the plan.
    """

    def __init__(
        self,
        plan: Plan,
        parts: tuple[Paths, Fetcher, TierStore],
        foresight: Foresight,
    ) -> None:
        self.plan = plan
        self._foresight = foresight
        self._paths, self._fetcher, self._store = parts
        self._unseen: dict[int, bytes] = {}  # versions that the kernel reads by itself: their keys
        self._moved = trio.Event()
        self._progress = trio.Event()

    def opened(self, obj: Inode) -> None:
        """*obj* was opened."""
        unseen = self._store.is_kept(obj.ino)
        if self.plan.began(obj.key) if unseen else self.plan.opened(obj.key):
            self._on_moved()
        if self._foresight.opened(obj.ino, obj.key) and unseen:
            self._unseen[obj.ino] = obj.key

    def released(self, ino: int) -> None:
        """A handle of version *ino* was closed."""
        if self._foresight.released(ino):
            key = self._unseen.pop(ino, None)
            if key is not None and self.plan.ended(key):
                self._on_moved()

    def read(self, obj: Inode, offset: int, size: int) -> int | None:
        """Bytes [offset, offset + size) of *obj* were read: where the range of the plan ends.

        None if the plan does not foresee it.
        """
        foreseen = self.plan.read(obj.key, offset, offset + size)
        if foreseen is None:
            return None
        if foreseen.moved:
            self._on_moved()
            self._foresight.moved(obj.ino)
        return min(foreseen.until, obj.size)

    def _on_moved(self) -> None:
        self._moved.set()
        self._progress.set()

    async def progress(self) -> None:
        """Until the readers moved on since this was last called, by one caller."""
        await self._progress.wait()
        self._progress = trio.Event()

    async def run(self) -> None:
        """Fetch until all of the plan was read."""
        while not self.plan.done:
            place = self.plan.take()
            if place is None:
                self._moved = trio.Event()
                await self._moved.wait()
            else:
                await self._fetch(place)
                await trio.lowlevel.checkpoint()

    async def _fetch(self, place: int) -> None:
        path, start, end = self.plan.item(place)
        try:
            obj = await self._paths.find(path)
        except NotDirectoryError:
            obj = None
        except TierCacheError as error:
            # Not known to be absent: the reader will ask again, and be told.
            log.debug("%r of the plan cannot be looked up: %s", path, error)
            self.plan.charge(place, 0)
            return
        end = min(obj.size, end or obj.size) if obj is not None else 0
        if obj is None or obj.archived or start >= end:
            self.plan.missing(place)
            return
        ahead = self.plan.ahead_bytes
        self.plan.charge(place, end - start)
        for first, stop, part in requests(start, end, ahead, self._fetcher.concurrency):
            self._fetcher.prefetch(obj, first, stop, Reason.PLAN, part)


def requests(start: int, end: int, ahead: int, concurrency: int) -> Iterator[tuple[int, int, int]]:
    """How to ask for bytes [start, end) that are due after *ahead* bytes: ranges and part sizes.

    All requests share the link, so each gets an equal part of what is ahead of it at most, half of
    that for the time until it begins.
    """
    while start < end:
        part = max(_PART_MIN, ahead // (2 * concurrency))
        stop = min(start + _STEP * part, end)
        yield start, stop, part
        ahead += stop - start
        start = stop
