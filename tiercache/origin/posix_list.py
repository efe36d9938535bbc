"""Pages of a directory tree's listing.

Names are listed in sorted order, so that a token needs to say no more than the last key given: a
listing resumes after a restart, and after names before or behind that point came and went. The
sorted names of directories that are being listed are kept for the next page, within a bound.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from tiercache.errors import ObjectNotFoundError
from tiercache.origin.posix_tree import Entry, PosixTree
from tiercache.types import ListPage

#: Names kept over all listings under way, about 100 bytes each.
NAMES_MAX = 1_000_000

#: Names looked at together; those behind the end of a page are looked at again for the next.
_BATCH = 128


class PosixLister:
    """Lists *tree* page by page; for pool threads, several at once."""

    def __init__(self, tree: PosixTree) -> None:
        self._tree = tree
        self._snapshots = _Snapshots(NAMES_MAX)
        self._listings = itertools.count(1)

    def page(self, prefix: bytes, token: str | None, *, delimiter: bool, limit: int) -> ListPage:
        """One page; see `tiercache.origin.protocol.Origin.list`."""
        listing, after = self._parse(token)
        entries = (self._children if delimiter else self._below)(prefix, after, listing)
        taken = list(itertools.islice(entries, limit + 1))
        page, more = taken[:limit], len(taken) > limit
        if not more:
            self._snapshots.forget(listing)
        return ListPage(
            [info for _, info in page if info is not None],
            [key + b"/" for key, info in page if info is None],
            f"{listing}:{page[-1][0].hex()}" if more else None,
        )

    def _parse(self, token: str | None) -> tuple[int, bytes]:
        """Number of the listing, and the key that it goes on behind."""
        if token is None:
            return next(self._listings), b""
        listing, _, after = token.partition(":")
        return int(listing), bytes.fromhex(after)

    def _children(self, prefix: bytes, after: bytes, listing: int) -> Iterator[Entry]:
        directory, slash, start = prefix.rpartition(b"/")
        if slash and not directory:
            return iter(())  # no key starts with a slash
        return self._level(directory, start, after, listing)

    def _below(self, prefix: bytes, after: bytes, listing: int) -> Iterator[Entry]:
        """The files of the whole tree under *prefix*, depth first."""
        stack = [self._children(prefix, after, listing)]
        while stack:
            key, info = next(stack[-1], (b"", None))
            if info is not None:
                yield key, info
            elif key:
                stack.append(self._level(key, b"", after, listing))
            else:
                stack.pop()

    def _level(self, directory: bytes, start: bytes, after: bytes, listing: int) -> Iterator[Entry]:
        """What *directory* holds with names that begin with *start*, behind the key *after*."""
        names = self._names(directory, listing)
        at = bisect.bisect_left(names, start)
        inside = directory + b"/" if directory else b""
        if after.startswith(inside):
            name, _, rest = after[len(inside) :].partition(b"/")
            # With a rest, the subtree of that name is not finished.
            at = max(at, (bisect.bisect_left if rest else bisect.bisect_right)(names, name))
        for first in range(at, len(names), _BATCH):
            batch = list(
                itertools.takewhile(lambda n: n.startswith(start), names[first : first + _BATCH])
            )
            with contextlib.suppress(ObjectNotFoundError):  # the directory is gone by now
                yield from self._tree.look(directory, batch)
            if len(batch) < _BATCH:
                return

    def _names(self, directory: bytes, listing: int) -> Sequence[bytes]:
        names = self._snapshots.get(listing, directory)
        if names is None:
            try:
                names = self._tree.names(directory)
            except ObjectNotFoundError:
                names = []  # no such directory: nothing starts with the prefix
            self._snapshots.put(listing, directory, names)
        return names


class _Snapshots:
    """The least recently used names go first when there are more than *names_max*."""

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, bytes], Sequence[bytes]] = OrderedDict()
        self._count = 0

    def get(self, listing: int, directory: bytes) -> Sequence[bytes] | None:
        """The names of *directory* as this listing saw them first, if still kept."""
        with self._lock:
            names = self._kept.get((listing, directory))
            if names is not None:
                self._kept.move_to_end((listing, directory))
            return names

    def put(self, listing: int, directory: bytes, names: Sequence[bytes]) -> None:
        """Keep *names*."""
        with self._lock:
            self._drop((listing, directory))
            self._kept[listing, directory] = names
            self._count += len(names) + 1
            while self._count > self._names_max:
                self._drop(next(iter(self._kept)))

    def forget(self, listing: int) -> None:
        """Drop all names of a listing that came to its end."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == listing]:
                self._drop(key)

    def _drop(self, key: tuple[int, bytes]) -> None:
        names = self._kept.pop(key, None)
        if names is not None:
            self._count -= len(names) + 1
