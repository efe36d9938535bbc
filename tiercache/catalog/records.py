"""The stored form of names and inodes.

Numbers are big-endian, so that keys sort as numbers and the children of one directory are one
contiguous range in name order. A record is unpacked by one `struct` call and two slices: a lookup
costs a few microseconds. Changing anything here needs a new `SCHEMA`.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from tiercache.types import Inode, Kind

#: Version of everything in this module.
SCHEMA = b"1"

_INO = struct.Struct(">Q")
_TIME = struct.Struct(">d")
_INODE = struct.Struct(">QBBqqI")  # parent, kind, flags, size, mtime_ns, length of the etag
_NAME = struct.Struct(">QQBd")  # ino, generation, kind, seen_at

_ARCHIVED = 1
#: A directory whose mtime came from a child; without it, it is when the directory was first seen.
_DATED = 2

_KINDS = {int(kind): kind for kind in Kind}

#: Length of an inode number in keys and at the start of a name's value.
INO_SIZE = _INO.size

pack_ino = _INO.pack
pack_time = _TIME.pack
pack_name = _NAME.pack


def unpack_ino(data: bytes) -> int:
    """The number at the start of *data*."""
    ino: int = _INO.unpack_from(data)[0]
    return ino


def unpack_time(data: bytes) -> float:
    """Seconds since the epoch."""
    seconds: float = _TIME.unpack(data)[0]
    return seconds


class Name(NamedTuple):
    """What a directory says of one name. `generation`: when, in the order of listings."""

    ino: int
    generation: int
    kind: int
    seen_at: float


def unpack_name(data: bytes) -> Name:
    """The record of a name."""
    return Name._make(_NAME.unpack(data))


def older_than(data: bytes, generation: bytes) -> bool:
    """Whether the name's generation is less than the packed *generation*."""
    return data[INO_SIZE : 2 * INO_SIZE] < generation


def pack_inode(inode: Inode, *, dated: bool = False) -> bytes:
    """The record of *inode*, without its number."""
    etag = inode.etag.encode("utf-8", "surrogatepass")
    flags = _ARCHIVED * inode.archived | _DATED * dated
    head = _INODE.pack(inode.parent, inode.kind, flags, inode.size, inode.mtime_ns, len(etag))
    return head + etag + inode.key


def unpack_inode(ino: int, data: bytes) -> Inode:
    """The inode stored as *data* under *ino*. Raises ValueError or KeyError on damage."""
    parent, kind, flags, size, mtime_ns, etag_length = _INODE.unpack_from(data)
    key_at = _INODE.size + etag_length
    etag = data[_INODE.size : key_at].decode("utf-8", "surrogatepass")
    archived = flags & _ARCHIVED != 0
    return Inode(ino, parent, _KINDS[kind], size, mtime_ns, etag, data[key_at:], archived)


def is_dated(data: bytes) -> bool:
    """Whether the directory's mtime is that of a child."""
    return data[INO_SIZE + 1] & _DATED != 0


def version_digest(key: bytes, etag: str) -> bytes:
    """16 bytes that stand for one version of *key*; the length keeps key and etag apart."""
    digest = hashlib.blake2b(_INO.pack(len(key)), digest_size=16)
    digest.update(key)
    digest.update(etag.encode("utf-8", "surrogatepass"))
    return digest.digest()
