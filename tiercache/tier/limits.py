"""The bounds of the local tiers and what they take from their surroundings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from tiercache.tier.system import System
from tiercache.types import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of memory, descriptors, queues and background work. Bytes and seconds."""

    #: Residency records in memory that nothing needs right now; about 500 bytes for a small object.
    objects: int = 32768
    #: Objects, and datasets, whose heat is remembered; about 200 bytes each.
    heats: int = 65536
    #: Objects that may be pinned.
    pins: int = 262_144
    #: Open mirror files kept for reading.
    fds: int = 512
    #: Entries of each background queue; what does not fit is done on a later occasion.
    queue: int = 16384
    #: Files up to this size are unlinked on the loop (50 us); larger ones by a thread, because
    #: freeing their extents takes milliseconds.
    unlink_inline: int = 4 * MIB
    #: Victims looked at in one attempt to make room.
    victims: int = 64
    #: Kept free ahead of need where the policy evicts, as a fraction of the capacity and at most.
    headroom_fraction: float = 1 / 32
    headroom_max: int = 256 * MIB
    flush_interval_s: float = 0.25
    usage_interval_s: float = 5.0
    #: Free space of the disk is asked for again after this long or this many bytes.
    statvfs_interval_s: float = 1.0
    statvfs_bytes: int = 64 * MIB
    verify_bytes_per_s: float = 512.0 * MIB
    probe_min_s: float = 1.0
    probe_max_s: float = 60.0
    warn_interval_s: float = 60.0
    #: How long bytes of unlinked files found at start wait for a kernel to claim them.
    claim_s: float = 60.0

    def headroom(self, capacity: int) -> int:
        """Bytes to keep free of a tier of *capacity* bytes."""
        return min(self.headroom_max, int(capacity * self.headroom_fraction))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the tiers take from outside: clock, threads, system calls, bounds."""

    now: Callable[[], float] = time.time
    threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(8))
    system: System = field(default_factory=System)
    limits: Limits = field(default_factory=Limits)
