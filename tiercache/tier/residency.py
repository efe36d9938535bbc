"""Which blocks of one object are on local disk, and what they must hash to.

One byte per block for presence and one for "verified since it can have changed", because a search
for a zero byte is the fastest question Python can ask of a range: 60 ns, whatever its length.
"""

from __future__ import annotations

from array import array
from threading import Lock

from tiercache.tier.layout import allocated
from tiercache.tier.place import Place
from tiercache.tier.tier import Tier
from tiercache.types import BLOCK_SIZE, block_span


class Residency:
    """The local copy of one object version, whole, partial or none.

    `place` is None while nothing is local. `holds` counts what keeps the bytes of an evicted copy
    on disk: reservations, reads in threads, the kernel, the unlinking thread.
    """

    __slots__ = (
        "barred",
        "blocks",
        "bypass",
        "charged",
        "ctime_ns",
        "dead",
        "dirty",
        "fd",
        "file_id",
        "group",
        "holds",
        "ino",
        "left",
        "moved_at",
        "name",
        "opening",
        "pinned",
        "place",
        "present",
        "proven",
        "queued",
        "reads",
        "recent",
        "refused",
        "reservations",
        "rule",
        "sidecar",
        "size",
        "spare",
        "sums",
        "tier",
        "unverified",
        "verified",
    )

    def __init__(self, ino: int, size: int, name: str) -> None:
        self.ino = ino
        self.size = size
        self.name = name
        self.blocks = -(-size // BLOCK_SIZE)
        self.place: Place | None = None
        self.tier: Tier | None = None
        self.present = self.verified = bytearray()
        self.sums = array("Q")
        self.left = self.blocks  # blocks not resident
        self.unverified = 0  # resident blocks not verified
        self.spare: set[int] | None = None  # charged, but no longer resident
        self.charged = 0
        self.file_id = 0  # st_ino of the mirror file
        self.ctime_ns = 0  # of the file when its verification began
        self.proven = False  # complete, and all of it verified as of ctime_ns
        self.sidecar = False
        self.fd = -1
        self.recent = False
        self.holds = self.reads = self.reservations = 0
        self.queued = 0  # background queues that will look at it
        self.dirty: set[int] = set()  # segments to persist
        self.dead = False
        self.opening: Lock | None = None  # held while a reservation opens the file, and to die
        self.barred = False  # its file could not be opened just now
        self.rule = 0  # number of the rule that speaks for it
        self.group = 0  # number of its dataset
        self.pinned = False  # nobody's victim, and of no interest to a policy
        self.moved_at = 0.0  # when it came to its tier from another
        self.bypass: str | None = None  # why no tier took it when it was last tried
        self.refused = 0  # bit n: the policy of tier n did not want it since its last use

    @property
    def complete(self) -> bool:
        """Whether every block is resident."""
        return not self.left

    @property
    def busy(self) -> bool:
        """Whether somebody counts on this record staying in memory."""
        return bool(self.holds or self.queued or self.dirty)

    @property
    def _reachable(self) -> bool:
        return self.tier is not None and self.tier.health.readable and not self.barred

    def settle(self, place: Place) -> None:
        """Be at *place* from now on, with nothing resident yet."""
        self.place, self.tier = place, place.tier
        self.present = bytearray(self.blocks)
        self.verified = bytearray(self.blocks)
        self.sums = array("Q", bytes(8 * self.blocks))

    def unsettle(self) -> None:
        """Be nowhere again."""
        self.place = self.tier = None
        self.present = self.verified = bytearray()
        self.sums = array("Q")
        self.left, self.unverified, self.spare = self.blocks, 0, None
        self.charged = self.file_id = self.ctime_ns = 0
        self.proven = self.sidecar = False

    def has(self, block: int) -> bool:
        """Whether *block* can be read from here."""
        return self._reachable and bool(self.present[block])

    def holds_range(self, first: int, end: int) -> bool:
        """Whether all blocks of [first, end) can be read from here."""
        if not self._reachable:
            return False
        return self.present.find(0, first, end) < 0

    def missing(self, first: int, end: int) -> list[tuple[int, int]]:
        """Maximal runs of blocks in [first, end) that cannot be read from here."""
        if not self._reachable:
            return [(first, end)] if first < end else []
        runs = []
        start = self.present.find(0, first, end)
        while start >= 0:
            stop = self.present.find(1, start, end)
            stop = end if stop < 0 else stop
            runs.append((start, stop))
            start = self.present.find(0, stop, end)
        return runs

    def cost(self, block: int) -> int:
        """Bytes of disk that writing *block* would take."""
        if self.place is not None and self.present[block]:
            return 0
        if self.spare and block in self.spare:
            return 0
        start, end = block_span(self.size, block)
        return allocated(end - start)

    def cost_of_range(self, first: int, end: int) -> int:
        """Bytes of disk that writing the blocks of [first, end) would take."""
        return sum(self.cost(block) for block in range(first, end))

    def put(self, block: int, checksum: int, *, verified: bool) -> None:
        """*block* is on disk now."""
        self.sums[block] = checksum
        if not self.present[block]:
            self.present[block] = 1
            self.left -= 1
            if self.spare:
                self.spare.discard(block)
        elif not self.verified[block]:
            self.unverified -= 1
        self.verified[block] = verified
        self.unverified += not verified

    def drop(self, block: int) -> None:
        """*block* is not resident any more; its bytes stay charged: the file is never punched."""
        self.present[block] = 0
        self.left += 1
        self.unverified -= not self.verified[block]
        self.verified[block] = 0
        self.spare = self.spare or set()
        self.spare.add(block)
        self.proven = False

    def mark_verified(self, block: int) -> None:
        """*block* was read and hashes to what it must."""
        if self.present[block] and not self.verified[block]:
            self.verified[block] = 1
            self.unverified -= 1

    def distrust(self) -> None:
        """Nothing counts as verified any more."""
        self.verified = bytearray(self.blocks)
        self.unverified = self.blocks - self.left
        self.proven = False
