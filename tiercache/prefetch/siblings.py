"""Files of one directory that are opened in the order of their names.

A cursor is such an order's frontier: it knows the names ahead, and files of a directory that are
opened one after the other, or nearly so by several workers, move it on. Once it has seen `_PROOF`
opens net of gaps, the files ahead are fetched while the reader is busy with the present one: small
ones whole, with one GET each, of large ones (shards) the first block. Shuffled opens never move a
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

#: Opens in the directory within which a cursor must be believed: later its names have been opened
#: anyhow, in whatever order.
_TRIAL = 64

#: Names behind a cursor that still count as its own: stragglers among the workers.
_BEHIND = 256

#: Orders in one directory that are told apart: shards of it, one per worker.
_CURSORS = 8

#: After so many opens out of any order a directory counts as shuffled ...
_SHUFFLED = 32

#: ... and only one open in so many begins a cursor.
_SAMPLE = 16

#: So many files in a row that were on local disk already: there is nothing to do here.
_IDLE = 64


class Names(Protocol):
    """The order of names, as listings show it."""

    def after(self, obj: Inode, count: int) -> Sequence[Inode]:
        """Up to *count* known files that follow *obj* in its directory; cheap, asks no origin."""


class Cursor(Frontier):
    """One order through a directory; positions count files from where it began."""

    __slots__ = (
        "_first",
        "_sums",
        "_whole",
        "asked",
        "depth",
        "files",
        "idle",
        "places",
        "proven",
        "trial_ends",
    )

    def __init__(self, obj: Inode, whole: int, trial_ends: int) -> None:
        super().__init__(0)
        self.proven = False
        self.trial_ends = trial_ends
        self.files: list[Inode] = []
        self.places: dict[int, int] = {}
        self._first = 0  # position of files[0]
        self._whole = whole
        self._sums = [0]  # bytes before each of the files, and before the one to come
        self.asked = 0
        self.depth = _PROOF
        self.idle = 0
        self.learn([obj])

    @property
    def end(self) -> int:
        """Position behind the last name that is known."""
        return self._first + len(self.files)

    @property
    def ahead_bytes(self) -> int:
        """What was asked for and is ahead of everybody."""
        return self._sums[self.asked - self._first] - self._sums[self.position - self._first]

    def learn(self, files: Sequence[Inode]) -> None:
        """Know the next *files*; forget those far behind."""
        for place, file in enumerate(files, self.end):
            self.places[file.ino] = place
            self._sums.append(self._sums[-1] + min(file.size, self._whole))
        self.files.extend(files)
        old = self.position - _BEHIND - self._first
        if old > _BEHIND:
            for file in self.files[:old]:
                self.places.pop(file.ino, None)
            del self.files[:old]
            del self._sums[:old]
            self._first += old

    def take(self, target: int, window: int) -> list[Inode]:
        """Ask for the files up to position *target*, of *window* bytes with what is ahead."""
        wanted = []
        while self.asked < target and self.ahead_bytes < window:
            wanted.append(self.files[self.asked - self._first])
            self.asked += 1
        return wanted


class _Directory:
    """The orders, most recent last, and how many opens in a row belonged to none."""

    __slots__ = ("cursors", "misses", "opens")

    def __init__(self) -> None:
        self.cursors: list[Cursor] = []
        self.misses = 0
        self.opens = 0

    def end_trials(self) -> None:
        """Give up orders that did not show in time."""
        self.opens += 1
        if not self.opens % _TRIAL:
            self.cursors = [c for c in self.cursors if c.proven or c.trial_ends > self.opens]


class Siblings:
    """All cursors of a mount; those of the least recently used directory are forgotten first.

    A file counts as *whole* bytes at most; what is ahead of a cursor stays within the window.
    """

    def __init__(self, config: PrefetchConfig, names: Names, whole: int) -> None:
        self._names = names
        self.reconfigure(config)
        self._whole = whole
        self._directories: OrderedDict[int, _Directory] = OrderedDict()
        self._directories_max = config.streams_max
        self.wasted_bytes = 0

    def reconfigure(self, config: PrefetchConfig) -> None:
        """Look ahead by other numbers of files and bytes."""
        self._depth_max = config.files_ahead
        self._window = config.window_max

    def opened(self, obj: Inode, *, resident: bool) -> tuple[Cursor, list[Inode]] | None:
        """Note an open of *obj*; the files to fetch now, and the cursor to report back to.

        *resident*: all of it was on local disk, so it may continue an order but begins none.
        """
        directory = self._directories.get(obj.parent)
        if directory is None:
            if resident:
                return None
            directory = self._add(obj.parent)
        directory.end_trials()
        # Most recent first: of orders that overlap, one gets all the credit.
        for cursor in reversed(directory.cursors):
            place = cursor.places.get(obj.ino)
            if place is not None:
                wanted = self._advance(directory, cursor, place)
                break
        else:
            self._outside(directory, obj, resident=resident)
            return None
        if not wanted and resident:
            self._tire(directory, cursor)
        return (cursor, wanted) if wanted else None

    def started(self, obj: Inode, cursor: Cursor, files: int) -> None:
        """*files* of those last asked for were not there yet."""
        directory = self._directories.get(obj.parent)
        if files:
            cursor.idle = 0
        elif directory is not None:
            self._tire(directory, cursor)

    def __len__(self) -> int:
        return sum(len(directory.cursors) for directory in self._directories.values())

    def _add(self, parent: int) -> _Directory:
        directory = self._directories[parent] = _Directory()
        if len(self._directories) > self._directories_max:
            _, old = self._directories.popitem(last=False)
            for cursor in old.cursors:
                self.wasted_bytes += cursor.ahead_bytes
        return directory

    def _tire(self, directory: _Directory, cursor: Cursor) -> None:
        """There was nothing to do for *cursor*; where all is resident, opens must cost nothing."""
        cursor.idle += 1
        if cursor.idle >= _IDLE and cursor in directory.cursors:
            directory.cursors.remove(cursor)
            self.wasted_bytes += cursor.ahead_bytes

    def _outside(self, directory: _Directory, obj: Inode, *, resident: bool) -> None:
        """*obj* continues no order."""
        if not resident:
            self._begin(directory, obj)
        elif directory.cursors:
            self._tire(directory, directory.cursors[0])

    def _begin(self, directory: _Directory, obj: Inode) -> None:
        directory.misses += 1
        if directory.misses > _SHUFFLED and directory.misses % _SAMPLE:
            return
        cursor = Cursor(obj, self._whole, directory.opens + _TRIAL)
        cursor.visit(0, 1, _RUN_BOUNDS)
        cursor.asked = 1
        cursor.learn(self._names.after(obj, _LOOK))
        directory.cursors.append(cursor)
        if len(directory.cursors) > _CURSORS:
            self.wasted_bytes += directory.cursors.pop(0).ahead_bytes

    def _advance(self, directory: _Directory, cursor: Cursor, place: int) -> list[Inode]:
        if directory.cursors[-1] is not cursor:  # the most recent is last
            directory.cursors.remove(cursor)
            directory.cursors.append(cursor)
        cursor.visit(place, 1, _RUN_BOUNDS)
        cursor.asked = max(cursor.asked, cursor.position)
        in_order = cursor.run >= _PROOF
        cursor.proven |= in_order and directory.opens <= cursor.trial_ends
        believed = in_order and cursor.proven
        target = cursor.position + (cursor.depth if believed else 0)
        if cursor.end < max(target, cursor.position + _LOOK // 2):
            cursor.learn(self._names.after(cursor.files[-1], max(_LOOK, cursor.depth)))
        if not believed:
            return []
        directory.misses = 0
        cursor.depth = min(2 * cursor.depth, self._depth_max)
        return cursor.take(min(target, cursor.end), self._window)
