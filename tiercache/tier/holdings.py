"""What a person may ask of single objects: keep it, let it go, remove it, say where it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import trio

from tiercache.config_units import format_size
from tiercache.errors import HoldingError
from tiercache.tier.exchange import Exchange
from tiercache.tier.limits import Surroundings
from tiercache.tier.pins import Pins, whole_size
from tiercache.tier.removal import Removal
from tiercache.tier.residency import Residency
from tiercache.tier.room import Room
from tiercache.tier.ruling import Ruling
from tiercache.tier.table import Table
from tiercache.tier.tier import Tier
from tiercache.tier.usage import Usage
from tiercache.types import Inode, block_span

#: Objects dealt with between two looks at the rest of the world.
_SLICE = 64


class Holdings:
    """Orders about objects. On the loop."""

    def __init__(
        self,
        tiers: list[Tier],
        parts: tuple[Table, Removal, Room, Exchange],
        pins: Pins,
        ruling: Ruling,
        usage: Usage,
        around: Surroundings,
    ) -> None:
        self._tiers = tiers
        self._table, self._removal, self._room, self._exchange = parts
        self._usage = usage
        self._now = around.now
        self._ruling = ruling
        self.pins = pins

    # -- pins ------------------------------------------------------------------------------------

    async def pin(self, objects: Sequence[Inode], name: str | None = None) -> dict[str, Any]:
        """Keep *objects* in tier *name*, or in the hottest that holds all of them.

        All or none: HoldingError says with numbers what does not fit. Others make room at once.
        """
        tier = self._tier_for(objects, name)
        for count, obj in enumerate(objects):
            self.pins.add(obj, tier)
            self._exchange.used(obj.ino)
            if count % _SLICE == 0:
                await trio.lowlevel.checkpoint()
        await self._make_room(tier)
        nbytes = sum(map(whole_size, objects))
        return {"tier": tier.name, "objects": len(objects), "bytes": nbytes}

    def _tier_for(self, objects: Sequence[Inode], name: str | None) -> Tier:
        tiers = [tier for tier in self._tiers if name in (None, tier.name)]
        if not tiers:
            known = ", ".join(tier.name for tier in self._tiers)
            raise HoldingError(f"there is no tier {name!r}; tiers: {known}")
        new = sum(self.pins.get(obj) is None for obj in objects)
        if len(self.pins) + new > self.pins.limit:
            raise HoldingError(f"{new} more pins exceed the limit of {self.pins.limit}")
        lacking = [self._lacking(objects, tier) for tier in tiers]
        for tier, (need, free) in zip(tiers, lacking, strict=True):
            if need <= free:
                return tier
        facts = "; ".join(
            f"tier {tier.name} has {format_size(max(0, free))} of {format_size(tier.capacity)}"
            f" left for pins, and {format_size(need)} are asked for"
            for tier, (need, free) in zip(tiers, lacking, strict=True)
        )
        raise HoldingError(f"cannot pin {len(objects)} files: {facts}")

    def _lacking(self, objects: Sequence[Inode], tier: Tier) -> tuple[int, int]:
        """Bytes that pinning *objects* to *tier* promises beyond what is, and those it may."""
        pinned = [self.pins.get(obj) for obj in objects]
        need = sum(
            whole_size(obj) - (pin.nbytes if pin is not None and pin.tier == tier.name else 0)
            for obj, pin in zip(objects, pinned, strict=True)
        )
        return need, tier.capacity - tier.promised

    async def _make_room(self, tier: Tier) -> None:
        """Have others leave *tier* as far as pins need it, the least worth first.

        A policy that never evicts is overruled: a person asked for it. What the kernel holds is
        left alone, for its bytes would stay.
        """
        if tier.unkept <= 0:
            return
        for ino in await self._by_worth(tier):
            if tier.unkept <= 0:
                return
            item = self._table.find(ino)
            if item is not None and item.tier is tier and self._may_leave(item):
                self._removal.remove(item)
                tier.evictions += 1
                await trio.lowlevel.checkpoint()

    async def _by_worth(self, tier: Tier) -> list[int]:
        """Those that are not pinned, what the policy of *tier* thinks least of first."""
        self._table.flush()
        worth = []
        for count, (ino, header) in enumerate(self._table.stored()):
            if not header.pinned:
                worth.append((tier.policy.score(ino, self._now()), ino))
            if count % _SLICE == 0:
                await trio.lowlevel.checkpoint()
        return [ino for _score, ino in sorted(worth)]

    def _may_leave(self, item: Residency) -> bool:
        return not (item.pinned or item.reservations or self._removal.is_kept(item.ino))

    async def unpin(self, keys: Iterable[bytes]) -> dict[str, Any]:
        """Let objects be treated as all others; how many of them were pinned."""
        count = 0
        for key in keys:
            count += self.pins.remove(key)
            await trio.lowlevel.checkpoint()
        return {"objects": count}

    # -- eviction --------------------------------------------------------------------------------

    async def evict(self, objects: Sequence[Inode], *, force: bool = False) -> dict[str, Any]:
        """Remove the local copies of *objects*; *force*: of pinned ones too, which ends the pins.

        Without it, HoldingError names a pinned one and nothing was removed.
        """
        held = [obj for obj in objects if self.pins.get(obj) is not None]
        if held and not force:
            raise HoldingError(
                f"{len(held)} of {len(objects)} files are pinned, as {_text(held[0].key)};"
                " unpin them or use --force"
            )
        await self.unpin(obj.key for obj in held)
        count = nbytes = 0
        for obj in objects:
            item = self._table.find(obj.ino)
            if item is not None:
                nbytes += self._removal.remove(item)
                count += 1
            await trio.lowlevel.checkpoint()
        return {"objects": count, "bytes": nbytes}

    # -- where -----------------------------------------------------------------------------------

    def where(self, obj: Inode) -> dict[str, Any]:
        """Everything known about the local copy of *obj*."""
        item = self._table.get(obj)
        pin = self.pins.get(obj)
        tier = None if item is None else item.tier
        rule = self._ruling.rule(self._ruling.number(obj))
        why = self._no_passthrough(item)
        return {
            "path": _text(obj.key),
            "tier": tier.name if tier is not None else None,
            "size": obj.size,
            "resident_bytes": _resident(item),
            "passthrough": why is None,
            "passthrough_reason": why,
            "heat": round(self._usage.count(obj.ino, self._now()), 3),
            "dataset_heat": round(self._usage.group_count(item.group, self._now()), 3)
            if item is not None
            else 0.0,
            "pinned": pin is not None,
            "pinned_to": pin.tier if pin is not None else None,
            "rule": rule.name if rule is not None else None,
            "reason": self._reason(item, pinned=pin is not None),
        }

    @staticmethod
    def _no_passthrough(item: Residency | None) -> str | None:
        if item is None or item.tier is None:
            return "not local"
        if not item.complete:
            return "not complete"
        if not item.has(0):
            return "its tier cannot be read now"
        if item.unverified:
            return "not verified since the machine started; the next open has it verified"
        return item.tier.no_passthrough()

    @staticmethod
    def _reason(item: Residency | None, *, pinned: bool) -> str:
        if item is None:
            return "its tier cannot be read now"
        if item.tier is None:
            fallback = "pinned, to be kept once it is read" if pinned else "not read lately"
            return item.bypass or fallback
        if item.pinned:
            return "pinned"
        if item.moved_at:
            return "moved here by the mover"
        return f"admitted by policy {item.tier.config.policy}"


def _resident(item: Residency | None) -> int:
    if item is None or item.tier is None:
        return 0
    spans = (block_span(item.size, block) for block, here in enumerate(item.present) if here)
    return sum(end - start for start, end in spans)


def _text(key: bytes) -> str:
    return key.decode(errors="surrogateescape")
