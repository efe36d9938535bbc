"""Data that knows where it belongs.

Every aligned 8-byte word is its own offset, big endian, XORed with a word made from the seed.
So a shifted block, a block of another object or version, zeros and a mix of versions are all told
apart, and `check` can say which of them it found. Any slice equals the same slice of the whole,
so a test compares a read in the middle of a terabyte without ever making the terabyte.

Within a page of 8192 words only the last two bytes of a word vary, so a page is the first page
with some of its eight columns overwritten: 500 MB/s without numpy.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TypeAlias

BytesLike: TypeAlias = bytes | bytearray | memoryview

_WORD = 8
_PAGE_WORDS = 1 << 13
_PAGE = _WORD * _PAGE_WORDS


def pattern(offset: int, size: int, seed: int = 0) -> bytes:
    """The *size* bytes from *offset* of the endless object *seed*."""
    first = offset - offset % _PAGE
    pages = [_page(start, seed) for start in range(first, offset + size, _PAGE)]
    joined = pages[0] if len(pages) == 1 else b"".join(pages)
    return joined[offset - first : offset - first + size]


def check(data: BytesLike, offset: int = 0, seed: int = 0) -> None:
    """Raise `AssertionError` unless *data* is `pattern(offset, len(data), seed)`.

    The message names the first wrong byte and what was found there instead.
    """
    view = memoryview(data).cast("B") if isinstance(data, memoryview) else memoryview(data)
    step = 16 * _PAGE
    for at in range(0, len(view), step):
        part = view[at : at + step]
        expected = pattern(offset + at, len(part), seed)
        if bytes(part) != expected:  # views are compared item by item
            wrong = next(i for i, (a, b) in enumerate(zip(part, expected, strict=True)) if a != b)
            raise AssertionError(_diagnosis(view, at + wrong, offset, seed))


def _diagnosis(view: memoryview, wrong: int, offset: int, seed: int) -> str:
    """What a person needs to find the bug behind byte *wrong* of *view*."""
    place = f"byte {wrong} of {len(view)} (offset {offset + wrong}, seed {seed}) is wrong"
    # The word that holds it may mix two origins; the next one then tells where it came from.
    inside = wrong - (offset + wrong) % _WORD
    for start in (inside, inside + _WORD):
        word = bytes(view[start : start + _WORD]) if start >= 0 else b""
        if len(word) == _WORD and (found := _recognised(word, seed)):
            return f"{place}: holds {found} at offset {offset + start}"
    return f"{place}: {bytes(view[wrong : wrong + _WORD]).hex()}"


def _recognised(word: bytes, seed: int) -> str | None:
    """What *word* is, if it is anything made here."""
    if not any(word):
        return "zeros"
    value = int.from_bytes(word, "big")
    for other in (seed, *range(16)):
        offset = value ^ _seed_word(other)
        if offset % _WORD == 0 and offset < 1 << 48:
            return f"offset {offset} of seed {other}"
    return None


@functools.lru_cache(maxsize=64)
def _seed_word(seed: int) -> int:
    """64 bits whose upper half tells seeds apart at any offset below 2**48."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=_WORD).digest(), "big")


@functools.lru_cache(maxsize=64)
def _page(start: int, seed: int) -> bytes:
    """The page at *start*, a multiple of the page size."""
    page = bytearray(_first_page(seed))
    word = start.to_bytes(_WORD, "big")
    for column, byte in enumerate(word):
        if byte:
            page[column::_WORD] = bytes([page[column] ^ byte]) * _PAGE_WORDS
    return bytes(page)


@functools.lru_cache(maxsize=64)
def _first_page(seed: int) -> bytes:
    mix = _seed_word(seed)
    words = ((mix ^ offset).to_bytes(_WORD, "big") for offset in range(0, _PAGE, _WORD))
    return b"".join(words)
