"""Our own trace files: a header, then blocks. Written as they come, read from the start."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from tiercache.errors import TraceError
from tiercache.simulation.blocks import (
    HEAD_SIZE,
    BlockBuilder,
    DamagedBlockError,
    body_size,
    decode,
)
from tiercache.simulation.replay import Access

MAGIC: Final = b"tiercache trace\n"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<16sHH")  # magic, version, 0

HEADER: Final = _HEADER.pack(MAGIC, VERSION, 0)


def create(path: Path) -> BinaryIO:
    """A new file at *path* that only its owner can read. Raises TraceError, also if it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, 0o600), "wb")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error


def write(file: BinaryIO, accesses: Iterator[Access]) -> int:
    """Write a whole trace; how many uses it has."""
    file.write(HEADER)
    builder, count = BlockBuilder(), 0
    for access in accesses:
        time_ms = round(access.time * 1000)
        if not builder.add(time_ms, access.item, access.size, access.group):
            file.write(builder.encode())
            builder = BlockBuilder()
            builder.add(time_ms, access.item, access.size, access.group)
        count += 1
    if len(builder):
        file.write(builder.encode())
    return count


def check_header(head: bytes) -> None:
    """Raises ValueError when *head*, the first bytes of a file, announces a version not known."""
    if len(head) < len(HEADER):
        raise ValueError("its header is cut off")
    _, version, _ = _HEADER.unpack_from(head)
    if version != VERSION:
        raise ValueError(f"version {version} of the format is not known; this is version {VERSION}")


class Damage(Exception):  # noqa: N818 - not an error of the reader
    """From byte `offset` on nothing can be read."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"cannot be read from byte {offset:,} on: {why}")


def read(file: BinaryIO) -> Iterator[Access]:
    """The uses in *file*; ends with `Damage` where a block is not whole."""
    file.seek(offset := len(HEADER))
    while head := file.read(HEAD_SIZE):
        try:
            body = file.read(body_size(head))
            uses = decode(head, body)
        except DamagedBlockError as error:
            raise Damage(offset, str(error)) from error
        yield from uses
        offset += len(head) + len(body)
