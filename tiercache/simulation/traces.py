"""Any trace as a sequence of uses, whatever its format; and from one format to another.

Reading streams: a trace may be larger than memory. A file whose end is missing is read up to there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from tiercache.errors import TraceError
from tiercache.simulation import csvtrace, oracletrace, tracefile
from tiercache.simulation.replay import Access

NATIVE: Final = "tiercache"
CSV: Final = "csv"
ORACLE: Final = "oracleGeneral"
FORMATS: Final = (NATIVE, CSV, ORACLE)

_SAMPLE: Final = 128 * oracletrace.RECORD_SIZE

_COMPRESSED: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
}

_READERS: Final[dict[str, Callable[[BinaryIO], Iterator[Access]]]] = {
    NATIVE: tracefile.read,
    CSV: csvtrace.read,
    ORACLE: oracletrace.read,
}


class Trace:
    """A trace file; iterate as often as needed, each time from the start.

    `damage` says after an iteration why it ended early; None: it did not.
    """

    def __init__(self, path: Path, form: str | None = None) -> None:
        """Raises TraceError for what is no trace, or not one of format *form*."""
        self.path = path
        self.damage: str | None = None
        with self._open() as file:
            self.bytes = os.fstat(file.fileno()).st_size
            sample = self._sample(file)
        self.format = form or self._detect(sample)
        if self.format == NATIVE:
            self._check_native(sample)

    def __iter__(self) -> Iterator[Access]:
        """The uses. Raises TraceError for a line or a disk that cannot be read."""
        self.damage = None
        with self._open() as file:
            try:
                yield from _READERS[self.format](file)
            except tracefile.Damage as damage:
                self.damage = str(damage)
            except (csvtrace.LineError, OSError) as error:
                raise TraceError(f"{self.path}: {error}") from error
        if self.format == ORACLE and self.bytes % oracletrace.RECORD_SIZE:
            self.damage = "its last record is cut off"

    def _open(self) -> BinaryIO:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise TraceError(f"{self.path}: not a regular file")
        return os.fdopen(descriptor, "rb")

    def _sample(self, file: BinaryIO) -> bytes:
        try:
            return file.read(_SAMPLE)
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror}") from error

    def _detect(self, sample: bytes) -> str:
        if not sample:
            raise TraceError(f"{self.path}: empty")
        for magic, name in _COMPRESSED.items():
            if sample.startswith(magic):
                raise TraceError(f"{self.path}: compressed by {name}; decompress it first")
        if sample.startswith(tracefile.MAGIC):
            return NATIVE
        if csvtrace.looks_like(sample):
            return CSV
        if oracletrace.looks_like(sample):
            return ORACLE
        raise TraceError(f"{self.path}: not a trace; known formats: {', '.join(FORMATS)}")

    def _check_native(self, sample: bytes) -> None:
        if not sample.startswith(tracefile.MAGIC):
            raise TraceError(f"{self.path}: not a trace of tiercache")
        try:
            tracefile.check_header(sample)
        except ValueError as error:
            raise TraceError(f"{self.path}: {error}") from error


def convert(trace: Trace, target: Path, form: str) -> int:
    """Write *trace* to the new file *target* in format *form*; how many uses it has.

    Raises TraceError; then there is no such file.
    """
    file = tracefile.create(target)
    try:
        with file:
            return _write(trace, file, form)
    except BaseException as error:
        with contextlib.suppress(OSError):
            target.unlink()
        if isinstance(error, OSError | OverflowError):
            raise TraceError(f"{target}: {error}") from error
        raise


def _write(trace: Trace, file: BinaryIO, form: str) -> int:
    if form == ORACLE:
        return oracletrace.write(file, iter(trace), trace)
    write = csvtrace.write if form == CSV else tracefile.write
    return write(file, iter(trace))


def format_for(path: Path) -> str:
    """The format a file called *path* is expected to have."""
    if path.suffix.lower() == ".csv":
        return CSV
    return ORACLE if ORACLE.lower() in path.name.lower() else NATIVE
