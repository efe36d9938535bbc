"""An origin in memory: the fastest stand-in for a store, and the model that tests compare with.

Objects hold their bytes, or only the formula of them (`put_pattern`), so that a test may own a
terabyte. ETags are hashes of the content and times count up from a fixed second: the same calls
give the same tree in every run.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from tiercache.config import TransferConfig
from tiercache.errors import (
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
    OriginReplyError,
)
from tiercache.origin.protocol import LIST_PAGE_MAX
from tiercache.testing.data import pattern
from tiercache.types import ListPage, ObjectInfo, Progress

_PIECE = 1 << 18
_FIRST_MTIME_NS = 1_700_000_000 * 10**9
_SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the origin; for listings `key` is the prefix."""

    operation: str
    key: bytes
    start: int = 0
    size: int = 0


@dataclass(slots=True)
class _Stored:
    info: ObjectInfo
    body: bytes | int  # the bytes, or the seed of their formula
    flipped: frozenset[int] = frozenset()

    def fill(self, start: int, into: memoryview) -> None:
        end = start + len(into)
        body = self.body
        into[:] = pattern(start, len(into), body) if isinstance(body, int) else body[start:end]
        for offset in self.flipped:
            if start <= offset < end:
                into[offset - start] ^= 1


class MemoryOrigin:
    """Implements `tiercache.origin.protocol.Origin`; `put` and friends act at once.

    `calls` logs every call in order.
    """

    def __init__(self, name: str = "memory://test") -> None:
        self._name = name
        self._objects: dict[bytes, _Stored] = {}
        self._sorted: list[bytes] | None = None
        self._mtime_ns = _FIRST_MTIME_NS
        self.calls: list[Call] = []
        self.closed = False

    # What the outside world does to the store.

    def put(
        self, key: bytes, data: bytes, *, mtime_ns: int | None = None, archived: bool = False
    ) -> ObjectInfo:
        """Store *data*, over an older version if there is one."""
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        return self._store(key, data, len(data), digest, mtime_ns=mtime_ns, archived=archived)

    def put_pattern(self, key: bytes, size: int, seed: int = 0) -> ObjectInfo:
        """Store the first *size* bytes of `pattern(..., seed)` without holding them."""
        digest = hashlib.blake2b(f"{size} {seed}".encode(), digest_size=16).hexdigest()
        return self._store(key, seed, size, digest)

    def delete(self, key: bytes) -> None:
        """Remove *key*, which must exist."""
        del self._objects[key]
        self._sorted = None

    def corrupt(self, key: bytes, offset: int) -> None:
        """Flip a bit of the byte at *offset* without anybody being told."""
        stored = self._objects[key]
        stored.flipped |= {offset}

    def info(self, key: bytes) -> ObjectInfo:
        """What `head` would say, without a call being logged."""
        return self._objects[key].info

    def count(self, operation: str, key: bytes | None = None) -> int:
        """Number of calls of *operation*, of *key* only if given."""
        return sum(c.operation == operation and key in (None, c.key) for c in self.calls)

    def _store(
        self,
        key: bytes,
        body: bytes | int,
        size: int,
        digest: str,
        *,
        mtime_ns: int | None = None,
        archived: bool = False,
    ) -> ObjectInfo:
        self._mtime_ns += _SECOND_NS
        info = ObjectInfo(key, size, digest, mtime_ns or self._mtime_ns, archived)
        if key not in self._objects:
            self._sorted = None
        self._objects[key] = _Stored(info, body)
        return info

    # What the daemon sees.

    @property
    def name(self) -> str:
        """The name given at construction."""
        return self._name

    @property
    def identity(self) -> str:
        """The name given at construction."""
        return self._name

    def describe(self) -> dict[str, str]:
        """Facts for `status`."""
        return {"client": "memory"}

    async def check(self) -> None:
        """Always usable."""
        await self._arrive(Call("check", b""))

    async def list(
        self,
        prefix: bytes,
        token: str | None = None,
        *,
        delimiter: bool = True,
        limit: int = LIST_PAGE_MAX,
    ) -> ListPage:
        """One page, in byte order."""
        await self._arrive(Call("list", prefix))
        keys = self._keys()
        objects: list[ObjectInfo] = []
        prefixes: list[bytes] = []
        resume = max(prefix, bytes.fromhex(token or ""))
        while (at := bisect.bisect_left(keys, resume)) < len(keys):
            key = keys[at]
            if not key.startswith(prefix):
                break
            if len(objects) + len(prefixes) == min(limit, LIST_PAGE_MAX):
                return ListPage(objects, prefixes, resume.hex())
            slash = key.find(b"/", len(prefix)) if delimiter else -1
            if slash >= 0:
                prefixes.append(key[: slash + 1])
                resume = key[:slash] + b"0"  # the byte after `/`: behind the whole subtree
            else:
                objects.append(self._objects[key].info)
                resume = key + b"\0"
        return ListPage(objects, prefixes, None)

    async def head(self, key: bytes) -> ObjectInfo:
        """The current version of *key*."""
        await self._arrive(Call("head", key))
        return self._find(key).info

    async def get_range(
        self,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress | None = None,
    ) -> None:
        """Fill *into*, a checkpoint before each piece of 256 KiB."""
        await self._arrive(Call("get_range", key, start, len(into)))
        stored = self._find(key)
        if stored.info.etag != etag:
            raise ObjectChangedError(f"{key!r} has another version now")
        if stored.info.archived:
            raise ObjectArchivedError(f"{key!r} is archived")
        if start < 0 or start + len(into) > stored.info.size:
            raise OriginReplyError(f"{key!r} has no bytes {start}+{len(into)}")
        for at in range(0, len(into), _PIECE):
            piece = into[at : at + _PIECE]
            stored.fill(start + at, piece)
            if progress is not None:
                progress(at + len(piece))
            await trio.lowlevel.checkpoint()

    def reconfigure(self, config: TransferConfig) -> None:
        """See `Origin`: nothing here is bounded."""

    async def aclose(self) -> None:
        """Remember that it was closed."""
        self.closed = True
        await trio.lowlevel.checkpoint()

    async def _arrive(self, call: Call) -> None:
        self.calls.append(call)
        await trio.lowlevel.checkpoint()

    def _find(self, key: bytes) -> _Stored:
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectNotFoundError(f"no object {key!r}") from None

    def _keys(self) -> Sequence[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._objects)
        return self._sorted
