"""Sizes, durations and permission bits as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.config_units import (
    SettingError,
    format_size,
    parse_duration,
    parse_octal,
    parse_rate,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512B", 512),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("1K", 1 << 10),
        ("10T", 10 << 40),
        ("1TB", 10**12),
        ("1kb", 1000),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "1XB", "1e9", "0x10", "1 2", "nan", "1,5GB", "\uff11"]
)
def test_what_is_not_a_size_says_what_would_be(text):
    with pytest.raises(SettingError, match="64MiB"):
        parse_size(text)


def test_a_fraction_of_a_byte_is_refused():
    with pytest.raises(SettingError, match="whole number of bytes"):
        parse_size("0.3KiB")


@given(st.integers(0, 1 << 62))
def test_formatted_sizes_read_back(size):
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0B"),
        (1000, "1kB"),
        (4096, "4KiB"),
        (64 << 20, "64MiB"),
        (3 << 29, "1536MiB"),
        (10**9, "1GB"),
        (15 * 10**11, "1.5TB"),
        (15 * 10**11 + 1, "1500000000001B"),
    ],
)
def test_sizes_are_shown_as_a_person_wrote_them(size, text):
    assert format_size(size) == text


@pytest.mark.parametrize("text", ["500MiB/s", "500 MiB", "524288000", "524288000B/s"])
def test_rates(text):
    assert parse_rate(text) == 500 << 20


@pytest.mark.parametrize("text", ["fast", "/s", "500MiB/h", "1/s/s"])
def test_what_is_not_a_rate_says_what_would_be(text):
    with pytest.raises(SettingError, match="500MiB/s"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60),
        ("5m", 300),
        ("5min", 300),
        ("1h", 3600),
        ("1d", 86400),
        ("250ms", 0.25),
        ("1.5", 1.5),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1 week", "5 apples", "inf"])
def test_what_is_not_a_duration_says_what_would_be(text):
    with pytest.raises(SettingError, match="60s"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "bits"), [("022", 0o022), ("0o27", 0o027), ("0", 0), ("777", 0o777)]
)
def test_octal(text, bits):
    assert parse_octal(text) == bits


@pytest.mark.parametrize("text", ["", "8", "-022", "u=rw", "0o"])
def test_what_is_not_octal_says_what_would_be(text):
    with pytest.raises(SettingError, match="022"):
        parse_octal(text)
