"""Which fetch brings which block: at most one at any time."""

from __future__ import annotations

from collections.abc import Iterator

from tiercache.transfer.fetch import Fetch
from tiercache.types import Inode


class Flights:
    """The fetches of all blocks that are queued, under way, or held in memory alone."""

    def __init__(self) -> None:
        self._by_block: dict[tuple[int, int], Fetch] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def get(self, ino: int, block: int) -> Fetch | None:
        """What brings *block*, if anything does."""
        return self._by_block.get((ino, block))

    def add(self, fetch: Fetch, first: int, end: int) -> None:
        """Blocks [first, end) come with *fetch*."""
        for block in range(first, end):
            self._by_block[fetch.obj.ino, block] = fetch

    def remove(self, fetch: Fetch) -> None:
        """Nothing more comes with *fetch*."""
        for block in range(fetch.first, fetch.end):
            if self._by_block.get((fetch.obj.ino, block)) is fetch:
                del self._by_block[fetch.obj.ino, block]

    def gaps(self, obj: Inode, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Maximal runs within [first, end) that nothing brings."""
        run = first
        for block in range(first, end):
            if (obj.ino, block) in self._by_block:
                if run < block:
                    yield run, block
                run = block + 1
        if run < end:
            yield run, end

    def of(self, ino: int, first: int, end: int) -> Iterator[Fetch]:
        """Each fetch that brings some of the blocks [first, end), once."""
        block = first
        while block < end:
            fetch = self._by_block.get((ino, block))
            if fetch is not None:
                yield fetch
            block = block + 1 if fetch is None else max(fetch.end, block + 1)
