"""Sequential readers, found per region of a file rather than per handle.

Shared descriptors, forked workers, faults of a mapping and the kernel's own out-of-order readahead
all look the same from here: reads that advance through a region. A stream is such a region's
frontier; reads elsewhere start a stream of their own, and several live side by side in one file.

A stream that has not yet read a stretch without net gaps asks for nothing, so headers, tails and
random reads fetch no more than the blocks they touch. The first request is one block, the one that
was read; then the window doubles as the reader advances. It halves when memory or connections are
short and when what was fetched was skipped, and a file in which that happens must prove more
before it is believed again. All streams share one budget equally. The distances are those of
mountpoint-s3, the rule of doubling and halving is that of JuiceFS.

Pure: time is an argument, and there is no I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from tiercache.config import PrefetchConfig
from tiercache.prefetch.frontier import Frontier
from tiercache.types import BLOCK_SIZE, KIB, MIB

#: Bytes in a row before a stream is believed. A buffered reader that looks at a header only is
#: over by then; a sequential one is past it within a few kernel readaheads.
_PROOF = 512 * KIB

#: The same where reads are large: the kernel reads around a fault of a mapping in such pieces.
_PROOF_LARGE = 2 * MIB

#: The most a file has to prove that was misjudged before.
_PROOF_MAX = 16 * MIB

#: Two windows of the kernel's own readahead (4 MiB) are on the way at a time, in pieces that a
#: driver may begin with in any order.
_REORDER = 8 * MIB

#: More credit would let a stream that turned random go on for long, more debt bar it for long.
_RUN_BOUNDS = (-_REORDER, 2 * _PROOF_MAX)

#: Readers of one file that are told apart.
_STREAMS_PER_FILE = 8

#: A stream that nobody read from for this long leaves its share of the budget to others.
IDLE_S = 5.0

#: How exactly that is kept track of.
_RENEW_S = 1.0

#: One connection brings no more than a store lets it: large windows are spread over so many.
_SPREAD = 8

#: Requests of this size cost little beside their bytes; a smaller window has fewer of them.
_PART_MIN = 8 * MIB

#: Told of bytes [start, end) of an inode that were asked for and will not be read.
Unused = Callable[[int, int, int], None]


class Ahead(NamedTuple):
    """Bytes [start, end) to prefetch, by requests of *part* bytes at most."""

    start: int
    end: int
    part: int


class Stream(Frontier):
    """One reader: `asked` is the furthest byte requested for it so far."""

    __slots__ = ("asked", "renew_at", "window")

    def __init__(self, position: int, window: int) -> None:
        super().__init__(position)
        self.asked = position
        self.window = window
        self.renew_at = float("-inf")


class _File:
    """The streams of one file, most recent last, and what a new one has to prove."""

    __slots__ = ("proof", "streams")

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.proof = _PROOF


class Streams:
    """All streams of a mount; those of the least recently used file are forgotten first.

    *scarce* says whether memory or connections are short at the moment.
    """

    def __init__(
        self,
        config: PrefetchConfig,
        part: int,
        *,
        scarce: Callable[[], bool] = lambda: False,
        unused: Unused = lambda _ino, _start, _end: None,
    ) -> None:
        self._config = config
        self._part = part
        self._scarce = scarce
        self._unused = unused
        self._behind = max(config.skip_back, _REORDER)
        self._files: OrderedDict[int, _File] = OrderedDict()
        self._active: OrderedDict[Stream, float] = OrderedDict()
        self.wasted_bytes = 0

    def reconfigure(self, config: PrefetchConfig) -> None:
        """Follow streams by other distances and windows; those that are known are kept."""
        self._config = config
        self._behind = max(config.skip_back, _REORDER)
        for file in self._files.values():
            for stream in file.streams:
                stream.window = max(config.window_min, min(stream.window, config.window_max))

    def observe(self, ino: int, offset: int, size: int, limit: int, now: float) -> Ahead | None:
        """Note a read at *now* (seconds); returns what to prefetch before *limit*, if anything.

        The range lies behind the read, starts where the last one ended and has whole parts, so
        that a reader that advances by kilobytes does not cause requests of kilobytes.
        """
        file = self._files.get(ino)
        if file is None:
            file = self._open(ino, offset)
        else:
            self._files.move_to_end(ino)
        stream = file.streams[-1]
        if offset != stream.position:
            stream = self._match(ino, file, offset)
        stream.visit(offset, size, _RUN_BOUNDS)
        position = stream.position
        if stream.asked < position:
            stream.asked = position
        # A few large reads prove little by their size, unless they begin at the beginning.
        proof = file.proof if not offset else max(file.proof, min(4 * size, _PROOF_LARGE))
        if stream.run < proof or stream.asked >= limit:
            return None
        if now >= stream.renew_at:
            self._renew(stream, now)
        return self._extend(file, stream, limit)

    def forget(self, ino: int) -> None:
        """Drop what is known of a file."""
        file = self._files.pop(ino, None)
        if file is not None:
            self._drop_all(ino, file)

    @property
    def active(self) -> int:
        """Streams that share the budget."""
        return len(self._active)

    def __len__(self) -> int:
        return sum(len(file.streams) for file in self._files.values())

    # -- finding the stream ----------------------------------------------------------------------

    def _open(self, ino: int, offset: int) -> _File:
        file = self._files[ino] = _File()
        file.streams.append(Stream(offset, self._config.window_min))
        if len(self._files) > self._config.streams_max:
            self._drop_all(*self._files.popitem(last=False))
        return file

    def _match(self, ino: int, file: _File, offset: int) -> Stream:
        """The stream that a read at *offset* continues, moved there if it skipped; else a new one.

        It becomes the last of the file.
        """
        found, nearest = None, self._config.skip_forward + 1
        for stream in file.streams:
            ahead = offset - stream.position
            if ahead >= -self._behind and abs(ahead) < nearest:
                found, nearest = stream, abs(ahead)
        if found is None:
            found = Stream(offset, self._config.window_min)
            if len(file.streams) == _STREAMS_PER_FILE:
                self._drop(ino, file, file.streams.pop(0))
        else:
            file.streams.remove(found)
            if offset > found.position + _REORDER:
                self._skip(ino, file, found, offset)
        file.streams.append(found)
        return found

    def _skip(self, ino: int, file: _File, stream: Stream, offset: int) -> None:
        """Follow a reader over a gap that will not be filled; what was asked beyond it stays."""
        self._waste(ino, file, stream, min(stream.asked, offset))
        stream.position = offset
        stream.run = max(0, stream.run) // 2
        stream.holes = 0

    # -- the window ------------------------------------------------------------------------------

    def _extend(self, file: _File, stream: Stream, limit: int) -> Ahead | None:
        # Less than a block each means none: the kernel's own readahead must do.
        window = min(stream.window, self._config.budget // len(self._active))
        part = min(self._part, max(window // _SPREAD, _PART_MIN))
        step = min(part, max(window // 2, BLOCK_SIZE))
        target = min(stream.position + window, limit)
        if target < limit:
            target -= target % step
        if target <= stream.asked or window < BLOCK_SIZE:
            return None
        wanted = Ahead(stream.asked, target, part)
        stream.asked = target
        if self._scarce():
            stream.window = max(stream.window // 2, self._config.window_min)
        else:
            if stream.window == self._config.window_max:  # a long stretch was read: forgive
                file.proof = max(file.proof // 2, _PROOF)
            stream.window = min(stream.window * 2, self._config.window_max)
        return wanted

    def _waste(self, ino: int, file: _File, stream: Stream, end: int) -> None:
        """What was asked for between the reader and *end* is not read."""
        if end <= stream.position:
            return
        self.wasted_bytes += end - stream.position
        self._unused(ino, stream.position, end)
        stream.window = max(stream.window // 2, self._config.window_min)
        file.proof = min(file.proof * 2, _PROOF_MAX)

    def _drop(self, ino: int, file: _File, stream: Stream) -> None:
        self._waste(ino, file, stream, stream.asked)
        self._active.pop(stream, None)

    def _drop_all(self, ino: int, file: _File) -> None:
        for stream in file.streams:
            self._drop(ino, file, stream)

    # -- sharing ---------------------------------------------------------------------------------

    def _renew(self, stream: Stream, now: float) -> None:
        """*stream* is in use; those that are not leave their share."""
        stream.renew_at = now + _RENEW_S
        self._active[stream] = now
        self._active.move_to_end(stream)
        while True:
            oldest, seen = next(iter(self._active.items()))
            if seen + _RENEW_S + IDLE_S > now:
                return
            del self._active[oldest]
            oldest.window = self._config.window_min
