"""A listing of one directory on its way into the catalog, page by page.

Names are stamped with the number of the listing that saw them. Nothing is taken away before the
listing is complete: until then lookups see what was known before, and an abandoned listing has only
added what it saw. At its end, names with an older stamp are gone. So a listing may be larger than
memory, and names that were put meanwhile (with a newer stamp) stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tiercache.catalog import records
from tiercache.catalog.numbers import Numbers
from tiercache.catalog.store import Store, Txn, scan
from tiercache.catalog.writer import Change, NewEntry, Stamp, Writer

#: Names per transaction: what a page of a listing holds, and a few milliseconds of work.
SLICE = 1000


class Listing:
    """One listing of directory *parent*."""

    def __init__(
        self, store: Store, numbers: Numbers, parent: int, generation: int, now: Callable[[], float]
    ) -> None:
        self._store = store
        self._numbers = numbers
        self._parent = parent
        self._generation = generation
        self._now = now

    def add(self, entries: Sequence[NewEntry]) -> Change:
        """Add one page; returns the names that were re-pointed. Raises CatalogError.

        Each thousand entries are one transaction.
        """
        stamp = Stamp(self._now(), self._generation)
        changed: Change = []
        for start in range(0, len(entries), SLICE):
            changed += self._store.write(self._add, entries[start : start + SLICE], stamp)
        return changed

    def finish(self, listed_at: float) -> Change:
        """End the listing: it was complete as of *listed_at*. Returns the names that went away."""
        return [name for gone in self.finish_in_slices(listed_at) for name in gone]

    def finish_in_slices(self, listed_at: float) -> Iterator[Change]:
        """`finish`, with a chance to do something else after every thousand names.

        The listing counts as complete only when the iterator is exhausted.
        """
        prefix = records.pack_ino(self._parent)
        start: bytes | None = prefix
        while start is not None:
            gone, start = self._store.write(self._remove_stale, start)
            yield gone
        time = records.pack_time(prefix, listed_at)
        self._store.write(lambda txn: txn.put(prefix, time, db=self._store.listings))

    def _add(self, txn: Txn, entries: Sequence[NewEntry], stamp: Stamp) -> Change:
        writer = Writer(txn, self._store, self._numbers, self._parent)
        changed = [entry.name for entry in entries if writer.add(entry, stamp)]
        writer.date_parent()
        return changed

    def _remove_stale(self, txn: Txn, start: bytes) -> tuple[Change, bytes | None]:
        """Remove stale names from *start* on; returns them and where to go on."""
        prefix, generation = records.pack_ino(self._parent), records.pack_ino(self._generation)
        stale: Change = []
        resume = None
        for seen, (key, value) in enumerate(scan(txn, self._store.names, start)):
            if not key.startswith(prefix):
                break
            if seen == SLICE:
                resume = key
                break
            if records.older_than(value, generation):
                stale.append(key[records.INO_SIZE :])
        if stale:
            writer = Writer(txn, self._store, self._numbers, self._parent)
            for name in stale:
                writer.remove(name)
        return stale, resume
