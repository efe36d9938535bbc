"""Which objects must stay, and in which tier: recorded by key, so that a new version takes over.

    Pn <digest of the key:16>  inode number:8, bytes:8, number of the rule:2, name of the tier

A pin is a promise of room: what is not local yet is kept once it is fetched, and until then nobody
else gets its bytes. A rule pins an object when that is first used, if the promise can be kept, and
for as long as the rule is there. The records are written in one batch with the residency records
they are about, so both agree after a crash. They are lost with the catalog, as residency is.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace

from tiercache.tier.layout import allocated, overhead
from tiercache.tier.residency import Residency
from tiercache.tier.ruling import Ruling
from tiercache.tier.table import Table
from tiercache.tier.tier import Tier
from tiercache.types import Inode, KeyValues

_PREFIX = b"Pn"
_FIXED = struct.Struct("<QQH")


@dataclass(frozen=True, slots=True)
class Pin:
    """Object *ino*, of *nbytes* on disk, belongs into the tier of that name.

    *rule* says so; 0: a person does.
    """

    digest: bytes
    ino: int
    nbytes: int
    tier: str
    rule: int = 0


def whole_size(obj: Inode) -> int:
    """Bytes that all of *obj* takes of a tier."""
    return allocated(obj.size) + overhead(obj.blocks, len(obj.key))


class Pins:
    """All pins, in memory: about 300 bytes each, so their number is bounded. On the loop."""

    def __init__(
        self, tiers: list[Tier], table: Table, kv: KeyValues, ruling: Ruling, limit: int
    ) -> None:
        self._tiers = {tier.name: tier for tier in tiers}
        self._ruling = ruling
        self._table = table
        self.limit = limit
        self._by_key: dict[bytes, Pin] = {}
        self._by_ino: dict[int, Pin] = {}
        for key, record in kv.scan(_PREFIX):
            self._recall(key, record)
        table.flush()
        table.is_pinned = self.covers

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, obj: Inode) -> Pin | None:
        """The pin of *obj*."""
        return self._by_key.get(_digest(obj.key))

    def home(self, item: Residency) -> Tier | None:
        """The tier that *item* is pinned to; None: none, or one that is configured no more."""
        pin = self._by_ino.get(item.ino)
        return None if pin is None else self._tiers.get(pin.tier)

    def covers(self, obj: Inode) -> bool:
        """Whether *obj* is pinned; a version newer than the one that was takes over."""
        pin = self._by_key.get(_digest(obj.key)) if self._by_key else None
        if pin is None:
            return self._pin_by_rule(obj)
        if obj.ino < pin.ino:
            return False
        if obj.ino > pin.ino:
            self._release(pin)
            self._put(replace(pin, ino=obj.ino, nbytes=whole_size(obj)))
        return True

    def _pin_by_rule(self, obj: Inode) -> bool:
        number = self._ruling.number(obj)
        if not self._asks_for_pins(number) or len(self) >= self.limit:
            return False
        nbytes = whole_size(obj)
        tier = next((t for t in self._tiers.values() if t.promised + nbytes <= t.capacity), None)
        if tier is None:
            return False
        self._put(Pin(_digest(obj.key), obj.ino, nbytes, tier.name, number))
        return True

    def _asks_for_pins(self, number: int) -> bool:
        rule = self._ruling.rule(number)
        return rule is not None and rule.pin

    def add(self, obj: Inode, tier: Tier) -> None:
        """*obj* stays, in *tier*, from now on."""
        self.remove(obj.key)
        self._put(Pin(_digest(obj.key), obj.ino, whole_size(obj), tier.name))
        item = self._table.get(obj)
        if item is not None:
            self._table.set_pinned(item, True)

    def remove(self, key: bytes) -> bool:
        """Whether the object *key* was pinned, which may be there no more; it may leave now."""
        pin = self._by_key.get(_digest(key))
        if pin is None:
            return False
        self._table.note(_PREFIX + pin.digest, None)
        self._release(pin)
        return True

    def _put(self, pin: Pin) -> None:
        self._keep(pin)
        value = _FIXED.pack(pin.ino, pin.nbytes, pin.rule) + pin.tier.encode()
        self._table.note(_PREFIX + pin.digest, value)

    def _keep(self, pin: Pin) -> None:
        self._by_key[pin.digest] = self._by_ino[pin.ino] = pin
        if pin.tier in self._tiers:
            self._tiers[pin.tier].promise(pin.nbytes)

    def _release(self, pin: Pin) -> None:
        del self._by_key[pin.digest], self._by_ino[pin.ino]
        if pin.tier in self._tiers:
            self._tiers[pin.tier].promise(-pin.nbytes)
        item = self._table.find(pin.ino)
        if item is not None:
            self._table.set_pinned(item, False)
            if self._table.loaded(pin.ino) is not item:
                self._table.flush()  # the next one to look reads the record anew

    def _recall(self, key: bytes, record: bytes) -> None:
        """Take over a pin of the process before, and count what is local of it."""
        if len(record) < _FIXED.size:
            return
        ino, nbytes, rule = _FIXED.unpack_from(record)
        item = self._table.find(ino)
        if rule and not self._asks_for_pins(rule):
            self._table.note(key, None)
            if item is not None:
                self._count(item)
                self._table.set_pinned(item, False)
            return
        tier = record[_FIXED.size :].decode()
        self._keep(Pin(key[len(_PREFIX) :], ino, nbytes, tier, rule))
        if item is not None:
            self._count(item)

    @staticmethod
    def _count(item: Residency) -> None:
        if item.pinned and item.tier is not None:
            item.tier.pin(item.charged)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()
