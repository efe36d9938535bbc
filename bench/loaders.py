"""Training files and how the loaders of MLPerf Storage read them.

Each format writes a file of given samples and reads it as the framework does: `Npz` by
`numpy.load`, as PyTorch's unet3d does; `TfRecord` by reads of 256 KiB from start to end, as
TensorFlow's record reader does; `Jpeg` whole. Nothing is decoded further.
"""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from bench.readers import touched_buffer
from tiercache.types import KIB, MIB

TFRECORD_READ = 256 * KIB


class Reader(Protocol):
    """How samples are read."""

    def read(self, path: str, samples: Sequence[int]) -> Iterator[None]:
        """Read a file; an item per sample as soon as it is there."""


class Format(Reader, Protocol):
    """How samples are laid out in files, and read."""

    def write(self, path: Path, samples: Sequence[int], rng: random.Random) -> None:
        """Make a file that holds samples of these sizes, of bytes that do not compress."""


class Npz:
    """One array in an uncompressed zip archive."""

    def write(self, path: Path, samples: Sequence[int], rng: random.Random) -> None:
        """See `Format`."""
        import numpy  # only this format needs it

        array = numpy.frombuffer(rng.randbytes(sum(samples)), numpy.uint8)
        with path.open("wb") as file:
            numpy.savez(file, x=array)

    def read(self, path: str, samples: Sequence[int]) -> Iterator[None]:
        """See `Format`."""
        import numpy

        with numpy.load(path) as archive:
            _expect(path, archive["x"].nbytes, sum(samples))
        for _ in samples:
            yield


class TfRecord:
    """Records one after the other."""

    def __init__(self) -> None:
        self._buffer: mmap.mmap | None = None  # made by each reader: forks would share it

    def write(self, path: Path, samples: Sequence[int], rng: random.Random) -> None:
        """See `Format`."""
        _write_noise(path, sum(samples), rng)

    def read(self, path: str, samples: Sequence[int]) -> Iterator[None]:
        """See `Format`."""
        self._buffer = self._buffer or touched_buffer(TFRECORD_READ)
        fd = os.open(path, os.O_RDONLY)
        try:
            position = end = 0
            for size in samples:
                end += size
                while position < end and (count := os.preadv(fd, [self._buffer], position)):
                    position += count
                if position < end:
                    _expect(path, position, end)
                yield
        finally:
            os.close(fd)


class Jpeg:
    """One file per sample, read whole."""

    def write(self, path: Path, samples: Sequence[int], rng: random.Random) -> None:
        """See `Format`."""
        _write_noise(path, sum(samples), rng)

    def read(self, path: str, samples: Sequence[int]) -> Iterator[None]:
        """See `Format`."""
        _expect(path, len(Path(path).read_bytes()), sum(samples))
        for _ in samples:
            yield


def _write_noise(path: Path, size: int, rng: random.Random) -> None:
    with path.open("wb") as file:
        for start in range(0, size, MIB):
            file.write(rng.randbytes(min(MIB, size - start)))


def _expect(path: str, count: int, size: int) -> None:
    if count != size:
        raise ValueError(f"{path}: {count} of {size} bytes")
