"""How a listing goes on from page to page, whatever the server makes of the protocol.

A cursor is the continuation token of LIST v2, the NextMarker of v1, or the name to go on after when
a server says "truncated" and gives neither. It remembers what the page before ended with, so a
server that starts over is noticed: a page without progress is an error, never a loop.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote_to_bytes

import xxhash

from tiercache.errors import OriginReplyError
from tiercache.origin.s3_xml import Listing
from tiercache.origin.sigv4 import encode_query

# Behind every key below a prefix that was folded; starting after the prefix itself would show it
# again on servers that do not know it was given already.
_BEHIND_PREFIX = "\U0010ffff".encode()


class Mode(enum.StrEnum):
    """What a cursor holds."""

    START = "s"
    TOKEN = "t"
    MARKER = "m"
    AFTER = "a"


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the next page starts; `seen` is the digest of what the page before ended with."""

    mode: Mode = Mode.START
    value: bytes = b""
    seen: str = ""

    @classmethod
    def parse(cls, token: str | None) -> Cursor:
        """Undo `str`; None is the start."""
        if token is None:
            return cls()
        mode, seen, value = token.split(":", 2)
        return cls(Mode(mode), unquote_to_bytes(value), seen)

    def __str__(self) -> str:
        return f"{self.mode}:{self.seen}:{quote_from_bytes(self.value)}"


@dataclass(frozen=True, slots=True)
class ListRequest:
    """One page to ask for. `prefix` is a prefix of the bucket's own keys."""

    prefix: bytes
    cursor: Cursor
    delimiter: bool
    limit: int

    def query(self, *, v1: bool) -> str:
        """Query string for LIST v2, or v1."""
        pairs = [
            ("encoding-type", b"url"),
            ("max-keys", b"%d" % self.limit),
            ("prefix", self.prefix),
        ]
        if self.delimiter:
            pairs.append(("delimiter", b"/"))
        if not v1:
            pairs.append(("list-type", b"2"))
        if self.cursor.mode is Mode.TOKEN:
            pairs.append(("continuation-token", self.cursor.value))
        elif self.cursor.mode is not Mode.START:
            pairs.append(("marker" if v1 else "start-after", self.cursor.value))
        return encode_query(pairs)


def next_cursor(listing: Listing, cursor: Cursor) -> Cursor | None:
    """Where the listing goes on; None at its end, `OriginReplyError` if it does not move on."""
    if not listing.truncated:
        return None
    ahead = _ahead(listing)
    stands_still = (ahead.mode, ahead.value) == (cursor.mode, cursor.value)
    if stands_still or (ahead.seen and ahead.seen == cursor.seen):
        raise OriginReplyError("the listing says it goes on but does not move")
    return ahead


def _ahead(listing: Listing) -> Cursor:
    last = listing.last_key
    if listing.last_prefix and listing.last_prefix >= last:
        last = listing.last_prefix + _BEHIND_PREFIX
    seen = xxhash.xxh3_64_hexdigest(last) if last else ""
    if listing.token is not None:
        return Cursor(Mode.TOKEN, listing.token, seen)
    if listing.marker is not None:
        return Cursor(Mode.MARKER, listing.marker, seen)
    if not last:
        raise OriginReplyError("the listing says it goes on but not where")
    return Cursor(Mode.AFTER, last, seen)
