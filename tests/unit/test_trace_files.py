"""Trace files: what is written is what is read, and damage or nonsense is told in one line."""

from __future__ import annotations

import itertools
import os
import stat
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercache.errors import TraceError
from tiercache.simulation import blocks, oracletrace, tracefile, workloads
from tiercache.simulation.replay import Access
from tiercache.simulation.summary import summarize
from tiercache.simulation.traces import CSV, FORMATS, NATIVE, ORACLE, Trace, convert, format_for

U64 = st.integers(0, blocks.NUMBER_MAX)
U63 = st.integers(0, 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)


@st.composite
def uses(draw, item=U64, size=U63, group=U64):
    steps = draw(st.lists(st.integers(0, 2**34), max_size=40))
    return [
        Access(time / 1000, draw(item), draw(size), draw(group))
        for time in itertools.accumulate(steps)
    ]


def close(found, expected):
    assert [access[1:] for access in found] == [access[1:] for access in expected]
    assert [a.time for a in found] == pytest.approx([a.time for a in expected], abs=0.001)


def written(path, accesses):
    with tracefile.create(path) as file:
        tracefile.write(file, iter(accesses))
    return Trace(path)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """New paths in one directory, for tests that run often."""
    directory, numbers = tmp_path_factory.mktemp("traces"), itertools.count()
    return lambda suffix="tct": directory / f"{next(numbers)}.{suffix}"


@settings(max_examples=60, deadline=None)
@given(uses())
def test_our_format_keeps_every_use(shelf, accesses):
    close(list(written(shelf(), accesses)), accesses)


@settings(max_examples=60, deadline=None)
@given(uses())
def test_csv_keeps_every_use(shelf, accesses):
    target = shelf("csv")
    convert(written(shelf(), accesses), target, CSV)
    trace = Trace(target)
    assert trace.format == CSV
    close(list(trace), accesses)


@settings(max_examples=60, deadline=None)
@given(uses(size=U32, group=st.just(0)).filter(lambda a: a and a[-1].time < 2**32))
def test_oracle_general_keeps_whole_seconds(shelf, accesses):
    target = shelf("oracleGeneral")
    convert(written(shelf(), accesses), target, ORACLE)
    trace = Trace(target)
    assert trace.format == ORACLE
    found = list(trace)
    assert [a[1:3] for a in found] == [a[1:3] for a in accesses]
    assert [a.time for a in found] == [float(int(a.time)) for a in accesses]


def test_many_blocks_and_little_space(tmp_path):
    accesses = list(workloads.timed(workloads.permutations(3000, 10), group=7))
    trace = written(tmp_path / "t", accesses)
    assert list(trace) == accesses
    assert len(accesses) > 5 * blocks.USES_MAX
    assert trace.bytes < 6 * len(accesses)


def test_oracle_general_numbers_next_uses_from_one(tmp_path):
    target = tmp_path / "t.oracleGeneral"
    order = [5, 6, 5, 7, 5]
    convert(written(tmp_path / "t", workloads.timed(order)), target, ORACLE)
    records = list(struct.iter_unpack("<IQIq", target.read_bytes()))
    assert [record[3] for record in records] == [3, -1, 5, -1, -1]


def test_every_cut_keeps_all_blocks_before_it(tmp_path):
    path = tmp_path / "t"
    accesses = list(workloads.timed(range(3 * blocks.USES_MAX)))
    written(path, accesses)
    whole = path.read_bytes()
    starts = [i for i in range(len(whole)) if whole.startswith(b"BLK1", i)]
    assert len(starts) == 3
    for cut in sorted(
        {len(whole) - 1, *starts, *(s + 1 for s in starts), *(s + 24 for s in starts)}
    ):
        path.write_bytes(whole[:cut])
        trace = Trace(path)
        kept = sum(end <= cut for end in [*starts[1:], len(whole)])
        assert list(trace) == accesses[: kept * blocks.USES_MAX]
        assert (trace.damage is None) == (cut in starts)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_flipped_bytes_are_noticed(shelf, data):
    accesses = list(workloads.timed(range(500)))
    path = shelf()
    written(path, accesses)
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(len(tracefile.HEADER), len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    trace = Trace(path)
    assert list(trace) == []
    assert "cannot be read from byte 20 on" in trace.damage


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=400), st.sampled_from([b"", tracefile.HEADER, b"time,id,size\n", b"1,2,3\n"])
)
def test_any_bytes_are_a_trace_or_an_error_of_one_line(shelf, content, begin):
    path = shelf()
    path.write_bytes(begin + content)
    for form in (None, *FORMATS):
        found = outcome(path, form)
        if isinstance(found, str):
            assert found.startswith(f"{path}: ")
            assert found.isprintable()
        else:
            assert all(0 <= access.size < 2**64 for access in found)


def outcome(path, form):
    try:
        return list(Trace(path, form))
    except TraceError as error:
        return str(error)


def sealed(raw):
    """A block whose checksum is right, whatever is in it."""
    body = zlib.compress(raw)
    head = (len(body), 1, 0)
    crc = zlib.crc32(body, zlib.crc32(struct.pack("<IIQ", *head)))
    return struct.pack("<4sIIQI", b"BLK1", *head, crc) + body


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(1 << 24),  # 16 MiB that compress to 16 KiB
        struct.pack("<III", 1, 2**32 - 1, 2**32 - 1),
        struct.pack("<III IH", 1, 0, 0, 0, 9),  # an item that is not in the table
        struct.pack("<III IH QQH", 1, 1, 0, 0, 0, 1, 1, 9),  # nor is the group
    ],
)
def test_forged_blocks_are_damage(tmp_path, raw):
    path = tmp_path / "t"
    path.write_bytes(tracefile.HEADER + sealed(raw))
    trace = Trace(path)
    assert list(trace) == []
    assert trace.damage


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"1,2,3\n1,2\n", "line 2: 2 fields where time,id,size[,group] belong"),
        (b"1,2,3\n\nx,2,3\n", "line 3: time 'x' is not seconds"),
        (b"nan,2,3\n", "line 1: time 'nan' is not seconds"),
        (b"1e300,2,3\n", "line 1: time '1e300' is not seconds"),
        (b"1,2,-3\n", "line 1: size '-3' is not a number of bytes"),
        (b"1,,3\n", "line 1: an id or group is empty"),
        (b"1,2,\x1b[2J\n" + b"1,2,3\n", "line 1: size '\\x1b[2J' is not a number of bytes"),
        (b"1,2," + b"9" * 9000, "line 1: longer than 8192 bytes"),
        (b"1,2," + b"9" * 5000, f"line 1: size '{'9' * 40}...' is not a number of bytes"),
    ],
)
def test_what_is_wrong_with_a_line(tmp_path, content, words):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        list(Trace(path, CSV))
    assert str(error.value) == f"{path}: {words}"


def test_csv_takes_names_headers_and_times_that_go_back(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "time,id,size,group\r\n5,a/b.tar,10,imagenet\n4,17,20,3\n6.5,a/b.tar,10,imagenet\n"
    )
    first, second, third = Trace(path)
    assert (first.item, first.group) == (third.item, third.group)
    assert second[1:] == (17, 20, 3)
    assert [first.time, second.time, third.time] == [5.0, 5.0, 6.5]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\x1f\x8b\x08", "compressed by gzip; decompress it first"),
        (b"\x28\xb5\x2f\xfd", "compressed by zstd; decompress it first"),
        (b"hello\n", "not a trace; known formats: tiercache, csv, oracleGeneral"),
        (
            tracefile.MAGIC + b"\x02\0\0\0",
            "version 2 of the format is not known; this is version 1",
        ),
        (tracefile.MAGIC, "its header is cut off"),
    ],
)
def test_what_is_no_trace(tmp_path, content, words):
    path = tmp_path / "t"
    path.write_bytes(content)
    with pytest.raises(TraceError) as error:
        Trace(path)
    assert str(error.value) == f"{path}: {words}"


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name, words in (
        ("fifo", "not a regular file"),
        (".", "not a regular file"),
        ("x", "No such"),
    ):
        with pytest.raises(TraceError, match=words):
            Trace(tmp_path / name)


def test_a_cut_off_oracle_record_is_passed_over(tmp_path):
    path = tmp_path / "t.oracleGeneral"
    convert(written(tmp_path / "t", workloads.timed([1, 2, 1])), path, ORACLE)
    path.write_bytes(path.read_bytes()[:-1])
    trace = Trace(path)
    assert [access.item for access in trace] == [1, 2]
    assert trace.damage == "its last record is cut off"


def test_new_files_are_private_and_never_replace_others(tmp_path):
    path = tmp_path / "t"
    trace = written(path, workloads.timed(range(10)))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    for target in (path, link):
        with pytest.raises(TraceError, match="File exists"):
            convert(trace, target, NATIVE)
    assert list(trace) and not (tmp_path / "elsewhere").exists()


def test_a_failed_conversion_leaves_nothing(tmp_path):
    trace = written(tmp_path / "t", [Access(0, 1, 2**32, 0)])
    with pytest.raises(TraceError, match="exceed 32 bits"):
        convert(trace, tmp_path / "out.oracleGeneral", ORACLE)
    assert not (tmp_path / "out.oracleGeneral").exists()


def test_formats_by_name(tmp_path):
    names = {"a.csv": CSV, "b.oracleGeneral.bin": ORACLE, "c.tct": NATIVE, "d": NATIVE}
    assert {name: format_for(tmp_path / name) for name in names} == names


def test_random_bytes_are_not_taken_for_oracle_general():
    assert not oracletrace.looks_like(bytes(range(24, 216)))


def test_summary():
    found = summarize([Access(3, 1, 10, 0), Access(4, 2, 5, 1), Access(9, 1, 10, 0)])
    assert (found.uses, found.nbytes, found.objects, found.footprint) == (3, 25, 2, 15)
    assert (found.once, found.groups, found.repeats) == (1, 2, 1)
    assert (found.begin, found.end) == (3, 9)
    assert summarize([]).uses == 0
