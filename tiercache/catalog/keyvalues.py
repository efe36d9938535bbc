"""The key-value space of the catalog, for layers that must not know LMDB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tiercache.catalog import records
from tiercache.catalog.store import Store, Txn, scan

#: Pairs copied out per transaction while scanning.
_SLICE = 1000


class LmdbKeyValues:
    """`tiercache.types.KeyValues` in a table of its own. A damaged pair counts as missing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, key: bytes) -> bytes | None:
        """The value of *key*."""
        return self._store.read(self._get, key)

    def put_many(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Store all *items* or none; a value of None removes its key."""
        self._store.write(self._put_many, list(items))

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All pairs whose key starts with *prefix*, in key order. May be mixed with writes."""
        start = prefix
        while True:
            page = self._store.read(self._page, prefix, start)
            for key, data in page:
                value = records.unseal(key, data)
                if value is not None:
                    yield key, value
            if len(page) < _SLICE:
                return
            start = page[-1][0] + b"\0"

    def _get(self, txn: Txn, key: bytes) -> bytes | None:
        data = txn.get(key, db=self._store.others)
        return None if data is None else records.unseal(key, data)

    def _put_many(self, txn: Txn, items: Sequence[tuple[bytes, bytes | None]]) -> None:
        table = self._store.others
        for key, value in items:
            if value is None:
                txn.delete(key, db=table)
            else:
                txn.put(key, records.seal(key, value), db=table)

    def _page(self, txn: Txn, prefix: bytes, start: bytes) -> list[tuple[bytes, bytes]]:
        page: list[tuple[bytes, bytes]] = []
        for pair in scan(txn, self._store.others, start):
            if not pair[0].startswith(prefix) or len(page) == _SLICE:
                break
            page.append(pair)
        return page
