"""What the catalog keeps about residency, as bytes.

    Th <ino:8>              header of an object, followed by its segment 0
    Ts <ino:8> <segment:4>  segments 1 and up
    Tk <ino:8>              bytes of an unlinked file that the kernel still holds
    Tu <place:8>            totals of one tier path, consistent with the headers
    Tw <tier name>          bytes written to a tier today
    Tq <tier name>          bytes that each rule has in a tier, consistent with the headers
    Tc                      present after a clean stop

A segment is 1,024 blocks: one byte of presence and eight of xxh3-64 per block, so an object of
5 TiB rewrites 9 KB when a block arrives, and a small object is one record. Every record ends in a
checksum of itself; one that does not verify counts as absent.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

SEGMENT = 1024

CLEAN_KEY = b"Tc"
HEADER_PREFIX, KEPT_PREFIX = b"Th", b"Tk"

_VERSION = 3
_HEADER = struct.Struct("<BBH8s20sQQQq8sQ")
_KEPT = struct.Struct("<8sQ")
_TOTALS = struct.Struct("<QQQ")
_SHARE = struct.Struct("<HQ")
_SUM = struct.Struct("<Q")

_COMPLETE, _SIDECAR, _PINNED = 1, 2, 4


@dataclass(slots=True)
class Header:
    """Binds an object's presence to one data file.

    `ctime_ns` and `boot` say which state of the file was verified, and in which boot; zero unless
    the object is complete and was verified as a whole. `group` numbers its dataset, `rule` the rule
    under which it was admitted, 0 for none.
    """

    place: bytes
    digest: bytes
    file_id: int
    size: int
    charged: int
    ctime_ns: int = 0
    boot: bytes = bytes(8)
    group: int = 0
    rule: int = 0
    complete: bool = False
    sidecar: bool = False
    pinned: bool = False


@dataclass(slots=True)
class Totals:
    """Sums over the headers of one tier path."""

    nbytes: int = 0
    objects: int = 0
    blocks: int = 0


def header_key(ino: int) -> bytes:
    """Key of an object's header."""
    return HEADER_PREFIX + ino.to_bytes(8, "big")


def segment_key(ino: int, segment: int) -> bytes:
    """Key of one of an object's later segments."""
    return b"Ts" + ino.to_bytes(8, "big") + segment.to_bytes(4, "big")


def kept_key(ino: int) -> bytes:
    """Key of the note about an unlinked file that is still held."""
    return KEPT_PREFIX + ino.to_bytes(8, "big")


def totals_key(place: bytes) -> bytes:
    """Key of a tier path's totals."""
    return b"Tu" + place


def budget_key(tier: str) -> bytes:
    """Key of what was written to a tier today."""
    return b"Tw" + tier.encode()


def shares_key(tier: str) -> bytes:
    """Key of the bytes that rules have in a tier."""
    return b"Tq" + tier.encode()


def encode_shares(shares: Mapping[int, int]) -> bytes:
    """The record of the bytes of each rule."""
    return seal(b"".join(_SHARE.pack(rule, nbytes) for rule, nbytes in shares.items() if nbytes))


def decode_shares(record: bytes | None) -> dict[int, int]:
    """Bytes by rule; empty when they are not known."""
    payload = unseal(record)
    if payload is None or len(payload) % _SHARE.size:
        return {}
    return dict(_SHARE.iter_unpack(payload))


def key_ino(key: bytes) -> int:
    """The inode number in a header's or a kept note's key."""
    return int.from_bytes(key[2:10], "big")


def segments(blocks: int) -> int:
    """How many segments an object of *blocks* blocks has."""
    return -(-blocks // SEGMENT)


def encode_header(header: Header, segment: bytes) -> bytes:
    """The header's record with segment 0 in it."""
    flags = (_COMPLETE if header.complete else 0) | (_SIDECAR if header.sidecar else 0)
    flags |= _PINNED if header.pinned else 0
    fixed = _HEADER.pack(
        _VERSION,
        flags,
        header.rule,
        header.place,
        header.digest,
        header.file_id,
        header.size,
        header.charged,
        header.ctime_ns,
        header.boot,
        header.group,
    )
    return seal(fixed + segment)


def decode_header(record: bytes | None) -> tuple[Header, bytes] | None:
    """A header and its segment 0; None when there is none that can be believed."""
    payload = unseal(record)
    if payload is None or len(payload) < _HEADER.size or payload[0] != _VERSION:
        return None
    fields = _HEADER.unpack_from(payload)
    _, flags, rule, place, digest, file_id, size, charged, ctime_ns, boot, group = fields
    header = Header(
        place,
        digest,
        file_id,
        size,
        charged,
        ctime_ns,
        boot,
        group,
        rule,
        complete=bool(flags & _COMPLETE),
        sidecar=bool(flags & _SIDECAR),
        pinned=bool(flags & _PINNED),
    )
    return header, payload[_HEADER.size :]


def encode_segment(present: bytearray, sums: array[int], segment: int) -> bytes:
    """Presence and checksums of the blocks of *segment*, not sealed."""
    low, high = segment * SEGMENT, min((segment + 1) * SEGMENT, len(present))
    return bytes(present[low:high]) + sums[low:high].tobytes()


def decode_segment(
    payload: bytes | None, present: bytearray, sums: array[int], segment: int
) -> bool:
    """Put *payload* where it belongs; False, and nothing changed, when it does not fit."""
    low, high = segment * SEGMENT, min((segment + 1) * SEGMENT, len(present))
    count = high - low
    if payload is None or len(payload) != 9 * count:
        return False
    present[low:high] = payload[:count]
    values = array("Q")
    values.frombytes(payload[count:])
    sums[low:high] = values
    return True


def encode_kept(place: bytes, nbytes: int) -> bytes:
    """The note that *nbytes* of *place* belong to an unlinked file."""
    return seal(_KEPT.pack(place, nbytes))


def decode_kept(record: bytes) -> tuple[bytes, int] | None:
    """Place and bytes of such a note."""
    payload = unseal(record)
    if payload is None or len(payload) != _KEPT.size:
        return None
    place, nbytes = _KEPT.unpack(payload)
    return place, nbytes


def encode_totals(totals: Totals) -> bytes:
    """The record of a tier path's totals."""
    return seal(_TOTALS.pack(totals.nbytes, totals.objects, totals.blocks))


def decode_totals(record: bytes | None) -> Totals | None:
    """A tier path's totals, None when they are not known."""
    payload = unseal(record)
    if payload is None or len(payload) != _TOTALS.size:
        return None
    return Totals(*_TOTALS.unpack(payload))


def seal(payload: bytes) -> bytes:
    """*payload* with its checksum behind it."""
    return payload + _SUM.pack(xxhash.xxh3_64_intdigest(payload))


def unseal(record: bytes | None) -> bytes | None:
    """What was sealed; None for nothing or a damaged record."""
    if record is None or len(record) < _SUM.size:
        return None
    payload = bytes(record[: -_SUM.size])
    if _SUM.pack(xxhash.xxh3_64_intdigest(payload)) != bytes(record[-_SUM.size :]):
        return None
    return payload
