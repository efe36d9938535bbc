"""What is stored comes back as it was, or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.catalog import records
from tiercache.types import Inode, Kind

INTS = st.integers(-(2**63), 2**63 - 1)


@given(
    st.builds(
        Inode,
        ino=st.integers(1, 2**64 - 1),
        parent=st.integers(1, 2**64 - 1),
        kind=st.sampled_from(Kind),
        size=INTS,
        mtime_ns=INTS,
        etag=st.text(st.characters(codec=None)),
        key=st.binary(),
        archived=st.booleans(),
    ),
    st.booleans(),
)
def test_inode_survives_its_record(inode, dated):
    data = records.pack_inode(inode, dated=dated)
    assert records.unpack_inode(records.pack_ino(inode.ino), data) == inode
    assert records.is_dated(data) is dated


@given(st.binary(min_size=1), st.binary(), st.integers(0), st.integers(0, 7))
def test_f07_flipped_bit_is_noticed(key, value, position, bit):
    data = bytearray(records.seal(key, value))
    data[position % len(data)] ^= 1 << bit
    assert records.unseal(key, bytes(data)) is None
    assert records.unseal(key, records.seal(key, value)) == value
    assert records.unseal(key + b"x", records.seal(key, value)) is None


@pytest.mark.parametrize("data", [b"", b"x", b"abcd", b"\0" * 40, b"\xff" * 40])
def test_what_is_no_record_is_none(data):
    key = records.pack_ino(7)
    assert records.unpack_inode(key, data) is None
    assert records.unpack_name(key, data) is None
    assert records.unpack_time(key, data) is None
