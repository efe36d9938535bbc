"""A tree without a kernel: memory origin, real catalog and tiers in a directory of the caller."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tiercache.config import (
    CatalogConfig,
    Config,
    MountConfig,
    OriginConfig,
    TierConfig,
    TransferConfig,
)
from tiercache.stack import Stack, open_stack
from tiercache.testing.faulty import FaultyOrigin
from tiercache.testing.memory import MemoryOrigin
from tiercache.types import GIB, MIB, ROOT_INO
from tiercache.vfs.api import Entry
from tiercache.vfs.filesystem import TieredFilesystem

T = TypeVar("T")


class Clock:
    """Wall-clock seconds that move only when told."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        """The time now."""
        return self.now


async def settled(result: T | Awaitable[T]) -> T:
    """The result of a vfs call, whether it came at once or has to be waited for."""
    return await result if inspect.isawaitable(result) else result


@dataclass
class Tree:
    """Paths over a stack, the way the kernel would walk them."""

    stack: Stack
    origin: Any
    faults: FaultyOrigin
    clock: Clock
    invalidated: list[tuple[int, bytes]]

    @property
    def fs(self) -> TieredFilesystem:
        """What a driver would call."""
        return self.stack.filesystem

    async def entry(self, path: bytes) -> Entry:
        """What the last component of *path* is; `inode` None where it is absent."""
        folder, _, name = path.rpartition(b"/")
        parent = await self.entry(folder) if folder else None
        if parent is not None and parent.inode is None:
            return parent
        ino = ROOT_INO if parent is None or parent.inode is None else parent.inode.ino
        return await settled(self.fs.lookup(ino, name))

    async def ino(self, path: bytes) -> int:
        """The inode of *path*, which must exist."""
        entry = await self.entry(path)
        assert entry.inode is not None, f"{path!r} is absent"
        return entry.inode.ino

    async def open(self, path: bytes) -> int:
        """Open the file *path*."""
        ino = await self.ino(path)
        await settled(self.fs.open(ino))
        self.fs.opened(ino)
        return ino

    async def pread(self, ino: int, offset: int, size: int) -> bytes:
        """One read request."""
        return bytes(await settled(self.fs.read(ino, offset, size)))

    async def read(self, ino: int, step: int = 128 << 10) -> bytes:
        """All of an inode, in requests of *step* bytes."""
        out = bytearray()
        while data := await self.pread(ino, len(out), step):
            out += data
        return bytes(out)

    async def cat(self, path: bytes) -> bytes:
        """Open *path*, read all of it and close it."""
        ino = await self.open(path)
        try:
            return await self.read(ino)
        finally:
            self.fs.release(ino)

    async def ls(self, path: bytes = b"") -> list[bytes]:
        """Names in the directory *path*, without `.` and `..`."""
        ino = await self.ino(path) if path else ROOT_INO
        handle = await settled(self.fs.opendir(ino))
        entries = list(await settled(self.fs.readdir(ino, handle, 0)))
        self.fs.releasedir(handle)
        assert [e.name for e in entries[:2]] == [b".", b".."]
        return [e.name for e in entries[2:]]


class Trees:
    """Opens trees over one origin and one cache directory; reopening is a restart."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.origin: Any = MemoryOrigin()
        self.clock = Clock()

    def config(self, *, capacity: int = GIB, policy: str = "pin", **mount: Any) -> Config:
        """Small bounds, no waits; *mount* are fields of MountConfig."""
        return Config(
            origin=OriginConfig(url="memory://test"),
            mount=MountConfig(mountpoint=Path("/nowhere"), **mount),
            tiers=(
                TierConfig(paths=(self.cache,), capacity=capacity, reserve_free=0, policy=policy),
            ),
            # No hedging: how many requests are sent must not depend on how busy the machine is.
            transfer=TransferConfig(
                memory=64 * MIB, backoff_base_s=0.001, backoff_max_s=0.002, hedge_budget=0.0
            ),
            catalog=CatalogConfig(map_size=64 * MIB, flush_interval_s=0.01),
        )

    @asynccontextmanager
    async def open(
        self,
        *,
        fresh: bool = True,
        transfer: dict[str, Any] | None = None,
        prefetch: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Tree]:
        """A tree for a while; its origin can be made to fail through `faults`."""
        config = self.config(**options)
        config = replace(
            config,
            transfer=replace(config.transfer, **transfer or {}),
            prefetch=replace(config.prefetch, **prefetch or {}),
        )
        faults = FaultyOrigin(self.origin)
        async with open_stack(config, faults, fresh=fresh, now=self.clock) as stack:
            invalidated: list[tuple[int, bytes]] = []
            stack.filesystem.on_invalidate(lambda p, n: invalidated.append((p, n)))
            yield Tree(stack, self.origin, faults, self.clock, invalidated)
