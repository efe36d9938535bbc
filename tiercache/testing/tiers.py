"""Tiers for tests: a catalog in memory, an operating system that fails on demand, a whole cache.

`Cache` opens a real `TierStore` on real directories, fills it with self-describing data, closes and
reopens it in the ways a machine does, and measures what is really on disk.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiercache.config import RuleConfig, TierConfig
from tiercache.policy import EvictionPolicy
from tiercache.testing.data import check, pattern
from tiercache.tier.store import Limits, Surroundings, TierStore
from tiercache.tier.system import System
from tiercache.types import BLOCK_SIZE, Inode, Kind, block_span
from tiercache_policies.adaptive import Adaptive
from tiercache_policies.lru import Lru
from tiercache_policies.pin import Pin

_POLICIES: dict[str, Callable[[int], EvictionPolicy]] = {
    "adaptive": Adaptive,
    "lru": Lru,
    "pin": Pin,
}


class MemoryKeyValues:
    """`tiercache.types.KeyValues` in a dict; `copy()` is a backup to restore."""

    def __init__(self, pairs: dict[bytes, bytes] | None = None) -> None:
        self.pairs = dict(pairs or {})

    def get(self, key: bytes) -> bytes | None:
        """The value of *key*."""
        return self.pairs.get(key)

    def put_many(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write or delete."""
        for key, value in items:
            if value is None:
                self.pairs.pop(key, None)
            else:
                self.pairs[key] = value

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs below *prefix* as they are now."""
        return iter(
            [(key, self.pairs[key]) for key in sorted(self.pairs) if key.startswith(prefix)]
        )

    def copy(self) -> MemoryKeyValues:
        """A backup."""
        return MemoryKeyValues(self.pairs)


class FaultySystem(System):
    """Counts the calls, and fails the one that `fail_at` names, or all whose name is in `broken`.

    Every call is numbered from 1 in the order it was made.
    """

    def __init__(self, fail_at: int = 0, error: int = 5) -> None:
        self.fail_at = fail_at
        self.error = error
        self.broken: set[str] = set()
        self.calls = 0
        self.made: Counter[str] = Counter()
        self.failed: str | None = None

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if not hasattr(System, name) or name.startswith("_"):
            return value
        return lambda *args, **kwargs: self._call(name, value, *args, **kwargs)

    def _call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        self.made[name] += 1
        if self.calls == self.fail_at or name in self.broken:
            self.failed = name
            if name == "close":
                function(*args)  # the descriptor is gone whatever close says
            raise OSError(self.error, os.strerror(self.error))
        return function(*args, **kwargs)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        """The time."""
        return self.now


class Cache:
    """A store on directories of its own, and the world around it."""

    def __init__(
        self,
        root: Path,
        layout: Sequence[int] = (1,),
        *,
        identity: str = "s3://test",
        system: System | None = None,
        limits: Limits | None = None,
        rules: Sequence[RuleConfig] = (),
        **tier: Any,
    ) -> None:
        """*layout*: number of paths of each tier. *tier*: fields of every TierConfig."""
        settings: dict[str, Any] = {
            "capacity": 256 << 20,
            "reserve_free": 0,
            "policy": "pin",
            **tier,
        }
        self.configs = [
            TierConfig(
                name=f"tier{index}",
                paths=tuple(root / f"tier{index}-{path}" for path in range(paths)),
                **settings,
            )
            for index, paths in enumerate(layout)
        ]
        self.rules = rules
        self.kv = MemoryKeyValues()
        self.boot = "boot-1"
        self.identity = identity
        self.clock = Clock()
        self.system = system or System()
        self.limits = limits or Limits()
        self.evicted: list[int] = []
        self.store = self.open()

    def set_capacities(self, *capacities: int) -> None:
        """Open again with tiers of different sizes."""
        self.store.close()
        pairs = zip(self.configs, capacities, strict=True)
        self.configs = [replace(config, capacity=nbytes) for config, nbytes in pairs]
        self.open()

    # -- the life of a process -------------------------------------------------------------------

    def open(self, *, adopt: bool = False) -> TierStore:
        """Open a store on what is there; it becomes `store`."""
        self.store = TierStore.open(
            self.configs,
            origin_identity=self.identity,
            kv=self.kv,
            boot_id=self.boot,
            policy=lambda name, capacity: _POLICIES[name](capacity),
            rules=self.rules,
            adopt=adopt,
            around=Surroundings(now=self.clock, system=self.system, limits=self.limits),
        )
        self.store.on_evicted(self.evicted.append)
        return self.store

    def restart(self, *, boot: str | None = None, adopt: bool = False) -> TierStore:
        """Close in order and open again."""
        self.store.close()
        self.boot = boot or self.boot
        return self.open(adopt=adopt)

    def crash(self, *, boot: str | None = None, adopt: bool = False) -> TierStore:
        """Open again without having closed: what was not flushed is forgotten."""
        self.boot = boot or self.boot
        return self.open(adopt=adopt)

    # -- content ---------------------------------------------------------------------------------

    def put(self, obj: Inode, first: int = 0, end: int | None = None) -> bool:
        """Write blocks [first, end) of *obj*; whether all of them are resident then."""
        end = obj.blocks if end is None else end
        reservation = self.store.reserve(obj, first, end)
        if reservation is None:
            return False
        good = all(reservation.write(b, body(obj, b)) for b in range(first, end))
        reservation.commit()
        reservation.close()
        return good and not self.store.missing(obj, first, end)

    def fill(self, obj: Inode) -> bool:
        """Write what is missing of *obj*; whether all of it is resident then."""
        runs = self.store.missing(obj, 0, obj.blocks)
        return all(self.put(obj, first, end) for first, end in runs)

    async def get(self, obj: Inode, offset: int = 0, size: int | None = None) -> bool:
        """Read through the slow way; False is a miss, wrong bytes are an AssertionError."""
        size = obj.size - offset if size is None else size
        out = memoryview(bytearray(size))
        if not await self.store.read(obj, offset, out):
            return False
        check(out, offset, obj.ino)
        return True

    def get_now(self, obj: Inode, offset: int = 0, size: int | None = None) -> bool:
        """Read through the inline way."""
        size = obj.size - offset if size is None else size
        out = memoryview(bytearray(size))
        if not self.store.read_now(obj, offset, out):
            return False
        check(out, offset, obj.ino)
        return True

    def backing_matches(self, obj: Inode) -> bool:
        """Whether there is a backing file; AssertionError when it holds anything wrong."""
        fd = self.store.backing_fd(obj)
        if fd is None:
            return False
        with open(fd, "rb") as file:
            data = file.read()
        assert len(data) == obj.size
        check(data, 0, obj.ino)
        return True

    # -- the disk --------------------------------------------------------------------------------

    def files(self, suffix: str = ".data") -> list[Path]:
        """Every file below the tiers with that suffix."""
        roots = [path for config in self.configs for path in config.paths]
        return sorted(file for root in roots for file in root.glob(f"*/v1/*/*{suffix}"))

    def on_disk(self) -> int:
        """Bytes allocated to mirror files and sidecars."""
        return sum(f.stat().st_blocks * 512 for s in (".data", ".meta") for f in self.files(s))

    @property
    def used(self) -> int:
        """Bytes the store counts."""
        return sum(tier["used"] for tier in self.store.status())


def file(ino: int, size: int, *, key: bytes | None = None, etag: str = "v1") -> Inode:
    """An object whose content is `pattern` with its inode number as the seed."""
    key = b"key-%d" % ino if key is None else key
    return Inode(ino, 1, Kind.FILE, size, 0, etag, key)


def body(obj: Inode, block: int) -> memoryview:
    """What *block* of *obj* holds."""
    start, end = block_span(obj.size, block)
    return memoryview(pattern(start, end - start, obj.ino))


#: Sizes around what can go wrong at the edges of blocks.
SIZES = (1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE + BLOCK_SIZE // 2)
