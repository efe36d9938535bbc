"""Replies from hostile servers: heads, framing and bodies, without a socket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.errors import OriginReplyError, OriginUnavailableError
from tiercache.origin.http_errors import ConnectionLostError, FramingError
from tiercache.origin.http_wire import (
    HEAD_MAX,
    Wire,
    body_of,
    fill,
    parse_head,
    read_all,
    read_head,
    skip,
)


class Stream:
    """Feeds steps from *data*, at most *piece* bytes at a time."""

    def __init__(self, data: bytes, piece: int = 1 << 20) -> None:
        self.data = data
        self.piece = piece
        self.wire = Wire()

    def run(self, steps):
        try:
            want = next(steps)
            while True:
                count = min(len(want), self.piece, len(self.data))
                want[:count] = self.data[:count]
                self.data = self.data[count:]
                want = steps.send(count)
        except StopIteration as stop:
            return stop.value


def reply(head: bytes, body: bytes = b"", piece: int = 1 << 20, **options):
    stream = Stream(head + b"\r\n\r\n" + body, piece)
    parsed = stream.run(read_head(stream.wire))
    return stream, body_of(stream.wire, parsed, **options)


def chunked(*chunks: bytes, trailer: bytes = b"") -> bytes:
    lines = [b"%X\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks,) if chunk]
    return b"".join(lines) + b"0\r\n" + trailer + b"\r\n"


def test_a_plain_head():
    head = parse_head(b'HTTP/1.1 206 Partial Content\r\nETag:  "x" \r\nX-Empty:\r\nA-b: c: d')
    assert head.status == 206
    assert head.headers == {"etag": '"x"', "x-empty": "", "a-b": "c: d"}
    assert head.keep_alive


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: close", False),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive", True),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", True),
        (b"HTTP/1.1 200", True),
    ],
)
def test_keep_alive(head, keep_alive):
    assert parse_head(head).keep_alive == keep_alive


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/2 200",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 600 OK",
        b"HTTP/1.1  200 OK",
        b"ICY 200 OK",
        b"HTTP/1.1 200 OK\r\nfolded: a\r\n b",
        b"HTTP/1.1 200 OK\r\n\tfolded: a",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\nspace : a",
        b"HTTP/1.1 200 OK\r\n: a",
        b"HTTP/1.1 200 OK\r\na: b\rc",
        b"HTTP/1.1 200 OK\r\na: b\nc: d",
        b"HTTP/1.1 200 OK\r\na: \x00",
        b"HTTP/1.1 200 OK\r\n\xff: a",
    ],
)
def test_hostile_heads_are_refused(head):
    with pytest.raises(FramingError):
        parse_head(head)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(data):
    stream = Stream(b"HTTP/1.1 200 OK\r\n" + data)
    try:
        head = stream.run(read_head(stream.wire))
        stream.run(read_all(body_of(stream.wire, head), 1000))
    except OriginUnavailableError:
        pass


def test_repeats_that_agree_are_one():
    head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5")
    assert head.headers == {"content-length": "5"}


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5, 5",
        b"Content-Length: -1",
        b"Content-Length: +5",
        b"Content-Length: 0x5",
        b"Content-Length: 5 5",
        b"Content-Length:",
        b"Content-Length: 9999999999999999999999",
        b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    ],
)
def test_framing_in_doubt_is_refused(headers):
    with pytest.raises(FramingError):
        reply(b"HTTP/1.1 200 OK\r\n" + headers)


def test_chunks_in_http10_are_refused():
    with pytest.raises(FramingError):
        reply(b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked")


def test_a_head_without_end_is_bounded():
    stream = Stream(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * HEAD_MAX)
    with pytest.raises(FramingError, match="over"):
        stream.run(read_head(stream.wire))


def test_interim_replies_are_skipped_but_not_for_ever():
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    stream = Stream(interim * 2 + b"HTTP/1.1 204 No Content\r\n\r\n")
    assert stream.run(read_head(stream.wire)).status == 204
    for data in (interim * 100, b"HTTP/1.1 101 Switching Protocols\r\n\r\n"):
        stream = Stream(data)
        with pytest.raises(FramingError):
            stream.run(read_head(stream.wire))


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Content-Length: 10", b"0123456789"),
        (b"Transfer-Encoding: chunked", chunked(b"0", b"1234567", b"89")),
        (b"Transfer-Encoding: Chunked", chunked(b"0123456789", trailer=b"x: y\r\nz: 1\r\n")),
        (b"Transfer-Encoding: chunked", b"00A ;ext=1\r\n0123456789\r\n0\r\n\r\n"),
        (b"Connection: close", b"0123456789"),
    ],
)
def test_bodies_of_every_framing(piece, headers, body):
    stream, content = reply(b"HTTP/1.1 200 OK\r\n" + headers, body, piece)
    assert stream.run(read_all(content, 10)) == b"0123456789"
    assert content.ended
    assert stream.wire.empty

    stream, content = reply(b"HTTP/1.1 200 OK\r\n" + headers, body, piece)
    into, reports = bytearray(7), []
    stream.run(skip(content, 3))
    stream.run(fill(content, memoryview(into), reports.append, exact=True))
    assert bytes(into) == b"3456789"
    assert reports == sorted(set(reports))
    assert reports[-1] == 7
    assert content.ended


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body(status):
    stream, content = reply(b"HTTP/1.1 %d X\r\nContent-Length: 5" % status, b"HTTP/")
    assert stream.run(read_all(content, 10)) == b""
    assert content.ended
    assert not stream.wire.empty


def test_a_reply_to_head_has_no_body():
    stream, content = reply(b"HTTP/1.1 200 OK\r\nContent-Length: 5", bodiless=True)
    assert stream.run(read_all(content, 10)) == b""
    assert content.ended


@pytest.mark.parametrize("size", [b"", b"g", b"-1", b"0x1", b"1 2", b"F" * 16, b"1" * 2000])
def test_hostile_chunk_sizes_are_refused(size):
    stream, content = reply(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", size + b"\r\nabc")
    with pytest.raises(FramingError):
        stream.run(read_all(content, 10_000))


def test_a_chunk_must_end_where_it_says():
    stream, content = reply(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", b"2\r\nabc\r\n0\r\n\r\n"
    )
    with pytest.raises(FramingError):
        stream.run(read_all(content, 10))


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Content-Length: 10", b"012345678"),
        (b"Transfer-Encoding: chunked", b"A\r\n012345678"),
        (b"Transfer-Encoding: chunked", b"A\r\n0123456789\r\n"),
        (b"Transfer-Encoding: chunked", b"A\r\n0123456789\r\n0\r\n"),
    ],
)
def test_g03_an_early_end_is_never_a_whole_body(headers, body):
    stream, content = reply(b"HTTP/1.1 200 OK\r\n" + headers, body)
    reports = []
    with pytest.raises(ConnectionLostError):
        stream.run(fill(content, memoryview(bytearray(10)), reports.append, exact=True))
    assert 10 not in reports


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Transfer-Encoding: chunked", chunked(b"0123456789")),
        (b"Connection: close", b"0123456789"),
    ],
)
@pytest.mark.parametrize("size", [9, 11])
def test_d12_a_body_of_another_length_never_counts_whole(headers, body, size):
    stream, content = reply(b"HTTP/1.1 206 X\r\n" + headers, body)
    reports = []
    with pytest.raises(OriginReplyError):
        stream.run(fill(content, memoryview(bytearray(size)), reports.append, exact=True))
    assert size not in reports


def test_bodies_are_bounded():
    for headers, body in (
        (b"Content-Length: 11", b"0123456789a"),
        (b"Transfer-Encoding: chunked", chunked(b"0123456789a")),
        (b"Connection: close", b"0123456789a"),
    ):
        stream, content = reply(b"HTTP/1.1 200 OK\r\n" + headers, body)
        with pytest.raises(FramingError, match="over 10 bytes"):
            stream.run(read_all(content, 10))


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5), st.integers(1, 60))
def test_chunked_equals_its_content(chunks, piece):
    stream, content = reply(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", chunked(*chunks), piece
    )
    assert stream.run(read_all(content, 250)) == b"".join(chunks)
    assert content.ended
    assert stream.wire.empty
