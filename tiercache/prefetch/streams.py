"""Sequential readers, found per region of a file rather than per handle.

Shared descriptors, forked workers and the kernel's own out-of-order readahead all look the same
from here: reads that advance through a region. A stream is such a region's frontier. Its window
doubles as the reader advances; reads elsewhere start a stream of their own, and a stream that has
not yet seen `_PROOF` bytes in a row asks for nothing, so headers, tails and random reads fetch no
more than the blocks they touch.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from collections import OrderedDict

from tiercache.config import PrefetchConfig
from tiercache.types import BLOCK_SIZE, KIB, MIB

#: Bytes in a row before a stream is believed. A buffered reader that looks at a header only is
#: over by then; a sequential one is past it within a few kernel readaheads.
_PROOF = 512 * KIB

#: The kernel sends the pieces of its own readahead out of order within about this distance.
_REORDER = 4 * MIB

#: Readers of one file that are told apart.
_STREAMS_PER_FILE = 8


class Stream:
    """One frontier: `position` is the furthest byte read, `asked` the furthest byte requested."""

    __slots__ = ("asked", "position", "run", "window")

    def __init__(self, position: int, run: int, window: int) -> None:
        self.position = position
        self.run = run
        self.window = window
        self.asked = position


class Streams:
    """All streams of a mount; the least recently used file's are forgotten first."""

    def __init__(self, config: PrefetchConfig, part: int) -> None:
        self._config = config
        self._part = part
        self._files: OrderedDict[int, list[Stream]] = OrderedDict()

    def observe(self, ino: int, offset: int, size: int, file_size: int) -> tuple[int, int] | None:
        """Note a read; returns the byte range to prefetch now, if any.

        The range lies behind the read, starts where the last one ended and has whole parts, so
        that a reader that advances by kilobytes does not cause requests of kilobytes.
        """
        stream = self._match(ino, offset, size)
        end = offset + size
        if offset > stream.position + _REORDER:
            stream.run, stream.window = 0, self._config.window_min
        stream.run += size
        stream.position = max(stream.position, end)
        stream.asked = max(stream.asked, stream.position)
        if stream.run < _PROOF or stream.asked >= file_size:
            return None
        return self._advance(stream, file_size)

    def forget(self, ino: int) -> None:
        """Drop what is known of a file."""
        self._files.pop(ino, None)

    def __len__(self) -> int:
        return sum(map(len, self._files.values()))

    def _advance(self, stream: Stream, file_size: int) -> tuple[int, int] | None:
        step = min(self._part, max(stream.window // 2, BLOCK_SIZE))
        target = min(stream.position + stream.window, file_size)
        if target < file_size:
            target -= target % step
        if target <= stream.asked:
            return None
        wanted = stream.asked, target
        stream.asked = target
        stream.window = min(stream.window * 2, self._config.window_max)
        return wanted

    def _match(self, ino: int, offset: int, size: int) -> Stream:
        streams = self._files.get(ino)
        if streams is None:
            streams = self._files[ino] = []
            if len(self._files) > self._config.streams_max:
                self._files.popitem(last=False)
        else:
            self._files.move_to_end(ino)
        back, ahead = self._config.skip_back, self._config.skip_forward
        for stream in streams:
            if stream.position - max(back, _REORDER) <= offset <= stream.position + ahead:
                return stream
        stream = Stream(offset, 0, self._config.window_min)
        streams.append(stream)
        if len(streams) > _STREAMS_PER_FILE:
            del streams[0]
        return stream
