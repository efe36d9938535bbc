"""Where a tier keeps what: names, directories, and which file systems can back passthrough.

    <tier path>/<origin id>/usage                 bytes used by that origin, in decimal
    <tier path>/<origin id>/v1/ab/<digest>.data   sparse mirror of one object version
    <tier path>/<origin id>/v1/ab/<digest>.meta   sidecar of a complete one
    <tier path>/<origin id>/v1/trash-<n>          on its way out

File names are digests of (origin, key, ETag), never keys: any key fits in NAME_MAX, none can leave
the directory, and two versions never share a file. `v1` is the version of this layout.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

VERSION = "v1"
DATA, META = ".data", ".meta"
DIGEST_SIZE = 20
SHARDS = 256

#: Allocation unit of every common file system.
PAGE = 4096

#: File systems that themselves stack: the kernel refuses them as backing (ELOOP).
_STACKED = ("overlay", "ecryptfs", "fuse", "aufs")


def origin_id(identity: str) -> str:
    """Name of an origin's directory below a tier path: 16 hex digits."""
    return hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()


def is_origin_id(name: str) -> bool:
    """Whether *name* can be the directory of an origin."""
    return len(name) == 16 and set(name) <= set("0123456789abcdef")


class Namer:
    """Digests of object versions of one origin."""

    def __init__(self, identity: str) -> None:
        self._base = hashlib.blake2b(digest_size=DIGEST_SIZE)
        self._feed(self._base, identity.encode())

    def digest(self, key: bytes, etag: str) -> bytes:
        """What names version *etag* of *key* on disk."""
        state = self._base.copy()
        self._feed(state, key)
        self._feed(state, etag.encode())
        return state.digest()

    @staticmethod
    def _feed(state: hashlib.blake2b, part: bytes) -> None:
        # The length in front keeps (ab, c) and (a, bc) apart.
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)


def allocated(nbytes: int) -> int:
    """Bytes of disk that *nbytes* of content take."""
    return -(-nbytes // PAGE) * PAGE


def overhead(blocks: int, key_size: int) -> int:
    """Bytes an object takes beside its blocks: the sidecar and, once fragmented, extent pages."""
    sidecar = allocated(512 + 3 * key_size + 8 * blocks)
    extents = 0 if blocks <= 4 else PAGE * (1 + blocks // 256)
    return sidecar + extents


def filesystem_type(path: Path) -> str:
    """Type of the file system that holds *path*, as /proc/self/mountinfo names it."""
    target = os.path.realpath(path)
    best, kind = "", "unknown"
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].encode().decode("unicode_escape")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        # A later line with the same mount point lies on top of the earlier one.
        if inside and len(point) >= len(best):
            best, kind = point, rest.split()[0]
    return kind


def why_no_backing(kind: str) -> str | None:
    """Why files on a file system of type *kind* cannot back passthrough, or None: they can."""
    if kind.split(".")[0] in _STACKED:
        return f"its directory is on {kind}, which the kernel does not stack under FUSE"
    return None
