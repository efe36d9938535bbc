"""The two XML documents S3 sends here: a page of a listing and an error.

A strict scanner instead of an XML parser. Both documents are flat, and a scanner has no entities to
expand, no DTD to fetch and no bytes to normalise: an XML parser turns CR into LF, and one control
byte in one key would cost the whole page. Markup that is not plain elements (comments, CDATA, DTDs)
is refused. It is faster as well: the loops run inside `split` and `re`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote_to_bytes

from tiercache.errors import OriginReplyError
from tiercache.types import ObjectInfo

#: Largest page: 1000 keys of 1024 bytes, each byte escaped to three, and 1 KiB around each.
PAGE_MAX = 8 << 20
ERROR_MAX = 64 << 10

_FIELDS = re.compile(rb"<([A-Za-z0-9]+)>([^<]*)</\1>")
_START = re.compile(rb"\s*(?:<\?xml[^<>]*\?>)?\s*<ListBucketResult[\s>]")
_REFERENCE = re.compile(rb"&(?:#([0-9]{1,7})|#x([0-9A-Fa-f]{1,6})|([a-z]{2,4}));")
_NAMED = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}
# The shape nearly all ETags have on a page, taken without a detour.
_PLAIN_ETAG = re.compile(rb'(?:&quot;|")?([0-9A-Za-z-]{1,128})(?:&quot;|")?')
# Goes into If-Match and is compared: neither quotes nor what could end a header.
_ETAG = re.compile(r'(?:W/)?"?([^"\x00-\x1f\x7f]{1,1024})"?')

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_ARCHIVED = frozenset({"GLACIER", "DEEP_ARCHIVE"})


@dataclass(slots=True)
class Listing:
    """One page. Keys and prefixes are relative to the mounted prefix.

    `last_key` and `last_prefix` are the last names in the server's own order, not cut. `ignored`
    counts entries that cannot be used: outside the prefix asked for, or without ETag or size.
    """

    objects: list[ObjectInfo] = field(default_factory=list)
    prefixes: list[bytes] = field(default_factory=list)
    truncated: bool = False
    token: bytes | None = None
    marker: bytes | None = None
    is_v1: bool = False
    last_key: bytes = b""
    last_prefix: bytes = b""
    ignored: int = 0


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """What an error document says; empty strings where it does not."""

    code: str = ""
    message: str = ""
    region: str = ""


def parse_listing(page: bytes, root: bytes, wanted: bytes) -> Listing:
    """Read a page of the keys that start with *root* + *wanted*.

    *root* is the mounted prefix and is cut off. Raises `OriginReplyError` for anything but a page.
    """
    _refuse_markup(page)
    objects, rest = _cut_out(page, b"Contents")
    prefixes, rest = _cut_out(rest, b"CommonPrefixes")
    head = dict(_FIELDS.findall(rest))
    escaped = head.get(b"EncodingType") == b"url"
    listing = Listing(
        truncated=head.get(b"IsTruncated") == b"true",
        token=_text(head[b"NextContinuationToken"]) if head.get(b"NextContinuationToken") else None,
        marker=_name(head[b"NextMarker"], escaped=escaped) if head.get(b"NextMarker") else None,
        is_v1=b"KeyCount" not in head and b"<Marker" in rest,
    )
    reader = _EntryReader(listing, root, root + wanted, escaped=escaped)
    for entry in objects:
        reader.add_object(dict(_FIELDS.findall(entry)))
    for entry in prefixes:
        reader.add_prefix(dict(_FIELDS.findall(entry)))
    return listing


class _EntryReader:
    """Adds entries to a listing."""

    def __init__(self, listing: Listing, root: bytes, full: bytes, *, escaped: bool) -> None:
        self._listing = listing
        self._cut = len(root)
        self._full = full
        self._escaped = escaped
        self._times: dict[bytes, int] = {}

    def add_object(self, fields: dict[bytes, bytes]) -> None:
        """One `Contents` element."""
        full = self._name(fields.get(b"Key"))
        self._listing.last_key = full
        name = self._relative(full)
        if not name:
            return
        etag = _etag(fields.get(b"ETag", b""))
        size = fields.get(b"Size", b"")
        if etag is None or not size.isdigit() or len(size) > 18:
            self._listing.ignored += 1
            return
        archived = is_archived(fields.get(b"StorageClass", b"").decode("latin-1"))
        mtime = self._mtime(fields.get(b"LastModified", b""))
        self._listing.objects.append(ObjectInfo(name, int(size), etag, mtime, archived))

    def add_prefix(self, fields: dict[bytes, bytes]) -> None:
        """One `CommonPrefixes` element."""
        full = self._name(fields.get(b"Prefix"))
        self._listing.last_prefix = full
        if name := self._relative(full):
            self._listing.prefixes.append(name)

    def _name(self, raw: bytes | None) -> bytes:
        if raw is None:
            raise OriginReplyError("an entry of the listing has no name")
        return _name(raw, escaped=self._escaped)

    def _relative(self, name: bytes) -> bytes:
        """*name* below the mounted prefix; empty for what is not to be shown."""
        if not name.startswith(self._full):
            self._listing.ignored += 1
            return b""
        return name[self._cut :]  # empty for the marker of the mounted directory itself

    def _mtime(self, text: bytes) -> int:
        """Memoised: uploads come in bursts, so one page often holds few times."""
        mtime = self._times.get(text)
        if mtime is None:
            mtime = self._times[text] = parse_mtime(text.decode("latin-1"))
        return mtime


def parse_error(body: bytes) -> ErrorBody:
    """Read an error document; what is not one yields empty fields."""
    fields: dict[bytes, bytes] = {}
    for name, value in _FIELDS.findall(body[:ERROR_MAX]):
        fields.setdefault(name, value)
    code, message, region = (
        _text(fields.get(name, b"")).decode("utf-8", "replace")[:256]
        for name in (b"Code", b"Message", b"Region")
    )
    return ErrorBody(code, message, region)


def clean_etag(text: str) -> str | None:
    """*text* without quotes and weakness, or None if that is no usable ETag."""
    match = _ETAG.fullmatch(text.strip())
    return match[1] if match else None


def is_archived(storage_class: str) -> bool:
    """Whether objects of this class must be restored before they can be read."""
    return storage_class in _ARCHIVED


def parse_mtime(text: str) -> int:
    """ISO 8601 to nanoseconds, whole seconds as HEAD tells them; 0 for what is not a time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _SECOND * 1_000_000_000


def _refuse_markup(page: bytes) -> None:
    if not _START.match(page) or not page.rstrip().endswith(b"</ListBucketResult>"):
        raise OriginReplyError("the reply to LIST is not a listing")
    if b"<!" in page or b"\0" in page:
        raise OriginReplyError("the listing holds markup that S3 never sends")


def _cut_out(page: bytes, tag: bytes) -> tuple[list[bytes], bytes]:
    """The insides of all *tag* elements, and the page without them."""
    first, *parts = page.split(b"<%b>" % tag)
    rest = [first]
    entries = []
    for part in parts:
        entry, end, after = part.partition(b"</%b>" % tag)
        if not end:
            raise OriginReplyError("an entry of the listing has no end")
        entries.append(entry)
        rest.append(after)
    return entries, b"".join(rest)


def _etag(raw: bytes) -> str | None:
    match = _PLAIN_ETAG.fullmatch(raw)
    return match[1].decode() if match else clean_etag(_text(raw).decode("latin-1"))


def _name(raw: bytes, *, escaped: bool) -> bytes:
    """The bytes of a key: entities, then, once, the escapes of encoding-type=url."""
    name = _text(raw)
    return unquote_to_bytes(name.replace(b"+", b" ")) if escaped else name


def _text(raw: bytes) -> bytes:
    return _REFERENCE.sub(_character, raw) if b"&" in raw else raw


def _character(match: re.Match[bytes]) -> bytes:
    decimal, hexadecimal, name = match.groups()
    if name is not None:
        return _NAMED.get(name, match[0])
    point = int(decimal) if decimal else int(hexadecimal, 16)
    return chr(point).encode("utf-8", "surrogatepass") if point <= 0x10FFFF else match[0]
