"""Files of one directory that are opened in the order of their names.

A cursor is such an order's frontier: it knows the names ahead, and files of a directory that are
opened one after the other, or nearly so by several workers, move it on. Once it has seen `_PROOF`
opens net of gaps, the files ahead are fetched while the reader is busy with the present one: small
ones whole, with one GET each, of large ones (shards) the first part. Shuffled opens never move a
cursor far; a directory in which they are the rule is looked at now and then only.

Pure: there is no clock and no I/O but `Names`, which answers from memory or a local index.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from tiercache.config import PrefetchConfig
from tiercache.prefetch.frontier import Frontier
from tiercache.types import Inode

#: Opens in order before a cursor is believed.
_PROOF = 4

#: Workers that take batches in turn leave gaps as large as this credit, until they fill them.
_RUN_BOUNDS = (-32, 256)

#: Names a new cursor looks ahead: less than a directory listing costs, and enough to notice order.
_LOOK = 16

#: Names behind a cursor that still count as its own: stragglers among the workers.
_BEHIND = 256

#: Orders in one directory that are told apart: shards of it, one per worker.
_CURSORS = 8

#: After so many opens out of any order a directory counts as shuffled ...
_SHUFFLED = 32

#: ... and only one open in so many begins a cursor.
_SAMPLE = 16

#: A cursor that found so many files in a row on local disk already has nothing to do.
_IDLE = 64


class Names(Protocol):
    """The order of names, as listings show it."""

    def after(self, obj: Inode, count: int) -> Sequence[Inode]:
        """Up to *count* known files that follow *obj* in its directory; cheap, asks no origin."""


class Cursor(Frontier):
    """One order through a directory; positions count files from where it began."""

    __slots__ = ("asked", "depth", "files", "first", "idle", "places")

    def __init__(self, obj: Inode) -> None:
        super().__init__(0)
        self.files: list[Inode] = [obj]
        self.places = {obj.ino: 0}
        self.first = 0  # position of files[0]
        self.asked = 0
        self.depth = _PROOF
        self.idle = 0

    @property
    def end(self) -> int:
        """Position behind the last name that is known."""
        return self.first + len(self.files)

    def learn(self, files: Sequence[Inode]) -> None:
        """Know the next *files*; forget those far behind."""
        for place, file in enumerate(files, self.end):
            self.places[file.ino] = place
        self.files.extend(files)
        old = self.position - _BEHIND - self.first
        if old > _BEHIND:
            for file in self.files[:old]:
                self.places.pop(file.ino, None)
            del self.files[:old]
            self.first += old

    def ahead(self) -> Sequence[Inode]:
        """Files that were asked for and are ahead of everybody."""
        return self.files[self.position - self.first : self.asked - self.first]


class _Directory:
    __slots__ = ("cursors", "misses")

    def __init__(self) -> None:
        self.cursors: list[Cursor] = []
        self.misses = 0


class Siblings:
    """All cursors of a mount; those of the least recently used directory are forgotten first.

    A file counts as *whole* bytes at most; what is ahead of a cursor stays within the window.
    """

    def __init__(self, config: PrefetchConfig, names: Names, whole: int) -> None:
        self._names = names
        self._depth_max = config.files_ahead
        self._window = config.window_max
        self._whole = whole
        self._directories: OrderedDict[int, _Directory] = OrderedDict()
        self._directories_max = config.streams_max
        self.wasted_bytes = 0

    def opened(self, obj: Inode, *, resident: bool) -> tuple[Cursor, list[Inode]] | None:
        """Note an open of *obj*; the files to fetch now, and the cursor to report back to.

        *resident*: all of it was on local disk, so it may continue an order but begins none.
        """
        directory = self._directories.get(obj.parent)
        if directory is None:
            if resident:
                return None
            directory = self._add(obj.parent)
        for cursor in directory.cursors:
            place = cursor.places.get(obj.ino)
            if place is not None:
                return self._advance(directory, cursor, place)
        if not resident:
            self._begin(directory, obj)
        return None

    def started(self, obj: Inode, cursor: Cursor, files: int) -> None:
        """*files* of those last asked for were not there yet; none, again and again: give up."""
        if files:
            cursor.idle = 0
            return
        cursor.idle += 1
        directory = self._directories.get(obj.parent)
        if cursor.idle >= _IDLE and directory is not None and cursor in directory.cursors:
            directory.cursors.remove(cursor)

    def __len__(self) -> int:
        return sum(len(directory.cursors) for directory in self._directories.values())

    def _add(self, parent: int) -> _Directory:
        directory = self._directories[parent] = _Directory()
        if len(self._directories) > self._directories_max:
            _, old = self._directories.popitem(last=False)
            for cursor in old.cursors:
                self._drop(cursor)
        return directory

    def _begin(self, directory: _Directory, obj: Inode) -> None:
        directory.misses += 1
        if directory.misses > _SHUFFLED and directory.misses % _SAMPLE:
            return
        cursor = Cursor(obj)
        cursor.visit(0, 1, _RUN_BOUNDS)
        cursor.asked = 1
        cursor.learn(self._names.after(obj, _LOOK))
        directory.cursors.append(cursor)
        if len(directory.cursors) > _CURSORS:
            self._drop(directory.cursors.pop(0))

    def _advance(
        self, directory: _Directory, cursor: Cursor, place: int
    ) -> tuple[Cursor, list[Inode]] | None:
        if directory.cursors[-1] is not cursor:  # the most recent is last
            directory.cursors.remove(cursor)
            directory.cursors.append(cursor)
        cursor.visit(place, 1, _RUN_BOUNDS)
        cursor.asked = max(cursor.asked, cursor.position)
        target = cursor.position + (cursor.depth if cursor.run >= _PROOF else 0)
        if cursor.end < max(target, cursor.position + _LOOK // 2):
            cursor.learn(self._names.after(cursor.files[-1], max(_LOOK, cursor.depth)))
        if cursor.run < _PROOF:
            return None
        directory.misses = 0
        cursor.depth = min(2 * cursor.depth, self._depth_max)
        wanted = self._take(cursor, min(target, cursor.end))
        return (cursor, wanted) if wanted else None

    def _take(self, cursor: Cursor, target: int) -> list[Inode]:
        room = self._window - sum(min(file.size, self._whole) for file in cursor.ahead())
        wanted = []
        while cursor.asked < target and room > 0:
            file = cursor.files[cursor.asked - cursor.first]
            wanted.append(file)
            room -= min(file.size, self._whole)
            cursor.asked += 1
        return wanted

    def _drop(self, cursor: Cursor) -> None:
        self.wasted_bytes += sum(min(file.size, self._whole) for file in cursor.ahead())
