"""Records, sidecars and names, byte by byte."""

from array import array
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tiercache.testing.tiers import file
from tiercache.tier import records, sidecar
from tiercache.tier.layout import (
    Namer,
    allocated,
    filesystem_type,
    is_origin_id,
    origin_id,
    why_no_backing,
)
from tiercache.types import BLOCK_SIZE, MIB

unsigned = st.integers(0, 2**64 - 1)
headers = st.builds(
    records.Header,
    place=st.binary(min_size=8, max_size=8),
    digest=st.binary(min_size=20, max_size=20),
    file_id=unsigned,
    size=unsigned,
    charged=unsigned,
    ctime_ns=st.integers(-(2**63), 2**63 - 1),
    boot=st.binary(min_size=8, max_size=8),
    complete=st.booleans(),
    sidecar=st.booleans(),
)


@given(header=headers, segment=st.binary(max_size=100))
def test_header_round_trip(header, segment):
    assert records.decode_header(records.encode_header(header, segment)) == (header, segment)


@given(header=headers, data=st.data())
def test_any_flipped_bit_makes_a_header_absent(header, data):
    record = bytearray(records.encode_header(header, b"segment"))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    assert records.decode_header(bytes(record)) is None


@given(st.binary(max_size=200))
def test_anything_else_is_absent(record):
    assert records.decode_header(record) is None
    assert records.decode_kept(record) is None
    assert records.decode_totals(record) is None
    assert sidecar.decode(record) is None


@given(blocks=st.integers(1, 3000), data=st.data())
def test_segments_round_trip(blocks, data):
    resident = data.draw(st.sets(st.integers(0, blocks - 1), max_size=20))
    present = bytearray(blocks)
    sums = array("Q", bytes(8 * blocks))
    for block in resident:
        present[block], sums[block] = 1, 2**64 - 1 - block
    again, sums_again = bytearray(blocks), array("Q", bytes(8 * blocks))
    for index in range(records.segments(blocks)):
        payload = records.encode_segment(present, sums, index)
        assert records.decode_segment(payload, again, sums_again, index)
        assert not records.decode_segment(payload[1:], again, sums_again, index)
    assert (again, sums_again) == (present, sums)


def test_kept_and_totals_round_trip():
    assert records.decode_kept(records.encode_kept(b"placeid8", 1 << 40)) == (b"placeid8", 1 << 40)
    totals = records.Totals(1 << 50, 2, 3)
    assert records.decode_totals(records.encode_totals(totals)) == totals
    assert records.key_ino(records.header_key(1 << 60)) == 1 << 60


@given(
    key=st.binary(max_size=1024), etag=st.text(max_size=50), size=st.integers(1, 20 * BLOCK_SIZE)
)
def test_sidecar_round_trip(key, etag, size):
    obj = file(7, size, key=key, etag=etag)
    sums = array("Q", range(obj.blocks))
    found = sidecar.decode(sidecar.encode(obj, sums.tobytes()))
    assert found is not None
    assert found.describes(obj)
    assert found.sums == sums
    assert not found.describes(file(7, size, key=key + b"x", etag=etag))


@given(st.data())
def test_any_flipped_bit_makes_a_sidecar_absent(data):
    record = bytearray(sidecar.encode(file(7, MIB + 1), bytes(16)))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    assert sidecar.decode(bytes(record)) is None


@given(st.tuples(st.binary(), st.text()), st.tuples(st.binary(), st.text()))
def test_names_differ_when_versions_do(one, two):
    namer = Namer("s3://bucket")
    assert (namer.digest(*one) == namer.digest(*two)) == (one == two)
    assert namer.digest(*one) != Namer("s3://other").digest(*one)


def test_names_do_not_run_into_each_other():
    namer = Namer("o")
    assert namer.digest(b"ab", "c") != namer.digest(b"a", "bc")


def test_origin_directory_names():
    assert is_origin_id(origin_id("s3://bucket"))
    assert not is_origin_id("trash")
    assert not is_origin_id("0123456789ABCDEF")


def test_disk_takes_whole_pages():
    assert [allocated(n) for n in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]


def test_file_systems_are_told_apart():
    assert filesystem_type(Path("/proc/self")) == "proc"
    assert filesystem_type(Path("/dev/shm")) == "tmpfs"
    assert why_no_backing("ext4") is None
    assert "overlay" in (why_no_backing("overlay") or "")
    assert why_no_backing("fuse.tiercache") is not None
