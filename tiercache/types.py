"""The nouns every layer shares. Pure data: no I/O, no third party.

Keys and names are bytes, exactly as the origin stores them; they are never normalised.
Times are nanoseconds since the epoch, sizes are bytes, both unbounded Python integers that are
stored as 64 bits.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

#: Unit of residency, checksums and single flight. 1 MiB is what one FUSE request carries at most
#: (`max_pages` = 256), so a warm read touches at most two blocks.
BLOCK_SIZE = MIB

#: Longest name a directory entry may have (Linux NAME_MAX); longer components are hidden.
NAME_MAX = 255

#: Inode number of the mounted directory, as the FUSE protocol fixes it.
ROOT_INO = 1

T = TypeVar("T")

#: A result now, or a coroutine when it must wait: hot paths stay synchronous.
MaybeAwaitable: TypeAlias = T | Awaitable[T]

#: Called with the number of bytes of the caller's buffer that are filled and final so far.
#: May run on a pool thread; must not block for long and must not touch loop state.
Progress: TypeAlias = Callable[[int], None]


class Kind(enum.IntEnum):
    """What an inode is."""

    FILE = 1
    DIRECTORY = 2


class Priority(enum.IntEnum):
    """Who goes first when connections are short; lower is sooner."""

    METADATA = 0
    DEMAND = 1
    PREFETCH = 2
    BACKGROUND = 3


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One version of one object as the origin describes it.

    `etag` is opaque, without quotes; together with `key` it names the bytes for ever.
    `archived` objects are listed but cannot be read before a restore.
    """

    key: bytes
    size: int
    etag: str
    mtime_ns: int
    archived: bool = False


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing; `token` continues it, None ends it."""

    objects: Sequence[ObjectInfo]
    prefixes: Sequence[bytes]
    token: str | None


@dataclass(frozen=True, slots=True)
class Inode:
    """One immutable version of one object, or a directory.

    `key` is relative to the mounted prefix; that of a directory ends in `/`, the root's is empty.
    """

    ino: int
    parent: int
    kind: Kind
    size: int
    mtime_ns: int
    etag: str
    key: bytes
    archived: bool = False

    @property
    def blocks(self) -> int:
        """Number of BLOCK_SIZE blocks, the last one possibly short."""
        return -(-self.size // BLOCK_SIZE)


def block_span(size: int, block: int) -> tuple[int, int]:
    """Start and end offset of *block* in an object of *size* bytes."""
    start = block * BLOCK_SIZE
    return start, min(start + BLOCK_SIZE, size)


class KeyValues(Protocol):
    """An ordered, durable map of bytes: how layers that must not know the catalog persist.

    Called on the loop. A write is visible to reads at once and durable some time later; what one
    `put_many` writes is found either whole or not at all after a crash.
    """

    def get(self, key: bytes) -> bytes | None:
        """The value of *key*, None if there is none."""

    def put_many(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write all *items* in order; None deletes the key."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All pairs whose key starts with *prefix*, by key.

        The iterator may be held across checkpoints; writes meanwhile may or may not be seen.
        """
