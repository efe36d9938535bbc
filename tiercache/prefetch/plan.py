"""A known future: an ordered list of what will be read, and what to fetch of it now.

Readers move through the list in order, but not exactly: several workers take turns, some are late,
a few entries are never read. So a reader may be up to `spread` places away from the others; what
is further behind counts as skipped. Opens far away are ignored (a file is opened twice, an
evaluation runs beside the training) until several in a row are close to each other: then the job
was resumed there, and the position follows. A list may name a path many times, once per epoch.

Entries are taken while those ahead of the readers are less than a window of bytes, so that blocks
arrive just in time and evict nothing that is needed sooner. `next_place` is what Belady's rule
(Belady 1966) needs to know: it follows what was read, not what was fetched ahead.

Pure. About 25 bytes per entry and one string per path.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tiercache.prefetch.underway import Brushed, Underway

#: After all places.
NEVER: Final = 1 << 62

#: Where a range ends that goes to the end of a file whose size is not known.
_ENDLESS: Final = 1 << 62

#: So many opens near each other, far from the rest, are a resumed job.
_RESUMED = 4

#: Names of unknown paths that are kept to be shown.
_SHOWN = 20


class PlanItem(NamedTuple):
    """Bytes [start, end) of the file *path*, relative to the mount; `end` None: to its end."""

    path: bytes
    start: int = 0
    end: int | None = None


class Foreseen(NamedTuple):
    """A read of a range that is in the plan; *moved*: the readers got on by it."""

    until: int  # where the range ends; where the read begins if it seems to be of no reader
    moved: bool


class Plan:
    """An ordered list of reads and the place its readers have reached.

    *window*: bytes to have ahead of them, at least one entry; *spread*: places that readers may be
    apart. Places count from 0; what lies before *start* was read or skipped earlier.
    """

    def __init__(
        self, items: Iterable[PlanItem], *, window: int, spread: int = 1024, start: int = 0
    ) -> None:
        self._window = window
        self._spread = spread
        self._ids: dict[bytes, int] = {}
        self._paths: list[bytes] = []
        self._path = array("I")  # by place
        self._start = array("q")
        self._end = array("q")  # -1: to the end of the file
        for item in items:
            self._add(item)
        self._visited = bytearray(len(self._path))
        self._by_path, self._group = self._index()
        self._next = array("I", self._group[:-1])  # by path: its first place that may be unvisited
        self._taken = self.position = min(start, len(self._path))
        self._ahead: dict[int, int] = {}  # taken and unvisited places: their bytes
        self._far: list[int] = []
        self._underway = Underway()
        self._brushed = Brushed(spread)
        self._begun: dict[int, int] = {}  # paths that are open and whose reads are not seen
        self.ahead_bytes = 0
        self.skipped = 0
        self.unplanned = 0
        self.unknown = 0
        self.unknown_paths: list[bytes] = []

    def _add(self, item: PlanItem) -> None:
        number = self._ids.setdefault(item.path, len(self._paths))
        if number == len(self._paths):
            self._paths.append(item.path)
        self._path.append(number)
        self._start.append(item.start)
        self._end.append(-1 if item.end is None else item.end)

    def _index(self) -> tuple[array[int], array[int]]:
        """Places grouped by path, in order, and where each path's group begins."""
        group = array("I", bytes(4 * (len(self._paths) + 1)))
        for number in self._path:
            group[number + 1] += 1
        for number in range(len(self._paths)):
            group[number + 1] += group[number]
        filled = array("I", group)
        by_path = array("I", bytes(4 * len(self._path)))
        for place, number in enumerate(self._path):
            by_path[filled[number]] = place
            filled[number] += 1
        return by_path, group

    def __len__(self) -> int:
        return len(self._path)

    @property
    def done(self) -> bool:
        """Whether all of it was read or skipped."""
        return self.position == len(self)

    def item(self, place: int) -> PlanItem:
        """The entry at *place*."""
        end = self._end[place]
        path = self._paths[self._path[place]]
        return PlanItem(path, self._start[place], None if end < 0 else end)

    # -- what to fetch ---------------------------------------------------------------------------

    def take(self) -> int | None:
        """The next place to fetch now; None while enough is ahead, or nothing is left.

        Each must be answered by `charge` or `missing` before the next is taken.
        """
        while self._taken < len(self) and self._visited[self._taken]:
            self._taken += 1
        if self._taken == len(self) or (self._ahead and self.ahead_bytes >= self._window):
            return None
        self._taken += 1
        return self._taken - 1

    def charge(self, place: int, nbytes: int) -> None:
        """*place*, taken before, is *nbytes* long."""
        if not self._past(place):  # readers may have gone on while its size was looked up
            self._ahead[place] = nbytes
            self.ahead_bytes += nbytes

    def missing(self, place: int) -> None:
        """*place*, taken before, names no file."""
        self.unknown += 1
        if len(self.unknown_paths) < _SHOWN:
            self.unknown_paths.append(self.item(place).path)
        self._visit(place)
        self._advance()

    # -- where the readers are -------------------------------------------------------------------

    def opened(self, path: bytes) -> bool:
        """*path* was opened; whether that moved anything. Only entries for whole files do."""
        number = self._ids.get(path)
        if number is None:
            self.unplanned += 1
            return False
        place = self._find(number, self._whole)
        return place is not None and self._reach(place)

    def read(self, path: bytes, start: int, end: int) -> Foreseen | None:
        """Bytes [start, end) of *path* were read; None if no entry for a range foresees it."""
        number = self._ids.get(path)
        if number is None:
            return None
        begun = self._underway.goes_on(number, start, end)
        if begun is not None:
            return Foreseen(begun.end, moved=False) if begun.believed else None
        place = self._find(number, lambda place: self._overlaps(place, start, end))
        if place is None:
            return None
        first, last = self._span(place)
        nbytes = min(end, last) - max(start, first)
        if place < self._taken:
            self._brushed.expected()
        elif (known := self._brushed.read(place, nbytes, last - first)) is None:
            return Foreseen(start, moved=False)  # of no reader, so nothing follows
        else:
            nbytes = known
        believed = self._reach(place)
        self._underway.begin(number, (first, last), nbytes, believed=believed)
        return Foreseen(last, moved=True) if believed else None

    def began(self, path: bytes) -> bool:
        """*path* was opened by somebody whose reads are not seen; whether that moved anything.

        They begin at its next entry, whatever that is.
        """
        number = self._ids.get(path)
        if number is None:
            self.unplanned += 1
            return False
        place = self._find(number, lambda _place: True)
        if place is None:
            return False
        self._begun[number] = place
        return self._reach(place)

    def ended(self, path: bytes) -> bool:
        """It was closed; whether that moved anything.

        What follows the entry that it was opened at was read, as far as that is of the same file.
        """
        place = self._begun.pop(self._ids.get(path, -1), None)
        if place is None or not self._past(place):  # too far away to be believed
            return False
        following = itertools.takewhile(
            lambda after: self._path[after] == self._path[place] and not self._whole(after),
            range(place + 1, len(self)),
        )
        moved = False
        for after in following:
            moved |= not self._past(after) and self._reach(after)
        return moved

    def _reach(self, place: int) -> bool:
        """Somebody is at *place*; whether that is believed."""
        if place >= max(self.position, self._taken) + self._spread:
            return self._far_away(place)
        self._visit(place)
        self._leave_behind(place - self._spread)
        self._advance()
        return True

    def _find(self, number: int, matches: Callable[[int], bool]) -> int | None:
        """The first place of a path that is not visited and matches what was read of it."""
        self.next_place(number)
        at, stop = self._next[number], self._group[number + 1]
        for index in range(at, min(stop, at + 2 * self._spread)):
            place = self._by_path[index]
            if not self._past(place) and matches(place):
                return place
        return None

    def _past(self, place: int) -> bool:
        return place < self.position or bool(self._visited[place])

    def _whole(self, place: int) -> bool:
        return not self._start[place] and self._end[place] < 0

    def _span(self, place: int) -> tuple[int, int]:
        end = self._end[place]
        return self._start[place], _ENDLESS if end < 0 else end

    def _overlaps(self, place: int, start: int, end: int) -> bool:
        first, last = self._span(place)
        return not self._whole(place) and first < end and start < last

    def _far_away(self, place: int) -> bool:
        if place in self._far:
            return False
        if self._far and abs(place - self._far[-1]) > self._spread:
            self._far.clear()
        self._far.append(place)
        if len(self._far) < _RESUMED:
            return False
        for seen in self._far:
            self._visit(seen)
        self._leave_behind(min(self._far))
        self._far.clear()
        self._advance()
        return True

    def _visit(self, place: int) -> None:
        self._visited[place] = 1
        self.ahead_bytes -= self._ahead.pop(place, 0)

    def _leave_behind(self, position: int) -> None:
        """What lies before *position* and was not read will not be."""
        if position <= self.position:
            return
        self.skipped += self._visited.count(0, self.position, position)
        for place in [place for place in self._ahead if place < position]:
            self._visit(place)
        self.position = position

    def _advance(self) -> None:
        unvisited = self._visited.find(0, self.position)
        self.position = len(self) if unvisited < 0 else unvisited
        self._taken = max(self._taken, self.position)

    # -- the future ------------------------------------------------------------------------------

    def number(self, path: bytes) -> int | None:
        """What `next_place` calls *path*; None: the plan does not mention it."""
        return self._ids.get(path)

    def next_place(self, number: int) -> int:
        """Where path *number* is read next: a place that nobody was at yet, or NEVER."""
        at, stop = self._next[number], self._group[number + 1]
        while at < stop and self._past(self._by_path[at]):
            at += 1
        self._next[number] = at
        return self._by_path[at] if at < stop else NEVER
