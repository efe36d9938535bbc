"""One directory of a tier, and the bytes in it.

Every byte is in exactly one account: `totals` (objects with a record), `reserved` (promised to a
reservation), `unlinked` (removed, but still held by the kernel, a reader or the unlinking thread),
`unclaimed` (files of ours that no record names) and `foreign` (other origins). Their sum never
exceeds the tier's capacity as far as this process can help it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from tiercache.tier.layout import (
    DATA,
    META,
    PAGE,
    SHARDS,
    VERSION,
    filesystem_type,
    is_origin_id,
    origin_id,
    why_no_backing,
)
from tiercache.tier.limits import Surroundings
from tiercache.tier.records import Totals

if TYPE_CHECKING:
    from tiercache.tier.tier import Tier

_DIRECTORY_MODE = 0o700


class Place:
    """A path of a tier, for one origin."""

    tier: Tier  # set by the tier it belongs to

    def __init__(self, root: Path, identity: str, around: Surroundings) -> None:
        self.root = root
        self.home = root / origin_id(identity)
        self.base = str(self.home / VERSION)
        self.ident = hashlib.blake2b(os.fsencode(root.absolute()), digest_size=8).digest()
        self.totals = Totals()
        self.reserved = 0
        self.unlinked = 0
        self.unclaimed = Unclaimed()
        self.foreign: dict[str, int] = {}
        self._around = around
        self._system = around.system
        self._disk_free = 0
        self._asked_at = float("-inf")
        self._spent = 0
        self._trash = 0
        self.no_backing: str | None = None
        #: Flags of a read that must not wait for a disk; 0 where there is none.
        self.read_flags = os.RWF_NOWAIT
        #: Whether space is allocated before a block is written, which makes the write cheaper.
        self.allocates = True

    def prepare(self) -> None:
        """Create the directories and look around, in time that does not grow with the content."""
        self._make_home()
        kind = filesystem_type(self.root)
        self.no_backing = why_no_backing(kind)
        # A file system in memory knows no RWF_NOWAIT, and would clear what it allocates.
        in_memory = kind in ("tmpfs", "ramfs")
        self.read_flags = 0 if in_memory else os.RWF_NOWAIT
        self.allocates = not in_memory
        with self._system.scandir(self.root) as entries:
            for entry in entries:
                if is_origin_id(entry.name) and entry.name != self.home.name and entry.is_dir():
                    self.foreign[entry.name] = read_usage(Path(entry.path)) or PAGE

    @property
    def used(self) -> int:
        """Bytes taken from the capacity."""
        foreign = sum(self.foreign.values()) if self.foreign else 0
        own = self.totals.nbytes + self.reserved + self.unlinked + self.unclaimed.total
        return own + foreign

    # -- names -----------------------------------------------------------------------------------

    def data(self, name: str) -> str:
        """Path of the mirror file called *name* (40 hex digits)."""
        return f"{self.base}/{name[:2]}/{name}{DATA}"

    def meta(self, name: str) -> str:
        """Path of its sidecar."""
        return f"{self.base}/{name[:2]}/{name}{META}"

    def trash(self) -> str:
        """A new path for something on its way out. On the loop."""
        self._trash += 1
        return f"{self.base}/trash-{os.getpid()}-{self._trash}"

    def make_shard(self, name: str) -> None:
        """Create the directory that holds *name*; on any thread."""
        shard = Path(self.base, name[:2])
        try:
            self._make(shard)
        except FileNotFoundError:
            self._make_home()
            self._make(shard)

    def _make_home(self) -> None:
        self._system.makedirs(self.root, _DIRECTORY_MODE, exist_ok=True)
        self._make(self.home)
        self._make(Path(self.base))

    def _make(self, path: Path) -> None:
        with contextlib.suppress(FileExistsError):
            self._system.mkdir(path, _DIRECTORY_MODE)

    # -- the disk below --------------------------------------------------------------------------

    def disk_room(self, reserve_free: int) -> int:
        """Bytes that may still be written before the disk has less than *reserve_free* free.

        Raises OSError when the disk does not say.
        """
        limits = self._around.limits
        age = self._around.now() - self._asked_at
        if not 0 <= age < limits.statvfs_interval_s or self._spent >= limits.statvfs_bytes:
            self.ask_disk()
        return self._disk_free - self._spent - reserve_free

    def ask_disk(self) -> None:
        """Refresh what is known of the disk's free space."""
        stat = self._system.statvfs(self.root)
        self._disk_free = stat.f_bavail * stat.f_frsize if stat.f_favail or not stat.f_files else 0
        self._asked_at = self._around.now()
        # Promised bytes may not be on disk yet: counting them all is on the safe side.
        self._spent = self.reserved

    def spend(self, nbytes: int) -> None:
        """Promise *nbytes*."""
        self.reserved += nbytes
        self._spent += nbytes


class Unclaimed:
    """Bytes of files that no record names, by shard, so that an audit can correct part by part."""

    def __init__(self) -> None:
        self._shards = array("Q", bytes(8 * SHARDS))
        self.total = 0

    def __getitem__(self, shard: int) -> int:
        return self._shards[shard]

    def __setitem__(self, shard: int, nbytes: int) -> None:
        self.total += nbytes - self._shards[shard]
        self._shards[shard] = nbytes

    def estimate(self, nbytes: int) -> None:
        """Spread *nbytes* over the shards until they are looked at."""
        for shard in range(SHARDS):
            self[shard] = -(-nbytes // SHARDS)


def read_usage(home: Path) -> int | None:
    """Bytes an origin directory says it holds; None when it does not say."""
    try:
        return max(0, int((home / "usage").read_text()))
    except (OSError, ValueError):
        return None


def write_usage(home: Path, nbytes: int) -> None:
    """Note how much an origin directory holds; OSError when that cannot be written."""
    (home / "usage").write_text(f"{nbytes}\n")
