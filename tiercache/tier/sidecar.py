r"""The sidecar of a complete mirror file: enough to rebuild residency when the catalog is lost.

`TCMETA1\n`, the length of a JSON header, the header, eight bytes of xxh3-64 per block, and the
xxh3-64 of all that. Written to a temporary name and renamed, without fsync: a torn or stale one
fails its own checksum, and what a good one claims is verified block by block before it is served.
So losing one costs a refetch at most, and an fsync per small file would cost more than that file.
"""

from __future__ import annotations

import json
import struct
from array import array
from dataclasses import dataclass
from typing import Any

from tiercache.tier.records import seal, unseal
from tiercache.types import BLOCK_SIZE, Inode

_MAGIC = b"TCMETA1\n"
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A parsed sidecar."""

    key: bytes
    etag: str
    size: int
    sums: array[int]

    def describes(self, obj: Inode) -> bool:
        """Whether it is about exactly this version."""
        return (self.key, self.etag, self.size) == (obj.key, obj.etag, obj.size)


def encode(obj: Inode, sums: bytes) -> bytes:
    r"""The sidecar of *obj*, whose block checksums are *sums*."""
    header = json.dumps(
        {
            "key": obj.key.hex(),
            "etag": obj.etag,
            "size": obj.size,
            "mtime_ns": obj.mtime_ns,
            "block_size": BLOCK_SIZE,
        }
    ).encode()
    return seal(_MAGIC + _LENGTH.pack(len(header)) + header + sums)


def decode(data: bytes) -> Sidecar | None:
    """A sidecar that verifies and makes sense, or None."""
    payload = unseal(data)
    start = len(_MAGIC) + _LENGTH.size
    if payload is None or not payload.startswith(_MAGIC) or len(payload) < start:
        return None
    end = start + _LENGTH.unpack_from(payload, len(_MAGIC))[0]
    try:
        header = json.loads(payload[start:end])
        return _checked(header, payload[end:])
    except (ValueError, KeyError, TypeError):
        return None


def _checked(header: dict[str, Any], tail: bytes) -> Sidecar | None:
    size, etag = header["size"], header["etag"]
    if header["block_size"] != BLOCK_SIZE or not isinstance(size, int) or not isinstance(etag, str):
        return None
    if size <= 0 or len(tail) != 8 * -(-size // BLOCK_SIZE):
        return None
    sums = array("Q")
    sums.frombytes(tail)
    return Sidecar(bytes.fromhex(header["key"]), etag, size, sums)
