"""The local tiers as the layers above see them: what is here, reading it, room for more.

    table.py         residency records, in memory and in the catalog
    reader.py        reading and verifying          writer.py, reservation.py   writing
    room.py          admission, making room         removal.py                  eviction, kept files
    housekeeping.py  the background                 audit.py                    orphans, adoption

The store is a facade: it holds the parts together and decides nothing itself. Everything is called
on the loop except `Reservation.write`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tiercache.config import HeatConfig, MoveConfig, RuleConfig, TierConfig
from tiercache.policy import EvictionPolicy
from tiercache.tier.audit import Audit
from tiercache.tier.exchange import Exchange
from tiercache.tier.files import OpenFiles
from tiercache.tier.holdings import Holdings
from tiercache.tier.housekeeping import Housekeeping
from tiercache.tier.layout import Namer
from tiercache.tier.limits import Limits, Surroundings
from tiercache.tier.moving import Moves
from tiercache.tier.pins import Pins
from tiercache.tier.place import Place, read_usage
from tiercache.tier.reader import Reader
from tiercache.tier.records import (
    CLEAN_KEY,
    budget_key,
    decode_shares,
    decode_totals,
    shares_key,
    totals_key,
)
from tiercache.tier.removal import Removal
from tiercache.tier.reservation import Reservation
from tiercache.tier.residency import Residency
from tiercache.tier.room import Room
from tiercache.tier.ruling import Ruling
from tiercache.tier.table import Table
from tiercache.tier.tier import Tier
from tiercache.tier.usage import Usage
from tiercache.tier.warming import Warming
from tiercache.tier.writer import Writer
from tiercache.types import Inode, KeyValues

__all__ = ["Limits", "Reservation", "Surroundings", "TierStore"]


class TierStore:
    """An ordered chain of tiers, hottest first, for the objects of one origin."""

    def __init__(  # noqa: PLR0913 - called by `open` alone
        self,
        tiers: list[Tier],
        kv: KeyValues,
        namer: Namer,
        boot_id: str,
        around: Surroundings,
        *,
        heat: HeatConfig,
        move: MoveConfig,
        rules: Sequence[RuleConfig],
        adopt: bool,
    ) -> None:
        self.tiers = tiers
        self._kv = kv
        self._around = around
        places = {place.ident: place for tier in tiers for place in tier.places}
        self._files = OpenFiles(around.system, around.limits.fds)
        self._table = Table(kv, places, namer, boot_id, self._files, around)
        self._removal = Removal(self._table, self._files, around)
        ruling = Ruling(rules)
        self._table.rule_of = ruling.number
        room = Room(tiers, self._table, self._removal, ruling, around)
        self.usage = Usage(heat, kv, around.limits.heats, around.now())
        self._table.group_of = self.usage.group_of
        self._reader = Reader(self._table, self._files, self._removal, around)
        self._writer = Writer(self._table, self._files, self._removal, room, around)
        unclean = self._recall(places, adopt=adopt)
        audit = Audit(self._table, around, adopt=adopt, needed=bool(unclean))
        parts = (self._table, self._removal, room, self._reader)
        self._keeping = Housekeeping(tiers, parts, audit, unclean, around)
        self._table.on_lost = self._removal.remove
        self._table.on_adopted = self._admit
        self._table.on_bare = self._keeping.describe
        self._writer.on_complete = self._keeping.describe
        room.on_settled = audit.note
        self._keeping.on_interval = self.usage.flush
        self.warming = Warming(tiers, (self._table, room), self.usage, move.margin, around)
        moves = Moves(
            self._table,
            self._files,
            self._removal,
            around,
            drop=self._reader.drop,
            announce=audit.note,
        )
        self.exchange = Exchange(
            tiers, (self._table, self._removal, room, moves), self.usage, move, around
        )
        pins = Pins(tiers, self._table, kv, ruling, around.limits.pins)
        room.home_of = pins.home
        self.holdings = Holdings(
            tiers,
            (self._table, self._removal, room, self.exchange),
            pins,
            ruling,
            self.usage,
            around,
        )

    @classmethod
    def open(  # noqa: PLR0913 - the composition root names every part once
        cls,
        tiers: Sequence[TierConfig],
        *,
        origin_identity: str,
        kv: KeyValues,
        boot_id: str,
        policy: Callable[[str, int], EvictionPolicy],
        heat: HeatConfig | None = None,
        move: MoveConfig | None = None,
        rules: Sequence[RuleConfig] = (),
        adopt: bool = False,
        around: Surroundings | None = None,
    ) -> TierStore:
        """A store over the directories of *tiers*, in time that does not grow with their content.

        *policy* makes the policy of that name for so many bytes. *adopt*: the catalog was rebuilt,
        so objects it knows nothing of are looked for on disk. A directory that cannot be used now
        makes its tier bypassed, not this call fail.
        """
        around = around or Surroundings()
        chain = [
            _open_tier(level, config, origin_identity, policy, around)
            for level, config in enumerate(tiers)
        ]
        store = cls(
            chain,
            kv,
            Namer(origin_identity),
            boot_id,
            around,
            heat=heat or HeatConfig(),
            move=move or MoveConfig(),
            rules=rules,
            adopt=adopt,
        )
        for tier in chain:
            try:
                tier.settle_capacity()
            except OSError as error:
                tier.health.write_failed(error)
        return store

    def _recall(self, places: dict[bytes, Place], *, adopt: bool) -> list[Place]:
        """Take over the accounts of the process before; the places that need an audit."""
        clean = self._kv.get(CLEAN_KEY) is not None
        self._kv.put_many([(CLEAN_KEY, None)])
        unclean = []
        for ident, place in places.items():
            totals = decode_totals(self._kv.get(totals_key(ident)))
            if totals is not None:
                place.totals = totals
            else:
                place.unclaimed.estimate(read_usage(place.home) or 0)
            if adopt or not clean or totals is None:
                unclean.append(place)
        for tier in self.tiers:
            tier.shares.update(decode_shares(self._kv.get(shares_key(tier.name))))
            tier.budget.restore(self._kv.get(budget_key(tier.name)))
        self._removal.recall(self._kv, places)
        return unclean

    def reconfigure(self, tiers: Sequence[TierConfig], heat: HeatConfig, move: MoveConfig) -> None:
        """Take on other bounds of the same tiers; what is above them leaves in the background."""
        for tier, config in zip(self.tiers, tiers, strict=True):
            if config != tier.config:
                try:
                    tier.reconfigure(config)
                except OSError as error:
                    tier.health.write_failed(error)
        self.usage.reconfigure(heat, self._around.now())
        self.exchange.reconfigure(move)
        self.warming.reconfigure(move.margin)
        self._keeping.hurry()

    # -- what is here ----------------------------------------------------------------------------

    def has(self, obj: Inode, block: int) -> bool:
        """Whether *block* of *obj* is resident."""
        item = self._table.get(obj)
        return item is not None and item.has(block)

    def missing(self, obj: Inode, first: int, end: int) -> list[tuple[int, int]]:
        """Maximal runs of blocks within [first, end) that are not resident."""
        item = self._table.get(obj)
        if item is None:
            return [(first, end)] if first < end else []
        return item.missing(first, end)

    def complete(self, obj: Inode) -> bool:
        """Whether every block of *obj* is resident; trivially so when it is empty."""
        item = self._table.get(obj)
        return item is not None and (not obj.size or item.holds_range(0, item.blocks))

    # -- reading ---------------------------------------------------------------------------------

    def read_now(self, obj: Inode, offset: int, into: memoryview) -> bool:
        """Fill *into* from verified blocks in the page cache; False: take the slow way."""
        return self._reader.read_now(obj, offset, into)

    def locate(self, obj: Inode, offset: int, size: int) -> int:
        """A descriptor whose page cache holds the verified bytes [offset, offset + size), else -1.

        Valid until the caller's next checkpoint.
        """
        return self._reader.locate(obj, offset, size)

    async def read(self, obj: Inode, offset: int, into: memoryview) -> bool:
        """Fill *into* from disk, verifying what was not verified yet.

        False: not resident any more, or corrupt, which was dropped and counted. A checkpoint.
        """
        return await self._reader.read(obj, offset, into)

    def backing_fd(self, obj: Inode) -> int | None:
        """A new read-only descriptor the kernel may read *obj* from, or None.

        The caller closes it. Only for files that are complete and verified; others are verified in
        the background, so that a later open gets one.
        """
        item = self._table.get(obj)
        if item is None or item.tier is None or not item.holds_range(0, item.blocks):
            return None
        if item.tier.no_passthrough() is not None:
            return None
        fd = self._reader.backing_fd(item)
        if fd is None and not item.dead and item.unverified:
            self._keeping.verify(item)
        return fd

    def touch(self, obj: Inode) -> None:
        """*obj* was used."""
        item = self._table.get(obj)
        if item is None:
            return
        now = self._around.now()
        self.usage.use(item.ino, item.group, now)
        tier = item.tier
        if tier is None:
            item.refused = 0
            return
        tier.policy.access(item.ino, now)
        self._table.touch(item)
        if tier.level or item.pinned:
            self.exchange.used(item.ino)

    def served(self, obj: Inode, nbytes: int) -> None:
        """*nbytes* of *obj* were read from a tier by other means than this store."""
        item = self._table.loaded(obj.ino)
        if item is not None and item.tier is not None:
            item.tier.hit_bytes += nbytes

    # -- writing ---------------------------------------------------------------------------------

    def reserve(self, obj: Inode, first: int, end: int) -> Reservation | None:
        """Room for blocks [first, end) of *obj*, made by eviction where the policy has victims.

        None: the object bypasses the tiers (too large, no room, no tier that can be written).
        """
        return self._writer.reserve(obj, first, end)

    def adopt(self, obj: Inode) -> bool:
        """Whether something of *obj* is local, found by its sidecar if the catalog was rebuilt."""
        item = self._table.get(obj)
        return item is not None and item.place is not None

    # -- removing --------------------------------------------------------------------------------

    def evict(self, ino: int) -> int:
        """Remove the local copy of *ino*; bytes that are free now or will be once nobody reads."""
        item = self._table.find(ino)
        if item is None or item.dead:
            return 0
        return self._removal.remove(item)

    def drop_block(self, obj: Inode, block: int) -> None:
        """*block* of *obj* must be fetched again."""
        item = self._table.get(obj)
        if item is not None:
            self._reader.drop(item, block)

    def kept(self, ino: int) -> None:
        """The kernel holds the mirror file of *ino*: from now on it is unlinked, never changed."""
        self._removal.kept(ino)

    def gone(self, ino: int) -> None:
        """The kernel let go of it once."""
        self._removal.gone(ino)

    def is_kept(self, ino: int) -> bool:
        """Whether the kernel holds the mirror file of *ino*, to read it by itself."""
        return self._removal.is_kept(ino)

    def on_evicted(self, callback: Callable[[int], None]) -> None:
        """Have *callback* told of every inode whose local copy goes away."""
        self._removal.on_evicted = callback

    async def each_resident(self, tell: Callable[[EvictionPolicy, int], None]) -> None:
        """*tell* the policy of its tier and the number of each that is resident, in slices.

        Not of pinned ones, which no policy knows; perhaps of some that have just left.
        """
        self._table.flush()
        await self._keeping.each_stored(
            lambda ino, header, place: None if header.pinned else tell(place.tier.policy, ino)
        )

    # -- running ---------------------------------------------------------------------------------

    def status(self) -> list[dict[str, Any]]:
        """One entry per tier, hottest first."""
        return [tier.status() for tier in self.tiers]

    async def run(self) -> None:
        """The background work, until cancelled."""
        await self._keeping.run()

    def flush(self) -> None:
        """Hand every change of residency and of heat to the catalog now."""
        self._table.flush()
        self.usage.flush()

    def close(self) -> None:
        """Leave all such that the next open needs no audit. The catalog must still be open."""
        while self._removal.queue:
            path, item = self._removal.queue.popleft()
            self._removal.unlink_queued(path)
            self._removal.unlinked(item)
        self.flush()
        self._kv.put_many([(CLEAN_KEY, b"1")])
        self._keeping.write_usage(self._keeping.usage())
        self._files.close_all()

    def _admit(self, item: Residency) -> None:
        if item.tier is not None and not item.pinned:
            item.tier.policy.admit(item.ino, item.charged, item.group, self._around.now())


def _open_tier(
    level: int,
    config: TierConfig,
    identity: str,
    policy: Callable[[str, int], EvictionPolicy],
    around: Surroundings,
) -> Tier:
    places = [Place(path, identity, around) for path in config.paths]
    tier = Tier(config, places, policy(config.policy, config.capacity), around, level)
    for place in places:
        try:
            place.prepare()
        except OSError as error:
            tier.health.write_failed(error)
    return tier
