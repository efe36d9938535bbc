"""What a fill will take: bytes, requests, money, and where it goes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tiercache.types import BLOCK_SIZE


@dataclass(slots=True)
class Survey:
    """Counted over all pieces; `unknown` are names that are no file, `archived` cannot be read."""

    objects: int = 0
    bytes: int = 0
    missing_objects: int = 0
    missing_bytes: int = 0
    requests: int = 0
    unknown: int = 0
    archived: int = 0

    @property
    def complete(self) -> bool:
        """Whether everything that was named is resident."""
        return not (self.missing_bytes or self.unknown or self.archived)

    def add(self, nbytes: int, missing: Iterable[tuple[int, int]], size: int, part: int) -> None:
        """Count a piece of *nbytes* of an object of *size*; *missing* are runs of blocks."""
        self.objects += 1
        self.bytes += nbytes
        runs = list(missing)
        self.missing_objects += bool(runs)
        for first, end in runs:
            self.missing_bytes += min(end * BLOCK_SIZE, size) - first * BLOCK_SIZE
            self.requests += sum(1 for _ in cuts(first, end, part))

    def cost(self, per_get: float, per_gb: float) -> float:
        """What that costs, in the currency of the prices; a GB has 10^9 bytes."""
        return self.requests * per_get + self.missing_bytes / 1e9 * per_gb

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "complete": self.complete}


def cuts(first: int, end: int, part: int) -> Iterable[tuple[int, int]]:
    """Blocks [first, end) as the requests that bring them: none crosses a multiple of *part*."""
    while first < end:
        stop = min(end, (first // part + 1) * part)
        yield first, stop
        first = stop


def spread(nbytes: int, free: Iterable[tuple[str, int]]) -> tuple[dict[str, int], int]:
    """How *nbytes* fill what is *free* in tiers, hottest first, and what is left over."""
    where = {}
    for name, room in free:
        taken = min(nbytes, room)
        if taken:
            where[name] = taken
            nbytes -= taken
    return where, nbytes
