"""What the tree tells of opens and reads, and what is fetched ahead because of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tiercache.config import PrefetchConfig
from tiercache.prefetch.background import BackgroundFill
from tiercache.prefetch.planner import Planner
from tiercache.prefetch.siblings import Names, Siblings
from tiercache.prefetch.streams import Streams
from tiercache.prefetch.tails import tail_of
from tiercache.transfer.fetch import Reason
from tiercache.transfer.fetcher import Fetcher
from tiercache.types import BLOCK_SIZE, Inode


class Prefetcher:
    """Turns guesses into fetches. *part* is the largest GET in bytes."""

    def __init__(
        self,
        fetcher: Fetcher,
        names: Names,
        config: PrefetchConfig,
        part: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        config = _within(config, fetcher)
        self._fetcher = fetcher
        self._part = part
        self._tail = config.tail
        self._ahead = config.files_ahead > 0
        self._now = now
        self.streams = Streams(
            config,
            part,
            scarce=lambda: fetcher.admission.congested,
            unused=partial(fetcher.abandon, Reason.READAHEAD),
        )
        self.siblings = Siblings(config, names, part)
        #: Follows a list of what will be read, if there is one; its owner runs it.
        self.planner: Planner | None = None
        #: Fills free space with what is being read, if it is switched on.
        self.background: BackgroundFill | None = None

    def reconfigure(self, config: PrefetchConfig) -> None:
        """Guess by other bounds from now on; what is on its way comes."""
        config = _within(config, self._fetcher)
        self._tail = config.tail
        self._ahead = config.files_ahead > 0
        self.streams.reconfigure(config)
        self.siblings.reconfigure(config)

    def opened(self, obj: Inode, *, resident: bool) -> None:
        """*obj* was opened; *resident*: all of it is on local disk."""
        if self.planner is not None:
            self.planner.opened(obj)
        if self.background is not None and self.background.enabled:
            self.background.used(obj, opens=not resident)
        if not self._ahead:
            return
        found = self.siblings.opened(obj, resident=resident)
        if found is not None:
            cursor, files = found
            started = sum(bool(self._fetch_start(file)) for file in files)
            self.siblings.started(obj, cursor, started)

    def released(self, ino: int) -> None:
        """A handle of version *ino* was closed."""
        if self.planner is not None:
            self.planner.released(ino)

    def read(self, obj: Inode, offset: int, size: int) -> None:
        """Bytes [offset, offset + size) of *obj*, which is not all on local disk, are read."""
        until = None if self.planner is None else self.planner.read(obj, offset, size)
        if self.background is not None and self.background.enabled:
            self.background.used(obj, nbytes=size)
        if not offset and until is None:
            tail = tail_of(obj, self._tail)
            if tail is not None:
                self._fetcher.prefetch(obj, *tail, Reason.TAIL)
        # Behind what a plan foresees comes what it says, and no guess is to get ahead of that.
        limit = obj.size if until is None else until
        wanted = self.streams.observe(obj.ino, offset, size, limit, self._now())
        if wanted is not None:
            start, end, part = wanted
            self._fetcher.prefetch(obj, start, end, Reason.READAHEAD, part)

    def read_local(self, obj: Inode, offset: int, size: int) -> None:
        """Bytes [offset, offset + size) of *obj*, all of which is on local disk, are read."""
        if self.planner is not None:
            self.planner.read(obj, offset, size)

    def forget(self, ino: int) -> None:
        """Version *ino* is gone."""
        self.streams.forget(ino)

    @property
    def wasted_bytes(self) -> int:
        """Bytes asked for ahead of readers who then did not read them."""
        return self.streams.wasted_bytes + self.siblings.wasted_bytes

    def _fetch_start(self, file: Inode) -> int:
        """A small file whole, in one GET; of a large one the block its reader would begin with.

        No more: who looks at the headers of many large files in turn reads nothing else of them.
        """
        end = file.size if file.size <= self._part else BLOCK_SIZE
        return self._fetcher.prefetch(file, 0, end, Reason.NEXT)


def _within(config: PrefetchConfig, fetcher: Fetcher) -> PrefetchConfig:
    """*config* with a budget that the memory of *fetcher* can hold."""
    return replace(config, budget=min(config.budget, fetcher.admission.memory_ahead))
