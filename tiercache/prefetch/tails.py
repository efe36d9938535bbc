"""Formats that keep their index at the end: readers look there right after the first bytes.

zip and what is built on it (npz, pt), parquet, arrow and orc. Files of safetensors begin with
theirs, which the first block holds.
"""

from __future__ import annotations

from tiercache.types import Inode

_SUFFIXES = (b".zip", b".npz", b".pt", b".pth", b".parquet", b".arrow", b".feather", b".orc")


def tail_of(obj: Inode, tail: int) -> tuple[int, int] | None:
    """The last *tail* bytes of *obj*, if an index is likely to be there."""
    if not tail or not obj.key.lower().endswith(_SUFFIXES):
        return None
    return max(0, obj.size - tail), obj.size
