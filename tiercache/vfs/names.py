"""Which keys are names, and which cannot be.

A key is a path only if every component is a legal name: not empty, not `.` or `..`, no NUL, at most
NAME_MAX bytes. Other keys are hidden and counted; they never make a broken entry or escape the
tree. Names are the key's own bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiercache.catalog import NewEntry
from tiercache.types import NAME_MAX, Kind, ListPage, ObjectInfo

#: Times are signed 64-bit nanoseconds everywhere below: the years 1678 to 2262.
_MTIME_MAX_NS = (1 << 63) - 1


def is_name(name: bytes) -> bool:
    """Whether *name* can be one component of a path."""
    return (
        0 < len(name) <= NAME_MAX
        and name not in (b".", b"..")
        and b"/" not in name
        and b"\0" not in name
    )


def entries(prefix: bytes, page: ListPage) -> tuple[list[NewEntry], int]:
    """Names directly below *prefix* in a page listed with a delimiter, and how many are hidden.

    Directories come first, so that where both `x` and `x/` are on the page the directory is seen
    first. The directory's own marker (`prefix` itself) is neither a name nor hidden.
    """
    found = [*_directories(prefix, page.prefixes), *_files(prefix, page.objects)]
    markers = sum(1 for info in page.objects if info.key == prefix)
    return found, len(page.prefixes) + len(page.objects) - markers - len(found)


def file_entry(name: bytes, info: ObjectInfo) -> NewEntry:
    """The entry that *info* makes under *name*; a time out of range becomes the nearest in it."""
    mtime_ns = min(max(info.mtime_ns, -_MTIME_MAX_NS), _MTIME_MAX_NS)
    return NewEntry(name, Kind.FILE, info.size, mtime_ns, info.etag, info.archived)


def directory_entry(name: bytes) -> NewEntry:
    """The entry of a common prefix."""
    return NewEntry(name, Kind.DIRECTORY, 0, 0, "", False)


def _directories(prefix: bytes, prefixes: Iterable[bytes]) -> Iterable[NewEntry]:
    cut = len(prefix)
    for full in prefixes:
        name = full[cut:-1]
        if full.startswith(prefix) and full.endswith(b"/") and is_name(name):
            yield directory_entry(name)


def _files(prefix: bytes, objects: Iterable[ObjectInfo]) -> Iterable[NewEntry]:
    cut = len(prefix)
    for info in objects:
        name = info.key[cut:]
        if info.key.startswith(prefix) and is_name(name):
            yield file_entry(name, info)
