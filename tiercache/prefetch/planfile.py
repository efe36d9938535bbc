r"""Lists of files as people and samplers write them: plan files and manifests.

One entry per line, in one of these forms, which may be mixed:

    train/shard-000.tar                                     all of a file
    train/tokens.bin<TAB>1048576<TAB>65536                  offset and length in bytes
    {"path": "train/tokens.bin", "offset": 0, "length": 4}  JSON, for names with tabs or newlines

Paths are relative to the mount, or absolute below the mount point. Empty lines and lines that begin
with `#` are skipped; `./#name` names such a file. The text is hostile input: whatever is wrong is
one line that names the file and the line in it, and no line may be longer than 64 KiB.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

import trio

from tiercache.errors import PlanError
from tiercache.prefetch.plan import PlanItem

LINE_MAX: Final = 64 << 10
_PATH_MAX: Final = 4096
_OFFSET_MAX: Final = 1 << 62

#: Lines read in one thread hop.
_SLICE: Final = 4096


def parse(lines: Iterable[bytes], mountpoint: bytes = b"") -> Iterator[PlanItem]:
    """The entries of *lines*. Raises PlanError, which names the line."""
    for number, line in enumerate(lines, 1):
        try:
            item = _entry(line, mountpoint)
        except ValueError as error:
            raise PlanError(f"line {number}: {error}") from None
        if item is not None:
            yield item


def items(file: Path, mountpoint: Path, entries_max: int) -> Generator[PlanItem, None, None]:
    """The entries of *file*; blocks. Raises PlanError, also for more than *entries_max*.

    Only of regular files: anything else may block for ever.
    """
    with _open(file) as stream:
        try:
            entries = parse(_lines(stream), os.fsencode(mountpoint))
            yield from islice(entries, entries_max)
            _end(entries, entries_max)
        except PlanError as error:
            raise PlanError(f"{file}: {error}") from None
        except OSError as error:
            raise PlanError(f"{file}: {error.strerror}") from None


async def read(file: Path, mountpoint: Path, entries_max: int) -> AsyncGenerator[PlanItem, None]:
    """As `items`, off the loop and without having all of them in memory."""
    entries = items(file, mountpoint, entries_max)
    try:
        while batch := await trio.to_thread.run_sync(list, islice(entries, _SLICE)):
            for item in batch:
                yield item
    finally:
        entries.close()


def _end(entries: Iterator[PlanItem], entries_max: int) -> None:
    if next(entries, None) is not None:
        raise PlanError(f"more than {entries_max} entries")


def _open(file: Path) -> BinaryIO:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise PlanError(f"{file}: {why}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PlanError(f"{file}: not a regular file")
    return open(fd, "rb")


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    while line := stream.readline(LINE_MAX + 1):
        yield line


def _entry(line: bytes, mountpoint: bytes) -> PlanItem | None:
    if len(line) > LINE_MAX:
        raise ValueError(f"longer than {LINE_MAX} bytes")
    line = line.rstrip(b"\r\n")
    if not line or line.startswith(b"#"):
        return None
    path, offset, length = _from_json(line) if line.startswith(b"{") else _from_fields(line)
    path = _relative(path, mountpoint)
    if length is None:
        return PlanItem(path, offset)
    if not length:
        raise ValueError("the length is 0")
    return PlanItem(path, offset, offset + length)


def _from_fields(line: bytes) -> tuple[bytes, int, int | None]:
    path, *numbers = line.split(b"\t")
    if len(numbers) not in (0, 2):
        raise ValueError("expected PATH, or PATH, OFFSET and LENGTH with tabs between them")
    if not numbers:
        return path, 0, None
    if not all(number.isdigit() and len(number) < 20 for number in numbers):
        raise ValueError("offset and length must be whole numbers of bytes")
    return path, _bounded(int(numbers[0])), _bounded(int(numbers[1]))


def _from_json(line: bytes) -> tuple[bytes, int, int | None]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("not JSON, though it begins with {") from None
    if unknown := sorted(entry.keys() - {"path", "offset", "length"}):
        raise ValueError(f"unknown key {unknown[0][:40]!r}; known: path, offset, length")
    path, offset, length = entry.get("path"), entry.get("offset", 0), entry.get("length")
    if not isinstance(path, str):
        raise ValueError("path must be text")  # noqa: TRY004 - a bad line, not a bad call
    if type(offset) is not int or type(length) not in (int, type(None)):
        raise ValueError("offset and length must be whole numbers of bytes")
    return os.fsencode(path), _bounded(offset), None if length is None else _bounded(length)


def _bounded(number: int) -> int:
    if not 0 <= number < _OFFSET_MAX:
        raise ValueError("offset and length must be whole numbers of bytes")
    return number


def _relative(path: bytes, mountpoint: bytes) -> bytes:
    if mountpoint and path.startswith(mountpoint + b"/"):
        path = path[len(mountpoint) :]
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if not parts:
        raise ValueError("no path")
    if b".." in parts or b"\0" in path or len(path) > _PATH_MAX:
        raise ValueError("not a path below the mount")
    return b"/".join(parts)
