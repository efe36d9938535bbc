"""Residency records: in memory as long as they are useful, in the catalog for good.

A record is believed only together with the file it is about: on its first use in a process the
mirror file must exist with the recorded inode number and size, or the record is dropped. A deleted
file, a sparse look-alike, a restored old catalog: all become a miss, none is served as zeros.

A complete file that nobody touched since it was verified in this boot (same inode, size and ctime)
is trusted as it is; every other block is verified by its checksum before it is served.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from tiercache.errors import TierCacheError
from tiercache.tier.files import OpenFiles
from tiercache.tier.layout import Namer
from tiercache.tier.limits import Surroundings
from tiercache.tier.place import Place
from tiercache.tier.records import (
    HEADER_PREFIX,
    SEGMENT,
    Header,
    Totals,
    budget_key,
    decode_header,
    decode_segment,
    encode_header,
    encode_segment,
    encode_shares,
    encode_totals,
    header_key,
    key_ino,
    seal,
    segment_key,
    segments,
    shares_key,
    totals_key,
    unseal,
)
from tiercache.tier.residency import Residency
from tiercache.tier.tier import Tier
from tiercache.types import Inode, KeyValues

#: Asked about objects that nothing is known of: fills the residency if the disk knows more.
Adopt = Callable[[Residency, Inode], None]


class UnreadableTierError(TierCacheError):
    """There is a local copy, but its tier cannot be read now. Never leaves this package."""


class Table:
    """All residencies. On the loop."""

    def __init__(
        self,
        kv: KeyValues,
        places: dict[bytes, Place],
        namer: Namer,
        boot_id: str,
        files: OpenFiles,
        around: Surroundings,
    ) -> None:
        self._kv = kv
        self._places = places
        self._namer = namer
        self._boot = hashlib.blake2b(boot_id.encode(), digest_size=8).digest()
        self._files = files
        self._limit = around.limits.objects
        self._now = around.now
        self._loaded: OrderedDict[int, Residency] = OrderedDict()
        self._dirty: dict[Residency, None] = {}
        self._deleted: dict[bytes, None] = {}
        self._barred: list[Residency] = []
        self._extra: dict[bytes, bytes | None] = {}
        self.adopt: Adopt | None = None
        self.group_of: Callable[[bytes], int] = lambda _key: 0
        self.rule_of: Callable[[Inode], int] = lambda _obj: 0
        self.is_pinned: Callable[[Inode], bool] = lambda _obj: False
        self.on_lost: Callable[[Residency], object] = lambda _item: None
        self.on_dirty: Callable[[], None] = lambda: None
        self.on_adopted: Callable[[Residency], None] = lambda _item: None
        self.on_bare: Callable[[Residency, Inode], None] = lambda _item, _obj: None

    def __len__(self) -> int:
        return len(self._loaded)

    @property
    def places(self) -> Iterable[Place]:
        """Every place a record may name, hottest tier first."""
        return self._places.values()

    # -- looking up ------------------------------------------------------------------------------

    def loaded(self, ino: int) -> Residency | None:
        """The record of *ino* if it is in memory."""
        return self._loaded.get(ino)

    def get(self, obj: Inode) -> Residency | None:
        """The record of *obj*, possibly an empty one; None while its tier cannot be read."""
        found = self._loaded.get(obj.ino)
        if found is not None:
            return found
        try:
            item = self._load(obj)
        except UnreadableTierError:
            return None
        self._remember(item)
        return item

    def find(self, ino: int) -> Residency | None:
        """The record of *ino* if something of it is local, for removing it."""
        item = self._loaded.get(ino)
        if item is None:
            found = self._recalled(ino)
            return found[0] if found else None
        return item if item.place is not None else None

    def take(self, ino: int) -> Residency | None:
        """The record of *ino*, in memory from now on, if its file is there and can be read."""
        item = self._loaded.get(ino)
        if item is not None:
            return item if item.place is not None else None
        found = self._recalled(ino)
        if found is None:
            return None
        item, header = found
        try:
            matches = self._file_matches(item, header)
        except UnreadableTierError:
            return None
        if not matches:
            self.on_lost(item)
            return None
        self._remember(item)
        return item

    def touch(self, item: Residency) -> None:
        """*item* is the most recently used."""
        if item.ino in self._loaded:
            self._loaded.move_to_end(item.ino)

    def _remember(self, item: Residency) -> None:
        self._loaded[item.ino] = item
        self._shrink(8)

    def _shrink(self, attempts: int) -> None:
        for _ in range(min(attempts, len(self._loaded) - self._limit)):
            ino, oldest = next(iter(self._loaded.items()))
            if oldest.busy:
                self._loaded.move_to_end(ino)
            else:
                self._unload(oldest)

    def _unload(self, item: Residency) -> None:
        del self._loaded[item.ino]
        self._files.close(item)

    def bar(self, item: Residency) -> None:
        """The file of *item* cannot be opened now: all of it is missing until that is retried."""
        if item.busy:
            item.barred = True
            self._barred.append(item)
        elif self._loaded.get(item.ino) is item:
            self._unload(item)

    def lift_bars(self) -> None:
        """Try the barred ones again on their next use."""
        while self._barred:
            self._barred.pop().barred = False

    def unload_tier(self, tier: object) -> None:
        """Look again at every file of *tier* before its next use: the disk was away."""
        for item in list(self._loaded.values()):
            if item.tier is tier and not item.busy:
                self._unload(item)

    def stored(self) -> Iterator[tuple[int, Header]]:
        """Every stored record that is still good, by inode number."""
        for key, record in self._kv.scan(HEADER_PREFIX):
            found = decode_header(record)
            if found is not None and key not in self._deleted:
                yield key_ino(key), found[0]

    # -- loading ---------------------------------------------------------------------------------

    def _header(self, ino: int) -> tuple[Header, bytes] | None:
        key = header_key(ino)
        return None if key in self._deleted else decode_header(self._kv.get(key))

    def _load(self, obj: Inode) -> Residency:
        item = Residency(obj.ino, obj.size, self._namer.digest(obj.key, obj.etag).hex())
        item.group, item.rule = self.group_of(obj.key), self.rule_of(obj)
        if not obj.size:
            return item
        item.pinned = self.is_pinned(obj)
        found = self._header(obj.ino)
        if found is None:
            if self.adopt is not None:
                self.adopt(item, obj)
            return item
        header, segment = found
        if header.place not in self._places:
            self._delete(item)
            return item
        stored = self._restored(obj.ino, header, segment)
        same = (stored.name, stored.size) == (item.name, item.size)
        stored.group = item.group
        if same and self._file_matches(stored, header):
            self.set_pinned(stored, item.pinned)
            if stored.complete and not stored.sidecar:
                self.on_bare(stored, obj)
            return stored
        self.on_lost(stored)
        return item

    def _file_matches(self, item: Residency, header: Header) -> bool:
        """Whether the mirror file is the one the record is about; takes note of its state."""
        assert item.tier is not None
        if not item.tier.health.readable:
            raise UnreadableTierError
        try:
            fd, stat = self._files.checked(item)
        except FileNotFoundError:
            return False
        except OSError:
            raise UnreadableTierError from None
        self._files.adopt(item, fd)
        self._judge(item, header, stat)
        return True

    def _judge(self, item: Residency, header: Header, stat: os.stat_result) -> None:
        assert item.tier is not None
        assert item.place is not None
        item.ctime_ns = stat.st_ctime_ns
        known = (header.ctime_ns, header.boot) == (stat.st_ctime_ns, self._boot)
        if item.complete and known and not item.tier.always_verify:
            item.verified = bytearray(b"\1") * item.blocks
            item.unverified = 0
            item.proven = True
        # Blocks that were written but not yet recorded when a process died still take space.
        extra = stat.st_blocks * 512 - item.charged
        if extra > 0:
            self.charge(item, extra)
            self.mark(item)

    def _recalled(self, ino: int) -> tuple[Residency, Header] | None:
        """The record of *ino* that is in the catalog, if its place is one of ours."""
        found = self._header(ino)
        if found is None or found[0].place not in self._places:
            return None
        return self._restored(ino, *found), found[0]

    def _restored(self, ino: int, header: Header, segment: bytes) -> Residency:
        item = Residency(ino, header.size, header.digest.hex())
        item.settle(self._places[header.place])
        item.file_id, item.charged, item.sidecar = header.file_id, header.charged, header.sidecar
        item.group, item.pinned, item.rule = header.group, header.pinned, header.rule
        for index in range(segments(item.blocks)):
            payload = self._segment(item.ino, index) if index else segment
            decode_segment(payload, item.present, item.sums, index)
        resident = sum(item.present)
        item.left, item.unverified = item.blocks - resident, resident
        return item

    def _segment(self, ino: int, index: int) -> bytes | None:
        key = segment_key(ino, index)
        return None if key in self._deleted else unseal(self._kv.get(key))

    # -- accounts --------------------------------------------------------------------------------

    def charge(self, item: Residency, nbytes: int) -> None:
        """*item* takes *nbytes* more of its place."""
        assert item.place is not None
        if not item.charged:
            item.place.totals.objects += 1
        item.charged += nbytes
        item.place.totals.nbytes += nbytes
        item.place.tier.share(item.rule, nbytes)
        if item.pinned:
            item.place.tier.pin(nbytes)

    def set_pinned(self, item: Residency, pinned: bool) -> None:
        """Have *item* belong to the pinned ones, or to those that the policy knows."""
        if item.pinned == pinned:
            return
        item.pinned = pinned
        if item.tier is None or not item.charged:
            return
        item.tier.pin(item.charged if pinned else -item.charged)
        if pinned:
            item.tier.policy.remove(item.ino)
        else:
            item.tier.policy.admit(item.ino, item.charged, item.group, self._now())
        self.mark(item)

    def wrote(self, tier: Tier, nbytes: int) -> None:
        """*nbytes* were written to *tier*, which may have a daily budget."""
        if tier.budget.per_day:
            tier.budget.spend(nbytes, self._now())
            self._extra[budget_key(tier.name)] = tier.budget.record()

    def discharge(self, item: Residency) -> None:
        """*item* is no longer an object of its place."""
        assert item.place is not None
        totals = item.place.totals
        if item.charged:
            totals.objects = max(0, totals.objects - 1)
        totals.nbytes = max(0, totals.nbytes - item.charged)
        item.place.tier.share(item.rule, -item.charged)
        totals.blocks = max(0, totals.blocks - (item.blocks - item.left))

    # -- persisting ------------------------------------------------------------------------------

    def mark(self, item: Residency, block: int = 0) -> None:
        """What the record says of *block* (and of the object as a whole) has changed."""
        if not self._dirty:
            self.on_dirty()
        item.dirty.add(block // SEGMENT)
        self._dirty[item] = None

    def note(self, key: bytes, value: bytes | None) -> None:
        """Write another small record with the next flush."""
        self._extra[key] = value
        self.on_dirty()

    def replace(self, item: Residency, new: Residency) -> None:
        """*new* is the record from now on, in the catalog too when this returns."""
        self.forget(item)
        self._remember(new)
        for block in range(0, new.blocks, SEGMENT):
            self.mark(new, block)
        self.flush()

    def forget(self, item: Residency) -> None:
        """Take *item* out of memory and of the catalog."""
        if self._loaded.get(item.ino) is item:
            del self._loaded[item.ino]
        self._dirty.pop(item, None)
        item.dirty.clear()
        self._delete(item)

    def _delete(self, item: Residency) -> None:
        for index in range(segments(item.blocks)):
            self._deleted[segment_key(item.ino, index) if index else header_key(item.ino)] = None
        self.on_dirty()

    def flush(self) -> None:
        """Hand every change to the catalog, as one batch."""
        if not (self._dirty or self._deleted or self._extra):
            return
        items: list[tuple[bytes, bytes | None]] = [(key, None) for key in self._deleted]
        for item in self._dirty:
            items += self._records(item)
        items += self._extra.items()
        items += ((totals_key(ident), _totals(p)) for ident, p in self._places.items())
        tiers = {place.tier.name: place.tier for place in self._places.values()}
        items += ((shares_key(tier.name), encode_shares(tier.shares)) for tier in tiers.values())
        self._kv.put_many(items)
        for item in self._dirty:
            item.dirty.clear()
        self._dirty.clear()
        self._deleted.clear()
        self._extra.clear()
        self._shrink(len(self._loaded))

    def _records(self, item: Residency) -> list[tuple[bytes, bytes | None]]:
        assert item.place is not None
        header = Header(
            place=item.place.ident,
            digest=bytes.fromhex(item.name),
            file_id=item.file_id,
            size=item.size,
            charged=item.charged,
            ctime_ns=item.ctime_ns if item.proven else 0,
            boot=self._boot if item.proven else bytes(8),
            group=item.group,
            rule=item.rule,
            complete=item.complete,
            sidecar=item.sidecar,
            pinned=item.pinned,
        )
        first = encode_segment(item.present, item.sums, 0)
        records: list[tuple[bytes, bytes | None]] = [
            (header_key(item.ino), encode_header(header, first))
        ]
        for index in item.dirty:
            if index:
                segment = encode_segment(item.present, item.sums, index)
                records.append((segment_key(item.ino, index), seal(segment)))
        return records


def _totals(place: Place) -> bytes:
    return encode_totals(Totals(place.totals.nbytes, place.totals.objects, place.totals.blocks))
