"""Wire format and negotiation, against the layouts of the kernel's header."""

from __future__ import annotations

import json
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.errors import MountError
from tiercache.fuse import protocol as wire
from tiercache.fuse.protocol import InitFlag, Opcode
from tiercache.fuse.replies import Replies, statfs
from tiercache.fuse.session import Session, Wants, negotiate
from tiercache.types import Inode, Kind
from tiercache.vfs.api import DirEntry, Entry, Ownership, StatFs

OWNERSHIP = Ownership(uid=7, gid=8, file_mode=0o440, dir_mode=0o550)
WANTS = Wants(passthrough=True, max_background=64, readahead=4 << 20)
ALL_FLAGS = (1 << 43) - 1


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        (wire.IN_HEADER, 40),
        (wire.OUT_HEADER, 16),
        (wire.INIT_IN, 64),
        (wire.INIT_OUT, 64),
        (wire.ATTR, 88),
        (wire.ENTRY_OUT, 128),
        (wire.ATTR_OUT, 104),
        (wire.OPEN_OUT, 16),
        (wire.STATFS_OUT, 80),
        (wire.DIRENT, 24),
        (wire.DIRENTPLUS, 152),
        (wire.INVAL_ENTRY_OUT, 16),
        (wire.BACKING_MAP, 16),
    ],
)
def test_sizes_are_those_of_the_kernel_header(layout: wire.Struct, size: int) -> None:
    assert layout.size == size


def test_ioctl_numbers_follow_from_their_arguments() -> None:
    """_IOW(229, nr, type): direction 1, size, type, number."""

    def writing(number: int, size: int) -> int:
        return 1 << 30 | size << 16 | 229 << 8 | number

    assert writing(1, wire.BACKING_MAP.size) == wire.BACKING_OPEN
    assert writing(2, 4) == wire.BACKING_CLOSE


def init_request(minor: int, flags: int, *, major: int = 7, opcode: int = Opcode.INIT) -> bytes:
    body = wire.INIT_IN.pack(major, minor, 128 << 10, flags & 0xFFFFFFFF, flags >> 32)
    return wire.IN_HEADER.pack(40 + len(body), opcode, 2, 0, 0, 0, 0, 0, 0) + body


def parse_reply(reply: bytes) -> tuple[int, ...]:
    length, error, unique = wire.OUT_HEADER.unpack_from(reply)
    assert (length, error, unique) == (len(reply), 0, 2)
    return tuple(wire.INIT_OUT.unpack_from(reply, 16))


def test_everything_wanted_is_granted_by_a_new_kernel() -> None:
    reply, session = negotiate(init_request(45, ALL_FLAGS), WANTS)
    major, minor, readahead, flags, background, congestion, *rest = parse_reply(reply)
    assert (major, minor, readahead, background, congestion) == (7, 45, 4 << 20, 64, 48)
    assert rest == [4096, 1, 128, 0, session.flags >> 32, 1]
    assert flags == session.flags & 0xFFFFFFFF
    assert session.passthrough
    assert session.resend
    assert session.reason == ""


def test_nothing_is_taken_that_was_not_offered() -> None:
    _, session = negotiate(init_request(45, int(InitFlag.ASYNC_READ)), WANTS)
    assert session.flags == InitFlag.ASYNC_READ
    assert session.max_pages == 32
    assert not session.resend


def test_passthrough_only_when_asked_for() -> None:
    wants = Wants(passthrough=False, max_background=64, readahead=0, refusal="not privileged")
    reply, session = negotiate(init_request(45, ALL_FLAGS), wants)
    assert not session.passthrough
    assert session.reason == "not privileged"
    assert parse_reply(reply)[-1] == 0


def test_an_older_kernel_has_no_passthrough() -> None:
    _, session = negotiate(init_request(38, ALL_FLAGS & ~InitFlag.PASSTHROUGH), WANTS)
    assert session.minor == 38
    assert not session.passthrough
    assert "6.9" in session.reason


def test_a_kernel_that_sends_the_short_init() -> None:
    request = init_request(31, ALL_FLAGS)[: 40 + wire.INIT_IN_SHORT.size]
    _, session = negotiate(request, WANTS)
    assert session.flags >> 32 == 0
    assert session.max_pages == 128


def test_a_newer_minor_is_answered_with_ours() -> None:
    assert negotiate(init_request(99, ALL_FLAGS), WANTS)[1].minor == 45


@pytest.mark.parametrize(
    ("major", "minor", "opcode"), [(8, 0, Opcode.INIT), (7, 27, Opcode.INIT), (7, 45, Opcode.READ)]
)
def test_foreign_protocols_are_refused(major: int, minor: int, opcode: int) -> None:
    with pytest.raises(MountError):
        negotiate(init_request(minor, 0, major=major, opcode=opcode), WANTS)


def test_a_session_survives_json() -> None:
    session = negotiate(init_request(45, ALL_FLAGS), WANTS)[1]
    assert Session.from_json(json.loads(json.dumps(session.as_json()))) == session


def test_errors_and_notices() -> None:
    assert wire.pack_error(9, 2) == wire.OUT_HEADER.pack(16, -2, 9)
    assert wire.pack_resend() == wire.OUT_HEADER.pack(16, 7, 0)
    notice = wire.pack_inval_entry(5, b"a\nb")
    assert wire.OUT_HEADER.unpack_from(notice) == (len(notice), 3, 0)
    assert wire.INVAL_ENTRY_OUT.unpack_from(notice, 16) == (5, 3, 0)
    assert notice[32:] == b"a\nb\0"


def test_an_open_reply_is_header_and_body() -> None:
    expected = wire.pack_reply(9, wire.OPEN_OUT.pack(3, 0xA0, 17))
    assert wire.pack_open_reply(9, 3, 0xA0, 17) == expected


def test_resent_uniques_fit() -> None:
    assert wire.OUT_HEADER.unpack(wire.pack_error(wire.UNIQUE_RESEND | 8, 0))[2] >> 63 == 1


def make_inode(name: bytes = b"k", kind: Kind = Kind.FILE, **fields: int) -> Inode:
    values = {"ino": 2, "parent": 1, "size": 0, "mtime_ns": 0, **fields}
    return Inode(kind=kind, etag="", key=name, **values)


@given(
    size=st.integers(0, 2**63 - 1),
    mtime_ns=st.integers(-(2**62), 2**62),
    kind=st.sampled_from(Kind),
    ttl=st.floats(0, 1e9),
)
def test_attributes_round_trip(size: int, mtime_ns: int, kind: Kind, ttl: float) -> None:
    inode = make_inode(kind=kind, size=size, mtime_ns=mtime_ns, ino=2**63)
    packed = Replies(OWNERSHIP).attr(Entry(inode, 0, ttl))
    valid, valid_nsec, *attr = wire.ATTR_OUT.unpack(packed)
    assert valid + valid_nsec / 1e9 == pytest.approx(ttl, abs=1e-6)
    ino, got_size, blocks, atime, mtime, ctime, *ns = attr[:9]
    mode, nlink, uid, gid, _, blksize, _ = attr[9:]
    assert (ino, got_size, blocks) == (2**63, size, -(-size // 512))
    assert atime == mtime == ctime
    assert ns[0] == ns[1] == ns[2]
    seconds = mtime - (1 << 64) if mtime >> 63 else mtime
    assert seconds * 10**9 + ns[1] == mtime_ns
    expected = stat.S_IFDIR | 0o550 if kind is Kind.DIRECTORY else stat.S_IFREG | 0o440
    assert (mode, nlink, uid, gid, blksize) == (expected, 1, 7, 8, 1 << 20)


def test_an_absent_name_is_node_zero_with_a_ttl() -> None:
    fields = wire.ENTRY_OUT.unpack(Replies(OWNERSHIP).entry(Entry(None, 5.5, 0)))
    assert fields == (0, 0, 5, 0, 500_000_000, *(0,) * 17)


def test_statfs_fields() -> None:
    packed = wire.STATFS_OUT.unpack(statfs(StatFs(4096, 2**62, 2**61, 10, 255)))
    assert packed == (2**62, 2**61, 2**61, 10, 10, 4096, 255, 4096)


def listing(names: list[bytes]) -> list[DirEntry]:
    return [
        DirEntry(name, Entry(make_inode(name, ino=index + 10), 1, 1), index + 1)
        for index, name in enumerate(names)
    ]


def parse_names(data: bytes, skip: int) -> list[tuple[bytes, int]]:
    """Names and next offsets of records whose dirent begins after *skip* bytes."""
    found, at = [], 0
    while at < len(data):
        _, offset, length, _ = wire.DIRENT.unpack_from(data, at + skip)
        start = at + skip + wire.DIRENT.size
        found.append((bytes(data[start : start + length]), offset))
        at = start + length
        at += -at % 8
    return found


names_lists = st.lists(st.binary(min_size=1, max_size=255), max_size=60)


@given(names=names_lists, size=st.integers(512, 8192))
def test_c12_listings_stop_when_full_and_continue_without_loss(
    names: list[bytes], size: int
) -> None:
    replies, entries = Replies(OWNERSHIP), listing(names)
    for pack, skip in ((replies.names, 0), (replies.names_and_entries, wire.ENTRY_OUT.size)):
        seen: list[bytes] = []
        while data := pack(iter(entries[len(seen) :]), size):
            assert len(data) <= size
            assert len(data) % 8 == 0
            records = parse_names(bytes(data), skip)
            seen += [name for name, _ in records]
            assert records[-1][1] == len(seen)
        assert seen == names


def test_dots_take_no_reference() -> None:
    data = Replies(OWNERSHIP).names_and_entries(iter(listing([b".", b"..", b"a"])), 4096)
    nodes, at = [], 0
    for name, _ in parse_names(bytes(data), wire.ENTRY_OUT.size):
        nodes.append(wire.ENTRY_OUT.unpack_from(data, at)[0])
        at += wire.DIRENTPLUS.size + len(name)
        at += -at % 8
    assert nodes == [0, 0, 12]


def test_entries_without_inode_are_named_only() -> None:
    entries = [DirEntry(b"x", Entry(None, 0, 0), 1)]
    data = Replies(OWNERSHIP).names_and_entries(iter(entries), 4096)
    *_, ino, offset, length, kind = wire.DIRENTPLUS.unpack_from(data)
    assert (ino, offset, length, kind) == (wire.UNKNOWN_INO, 1, 1, 0)
    assert wire.ENTRY_OUT.unpack_from(data)[0] == 0
