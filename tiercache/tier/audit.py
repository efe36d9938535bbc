"""What is on disk without a record: adopted when asked for, swept when it is nothing.

After an unclean stop, or when the catalog was rebuilt, the directories are walked in the
background, one of 256 shards at a time. A file that no record names is unlinked, unless the catalog
was rebuilt and it has a sidecar: then it is kept for the object that will ask for it, counted as
unclaimed, and removed when the room is needed.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from tiercache.tier.layout import DATA, META, SHARDS, overhead
from tiercache.tier.limits import Surroundings
from tiercache.tier.place import Place
from tiercache.tier.residency import Residency
from tiercache.tier.sidecar import Sidecar, decode
from tiercache.tier.system import System
from tiercache.tier.table import Table
from tiercache.types import Inode

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class NameFilter:
    """Names that have a record, and where: 8 MiB whatever their number.

    One bit per hash of a name. A wrong "yes" (1.5 % with a million names) leaves an orphan to the
    next sweep; a wrong "no" cannot happen.
    """

    _BITS = 26

    def __init__(self) -> None:
        self._bits = bytearray(1 << (self._BITS - 3))

    def add(self, place: Place, name: str) -> None:
        """*name* (hex digits of a digest) has a record that says it is at *place*."""
        bit = self._bit(place, name)
        self._bits[bit >> 3] |= 1 << (bit & 7)

    def has(self, place: Place, name: str) -> bool:
        """Whether that was added, or something with the same hash."""
        bit = self._bit(place, name)
        return bool(self._bits[bit >> 3] & 1 << (bit & 7))

    def _bit(self, place: Place, name: str) -> int:
        mixed = int(name[:8], 16) ^ int.from_bytes(place.ident[:4], "big")
        return mixed >> (32 - self._BITS)


@dataclass(slots=True)
class Found:
    """The files of one name in a shard, and the bytes they take."""

    data: bool = False
    meta: bool = False
    other: bool = False
    nbytes: int = 0


def list_shard(place: Place, shard: int, system: System) -> dict[str, Found]:
    """What shard *shard* holds, by name; in a thread. A missing shard holds nothing."""
    found: dict[str, Found] = {}
    with contextlib.suppress(OSError), system.scandir(f"{place.base}/{shard:02x}") as entries:
        for entry in entries:
            stem, suffix = entry.name[:40], entry.name[40:]
            if not _is_name(stem):
                continue
            item = found.setdefault(stem, Found())
            item.data |= suffix == DATA
            item.meta |= suffix == META
            item.other |= suffix not in (DATA, META)
            with contextlib.suppress(OSError):
                item.nbytes += entry.stat(follow_symlinks=False).st_blocks * 512
    return found


def unlink_names(place: Place, names: list[str], system: System) -> None:
    """Unlink every file of *names*; in a thread."""
    for name in names:
        for path in (place.meta(name), place.data(name), place.meta(name) + ".tmp"):
            with contextlib.suppress(OSError):
                system.unlink(path)


def _is_name(stem: str) -> bool:
    return len(stem) == 40 and set(stem) <= set("0123456789abcdef")


class Audit:
    """Judges what was found. On the loop."""

    def __init__(self, table: Table, around: Surroundings, *, adopt: bool, needed: bool) -> None:
        self._table = table
        self._system = around.system
        self._adopting = adopt
        self._known = NameFilter() if needed else None
        if adopt:
            table.adopt = self._adopt

    def note(self, place: Place, name: str) -> None:
        """*name* has, or is about to have, a record that says it is at *place*."""
        if self._known is not None:
            self._known.add(place, name)

    def finish(self) -> None:
        """No more shards will be judged."""
        self._known = None

    def judge(self, place: Place, shard: int, found: dict[str, Found], *, purge: bool) -> list[str]:
        """Count what may be adopted; the names to unlink. *purge*: nothing may."""
        assert self._known is not None
        doomed, unclaimed = [], 0
        for name, item in found.items():
            if self._known.has(place, name):
                continue
            if self._adopting and not purge and item.data and item.meta:
                unclaimed += item.nbytes
            else:
                doomed.append(name)
        place.unclaimed[shard] = unclaimed
        return doomed

    # -- adopting --------------------------------------------------------------------------------

    def _adopt(self, item: Residency, obj: Inode) -> None:
        """Rebuild *item* from a sidecar, if one is about exactly this version."""
        for place in self._table.places:
            if not place.tier.health.readable:
                continue
            with contextlib.suppress(OSError):
                sidecar = decode(self._slurp(place.meta(item.name)))
                if sidecar is not None and sidecar.describes(obj):
                    stat = self._system.stat(place.data(item.name), follow_symlinks=False)
                    if stat.st_size == obj.size:
                        self._claim(item, place, sidecar, stat)
                        return

    def _slurp(self, path: str) -> bytes:
        fd = self._system.open(path, _READ)
        with open(fd, "rb") as file:
            return file.read()

    def _claim(self, item: Residency, place: Place, sidecar: Sidecar, stat: os.stat_result) -> None:
        item.settle(place)
        self.note(place, item.name)
        item.file_id, item.ctime_ns = stat.st_ino, stat.st_ctime_ns
        item.sums, item.sidecar = sidecar.sums, True
        item.present = bytearray(b"\1") * item.blocks
        item.left, item.unverified = 0, item.blocks
        extra = overhead(item.blocks, len(sidecar.key))
        shard = int(item.name[:2], 16) % SHARDS
        nbytes = stat.st_blocks * 512 + extra
        place.unclaimed[shard] = max(0, place.unclaimed[shard] - nbytes)
        self._table.charge(item, nbytes)
        place.totals.blocks += item.blocks
        for block in range(0, item.blocks, 1024):
            self._table.mark(item, block)
        self._table.on_adopted(item)
