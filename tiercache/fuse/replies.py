"""Turns what the tree says into the bodies of replies. Pure.

Every inode looks the same but for its kind, size and time: owner and permissions are the mount's.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator

from tiercache.fuse.protocol import (
    ATTR_OUT,
    DIRENT,
    DIRENTPLUS,
    ENTRY_OUT,
    STATFS_OUT,
    UNKNOWN_INO,
    DirentType,
    dirent_padding,
    split_ttl,
)
from tiercache.types import MIB, Inode, Kind
from tiercache.vfs.api import DirEntry, Entry, Ownership, StatFs

#: `st_blksize`: tools take it as the size of their reads, and one request carries this much.
_PREFERRED_IO = MIB

_MASK_64 = (1 << 64) - 1
_NS = 1_000_000_000

_UNKNOWN = (0,) * 22
_DOTS = (b".", b"..")


class Replies:
    """Packs replies for a tree owned as *ownership* says."""

    __slots__ = ("_dir_tail", "_file_tail")

    def __init__(self, ownership: Ownership) -> None:
        owner = (1, ownership.uid, ownership.gid, 0, _PREFERRED_IO, 0)
        self._file_tail = (stat.S_IFREG | ownership.file_mode, *owner)
        self._dir_tail = (stat.S_IFDIR | ownership.dir_mode, *owner)

    def attr(self, entry: Entry) -> bytes:
        """`fuse_attr_out` of an entry that has an inode."""
        assert entry.inode is not None
        return ATTR_OUT.pack(*split_ttl(entry.attr_ttl_s), *self._fields(entry.inode))

    def entry(self, entry: Entry) -> bytes:
        """`fuse_entry_out`; an absent name is nodeid 0, which the kernel believes for the TTL."""
        return ENTRY_OUT.pack(*self._entry_fields(entry))

    def names(self, entries: Iterator[DirEntry], size: int) -> bytearray:
        """Records of READDIR, as many as fit into *size* bytes."""
        out = bytearray()
        for name, entry, next_offset in entries:
            length = DIRENT.size + len(name)
            padding = dirent_padding(length)
            if len(out) + length + padding > size:
                break
            out += DIRENT.pack(*_dirent(name, entry, next_offset))
            out += name + bytes(padding)
        return out

    def names_and_entries(self, entries: Iterator[DirEntry], size: int) -> bytearray:
        """Records of READDIRPLUS, as many as fit into *size* bytes.

        The kernel takes a reference for each record it is sent, but neither for `.` nor `..`,
        which therefore carry nodeid 0: attributes not given.
        """
        out = bytearray()
        for name, entry, next_offset in entries:
            length = DIRENTPLUS.size + len(name)
            padding = dirent_padding(length)
            if len(out) + length + padding > size:
                break
            known = entry.inode is not None and name not in _DOTS
            fields = self._entry_fields(entry) if known else _UNKNOWN
            out += DIRENTPLUS.pack(*fields, *_dirent(name, entry, next_offset))
            out += name + bytes(padding)
        return out

    def _entry_fields(self, entry: Entry) -> tuple[int, ...]:
        """The fields of `fuse_entry_out`. Inode numbers are never used twice: no generation."""
        inode, entry_ttl, attr_ttl = entry
        valid, valid_nsec = split_ttl(entry_ttl)
        if inode is None:
            return (0, 0, valid, 0, valid_nsec, 0, *_UNKNOWN[6:])
        attr_valid, attr_valid_nsec = split_ttl(attr_ttl)
        head = (inode.ino, 0, valid, attr_valid, valid_nsec, attr_valid_nsec)
        return head + self._fields(inode)

    def _fields(self, inode: Inode) -> tuple[int, ...]:
        """The fields of `fuse_attr`."""
        size = inode.size
        seconds, ns = divmod(inode.mtime_ns, _NS)
        seconds &= _MASK_64  # times before 1970 travel as two's complement
        times = (seconds, seconds, seconds, ns, ns, ns)
        tail = self._dir_tail if inode.kind is Kind.DIRECTORY else self._file_tail
        return (inode.ino, size, (size + 511) >> 9, *times, *tail)


def statfs(found: StatFs) -> bytes:
    """`fuse_statfs_out`. All inodes are free, like all space: monitors alarm at a full disk."""
    return STATFS_OUT.pack(
        found.blocks,
        found.blocks_free,
        found.blocks_free,
        found.files,
        found.files,
        found.block_size,
        found.name_max,
        found.block_size,
    )


def _dirent(name: bytes, entry: Entry, next_offset: int) -> tuple[int, int, int, int]:
    inode = entry.inode
    if inode is None:
        return UNKNOWN_INO, next_offset, len(name), DirentType.UNKNOWN
    is_dir = inode.kind is Kind.DIRECTORY
    kind = DirentType.DIRECTORY if is_dir else DirentType.REGULAR
    return inode.ino, next_offset, len(name), kind
