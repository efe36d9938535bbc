"""The wire format between the kernel and a FUSE server: constants, layouts, packing.

Names, numbers and layouts are those of the kernel's `include/uapi/linux/fuse.h`, version 7.45, cut
down to what a read-only tree answers. Integers are in host byte order and laid out without padding
of their own, hence `=` everywhere. Standard library only, because the holder imports this as well.

Hot replies have one combined layout for header and body: one `pack` and one `write` each.
"""

from __future__ import annotations

import enum
from struct import Struct

KERNEL_MAJOR = 7
KERNEL_MINOR = 45

#: Smallest buffer the kernel accepts for a read of `/dev/fuse`.
MIN_READ_BUFFER = 8192

#: Set in the `unique` of a request that is delivered again after NOTIFY_RESEND. The reply must
#: carry it too, so nobody here ever clears it.
UNIQUE_RESEND = 1 << 63

#: Inode number of a directory entry whose real one is not known.
UNKNOWN_INO = 0xFFFFFFFF


class Opcode(enum.IntEnum):
    """What a request asks for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BMAP = 37
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SETUPMAPPING = 48
    REMOVEMAPPING = 49
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52


class Notify(enum.IntEnum):
    """What the server tells the kernel unasked; travels in the error field, with unique 0."""

    INVAL_ENTRY = 3
    RESEND = 7


class InitFlag(enum.IntFlag):
    """Capabilities of INIT; bits from 32 on travel in `flags2`."""

    ASYNC_READ = 1 << 0
    BIG_WRITES = 1 << 5
    DO_READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    ASYNC_DIO = 1 << 15
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    INIT_EXT = 1 << 30
    PASSTHROUGH = 1 << 37
    HAS_RESEND = 1 << 39


class OpenFlag(enum.IntFlag):
    """How the kernel shall treat an open file."""

    KEEP_CACHE = 1 << 1
    NOFLUSH = 1 << 5
    PASSTHROUGH = 1 << 7


class DirentType(enum.IntEnum):
    """`d_type` of a directory entry."""

    UNKNOWN = 0
    DIRECTORY = 4
    REGULAR = 8


IN_HEADER = Struct("=IIQQIIIHH")  # len opcode unique nodeid uid gid pid extlen padding
IN_HEADER_START = Struct("=IIQQ")  # the part that every request needs
OUT_HEADER = Struct("=IiQ")  # len error unique
INIT_IN = Struct("=IIIII44x")  # major minor max_readahead flags flags2
#: What kernels before 7.36 send: no `flags2`.
INIT_IN_SHORT = Struct("=IIII")
#: major minor max_readahead flags max_background congestion_threshold max_write time_gran
#: max_pages map_alignment flags2 max_stack_depth
INIT_OUT = Struct("=IIIIHHIIHHII24x")
_ATTR = "QQQQQQIIIIIIIIII"  # ino size blocks 3*time 3*nsec mode nlink uid gid rdev blksize flags
ATTR = Struct("=" + _ATTR)
ENTRY_OUT = Struct("=QQQQII" + _ATTR)  # nodeid generation 2*valid 2*valid_nsec attr
ATTR_OUT = Struct("=QI4x" + _ATTR)  # valid valid_nsec attr
OPEN_IN = Struct("=II")  # flags open_flags
OPEN_OUT = Struct("=QIi")  # fh open_flags backing_id
READ_IN = Struct("=QQI")  # fh offset size (the rest is for locks); READDIR has the same layout
READ_IN_SIZE = 40
RELEASE_IN = Struct("=QIIQ")  # fh flags release_flags lock_owner
INTERRUPT_IN = Struct("=Q")  # unique
STATFS_OUT = Struct("=QQQQQIII28x")  # blocks bfree bavail files ffree bsize namelen frsize
DIRENT = Struct("=QQII")  # ino off namelen type, then the name, padded to 8 bytes
DIRENTPLUS = Struct("=QQQQII" + _ATTR + "QQII")  # entry_out dirent
INVAL_ENTRY_OUT = Struct("=QII")  # parent namelen flags, then the name and a NUL
BACKING_MAP = Struct("=iIQ")  # fd flags padding

#: Header and body of the answer to OPEN and OPENDIR.
OPEN_REPLY = Struct("=IiQQIi")

#: ioctls of `/dev/fuse` that register a backing file and give it back.
BACKING_OPEN = 0x4010E501
BACKING_CLOSE = 0x4004E502

HEADER_SIZE = IN_HEADER.size


def split_ttl(seconds: float) -> tuple[int, int]:
    """Whole seconds and nanoseconds, as validity travels."""
    whole = int(seconds)
    return whole, int((seconds - whole) * 1e9)


def dirent_padding(length: int) -> int:
    """NULs after a directory record of *length* bytes: records start at multiples of 8."""
    return -length % 8


def pack_error(unique: int, number: int) -> bytes:
    """The reply that fails request *unique* with errno *number*; 0 is bare success."""
    return OUT_HEADER.pack(OUT_HEADER.size, -number, unique)


def pack_reply(unique: int, body: bytes) -> bytes:
    """A successful reply."""
    return OUT_HEADER.pack(OUT_HEADER.size + len(body), 0, unique) + body


def pack_open_reply(unique: int, handle: int, flags: int, backing: int) -> bytes:
    """The whole answer to OPEN or OPENDIR."""
    return OPEN_REPLY.pack(OPEN_REPLY.size, 0, unique, handle, flags, backing)


def pack_resend() -> bytes:
    """Ask for every request again that was read from the device but not answered."""
    return OUT_HEADER.pack(OUT_HEADER.size, Notify.RESEND, 0)


def pack_inval_entry(parent: int, name: bytes) -> bytes:
    """Tell the kernel to forget what *name* in directory *parent* stands for."""
    body = INVAL_ENTRY_OUT.pack(parent, len(name), 0) + name + b"\0"
    return OUT_HEADER.pack(OUT_HEADER.size + len(body), Notify.INVAL_ENTRY, 0) + body
