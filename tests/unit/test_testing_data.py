"""The data of all other tests must itself be beyond doubt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.testing.data import check, pattern

PAGE = 1 << 16


@given(st.integers(0, 1 << 42), st.integers(0, 3 * PAGE), st.integers(0, 200), st.integers(0, 9))
def test_a_slice_equals_the_slice_of_the_whole(offset, size, skip, seed):
    whole = pattern(offset, size, seed)
    assert len(whole) == size
    assert whole[skip:] == pattern(offset + skip, max(0, size - skip), seed)
    check(whole, offset, seed)


def test_words_are_offsets_of_one_seed():
    words = memoryview(pattern(0, 4 * PAGE, 3)).cast("Q")
    first = int.from_bytes(pattern(0, 8, 3))
    swapped = [int.from_bytes(word.to_bytes(8, "little")) ^ first for word in words]
    assert swapped == list(range(0, 4 * PAGE, 8))


@pytest.mark.parametrize(
    ("data", "finding"),
    [
        (pattern(0, 100, 1) + bytes(100), "byte 100 of 200 .*zeros"),
        (pattern(4096, 4096, 1), "holds offset 4096 of seed 1 at offset 0"),
        (pattern(0, 4096, 2), "holds offset 0 of seed 2 at offset 0"),
        (pattern(0, 999, 1)[1:], "byte 0"),
        (pattern(0, 999, 1) + b"\0", "byte 999 of 1000"),
    ],
)
def test_a_wrong_byte_is_found_and_explained(data, finding):
    with pytest.raises(AssertionError, match=finding):
        check(data, 0, 1)
