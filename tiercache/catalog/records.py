"""The stored form of names and inodes.

Numbers are big-endian, so that keys sort as numbers and the children of one directory are one
contiguous range in name order. A record is unpacked by one `struct` call and two slices: a lookup
costs a few microseconds. Changing anything here needs a new `SCHEMA`.

Every record ends in a CRC of its key and value: LMDB has none, and one flipped bit in an inode
number or a size would be another file's bytes. A record that fails it is treated as missing, so the
origin is asked again and a good one takes its place.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple
from zlib import crc32

from tiercache.types import Inode, Kind

#: Version of everything in this module.
SCHEMA = b"1"

_INO = struct.Struct(">Q")
_TIME = struct.Struct(">d")
_CRC = struct.Struct("<I")  # little-endian, see _CRC_RESIDUE
_INODE = struct.Struct(">QBBqqI")  # parent, kind, flags, size, mtime_ns, length of the etag
_NAME = struct.Struct(">QQBd")  # ino, generation, kind, seen_at

_ARCHIVED = 1
#: A directory whose mtime came from a child; without it, it is when the directory was first seen.
_DATED = 2

_KINDS = {int(kind): kind for kind in Kind}

#: Length of an inode number in keys and at the start of a name's value.
INO_SIZE = _INO.size

_CRC_SIZE = _CRC.size
#: CRC-32 of anything followed by its own CRC-32, whatever it is.
_CRC_RESIDUE = 0x2144DF1C

pack_ino = _INO.pack


def unpack_ino(data: bytes) -> int:
    """The number at the start of *data*."""
    ino: int = _INO.unpack_from(data)[0]
    return ino


def seal(key: bytes, value: bytes) -> bytes:
    """*value* with the checksum that `is_good` asks for."""
    return value + _CRC.pack(crc32(value, crc32(key)))


def is_good(key: bytes, data: bytes) -> bool:
    """Whether *data* was sealed under *key*."""
    return crc32(data, crc32(key)) == _CRC_RESIDUE


def unseal(key: bytes, data: bytes) -> bytes | None:
    """The value sealed under *key*; None if it is damaged."""
    return data[:-_CRC_SIZE] if is_good(key, data) else None


def pack_time(key: bytes, seconds: float) -> bytes:
    """The record of a time under *key*."""
    return seal(key, _TIME.pack(seconds))


def unpack_time(key: bytes, data: bytes) -> float | None:
    """Seconds since the epoch; None if the record is damaged."""
    if not is_good(key, data):
        return None
    seconds: float = _TIME.unpack_from(data)[0]
    return seconds


class Name(NamedTuple):
    """What a directory says of one name. `generation`: when, in the order of listings."""

    ino: int
    generation: int
    kind: int
    seen_at: float


def pack_name(key: bytes, name: Name) -> bytes:
    """The record of a name whose key (directory and name) is *key*."""
    return seal(key, _NAME.pack(*name))


def unpack_name(key: bytes, data: bytes) -> Name | None:
    """The name stored as *data* under *key*; None if the record is damaged."""
    return Name._make(_NAME.unpack_from(data)) if is_good(key, data) else None


def older_than(data: bytes, generation: bytes) -> bool:
    """Whether the name's generation is less than the packed *generation*."""
    return data[INO_SIZE : 2 * INO_SIZE] < generation


def pack_inode(inode: Inode, *, dated: bool = False) -> bytes:
    """The record of *inode*."""
    etag = inode.etag.encode("utf-8", "surrogatepass")
    flags = _ARCHIVED * inode.archived | _DATED * dated
    head = _INODE.pack(inode.parent, inode.kind, flags, inode.size, inode.mtime_ns, len(etag))
    return seal(pack_ino(inode.ino), head + etag + inode.key)


def unpack_inode(key: bytes, data: bytes) -> Inode | None:
    """The inode stored as *data* under *key*, its packed number; None if the record is damaged."""
    if not is_good(key, data):
        return None
    parent, kind, flags, size, mtime_ns, etag_length = _INODE.unpack_from(data)
    key_at = _INODE.size + etag_length
    etag = data[_INODE.size : key_at].decode("utf-8", "surrogatepass")
    archived, path = flags & _ARCHIVED != 0, data[key_at:-_CRC_SIZE]
    return Inode(unpack_ino(key), parent, _KINDS[kind], size, mtime_ns, etag, path, archived)


def is_dated(data: bytes) -> bool:
    """Whether the directory's mtime is that of a child."""
    return data[INO_SIZE + 1] & _DATED != 0


def version_key(name_key: bytes, kind: Kind, etag: str) -> bytes:
    """Where the version *etag* of a name is remembered once the name means something else.

    Sorted like names, since whole listings of versions retire and return together: a digest of the
    key would scatter a thousand of them over a thousand pages. The suffix has a fixed length, so
    two names never share a key.
    """
    digest = hashlib.blake2b(etag.encode("utf-8", "surrogatepass"), digest_size=16)
    return name_key + bytes((kind,)) + digest.digest()
