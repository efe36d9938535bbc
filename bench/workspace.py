"""The files a benchmark reads, and where they live.

Every file is `tiercache.testing.data.pattern` of its own seed under noise, so any side can be
checked byte for byte without a second copy. Without the noise it would compress, and a server that
compresses (SeaweedFS does) would spend most of its time on that, as it cannot with training data.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tiercache.testing.data import pattern
from tiercache.types import GIB, MIB

BIG = "big.bin"
SMALL = "small"
STREAMS = "streams"
MANY = "many"
_NOISE = int.from_bytes(random.Random(0).randbytes(MIB), "little")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is read. `small_size` of 110 KB is a typical ImageNet JPEG.

    `many_count` files of `many_size` are open at the same time. `smoke`: whether all works is what
    matters, not the figures.
    """

    name: str
    big_size: int
    small_count: int
    small_size: int
    small_passes: int
    random_reads: int
    rounds: int
    stream_size: int
    block_reads: int
    many_count: int = 300
    many_size: int = 8 * MIB
    smoke: bool = False


SCALES = {
    scale.name: scale
    for scale in (
        Scale("full", GIB, 2000, 110_000, 5, 4000, 9, 128 * MIB, 256),
        Scale("small", 16 * MIB, 40, 110_000, 1, 64, 5, 2 * MIB, 8, 16, 2 * MIB, smoke=True),
    )
}


@dataclass(frozen=True, slots=True)
class Dataset:
    """What the files are called and what is in them.

    *streams* are read side by side. Only those of *parts* are there: `BIG`, or folders.
    """

    scale: Scale
    streams: int = 0
    parts: frozenset[str] = frozenset({BIG, SMALL})

    def small_names(self) -> list[str]:
        """Paths of the small files below the root, in listing order."""
        return [f"{SMALL}/{number:06d}.jpg" for number in range(self.scale.small_count)]

    def stream_names(self) -> list[str]:
        """Paths of the files that are read side by side."""
        return [f"{STREAMS}/{number}.bin" for number in range(self.streams)]

    def many_names(self) -> list[str]:
        """Paths of the files that are all open at the same time."""
        return [f"{MANY}/{number:03d}.bin" for number in range(self.scale.many_count)]

    def sizes(self) -> dict[str, int]:
        """Size of every file by its path below the root."""
        sizes = {BIG: self.scale.big_size}
        sizes |= dict.fromkeys(self.small_names(), self.scale.small_size)
        sizes |= dict.fromkeys(self.stream_names(), self.scale.stream_size)
        sizes |= dict.fromkeys(self.many_names(), self.scale.many_size)
        return {name: size for name, size in sizes.items() if name.split("/")[0] in self.parts}

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of one file, a MiB at a time."""
        size, seed = self.sizes()[name], self.seed(name)
        for offset in range(0, size, MIB):
            yield content(offset, min(MIB, size - offset), seed)

    def seed(self, name: str) -> int:
        """The seed of a file's content: its number, 0 for the big one."""
        if name == BIG:
            return 0
        number = 1 + int(Path(name).stem)
        return {SMALL: number, STREAMS: -number, MANY: -1000 - number}[name.split("/")[0]]


def content(offset: int, size: int, seed: int) -> bytes:
    """What file *seed* holds from *offset*, a multiple of a MiB; at most a MiB of it."""
    plain = int.from_bytes(pattern(offset, size, seed), "little")
    noise = _NOISE & ((1 << 8 * size) - 1)
    return (plain ^ noise).to_bytes(size, "little")


def verify(data: memoryview, offset: int, seed: int) -> None:
    """Raise ValueError unless file *seed* holds *data* at *offset*, a multiple of a MiB."""
    for start in range(0, len(data), MIB):
        part = data[start : start + MIB]
        if part != content(offset + start, len(part), seed):
            raise ValueError(f"file {seed}: wrong bytes in MiB {(offset + start) // MIB}")


def write_tree(dataset: Dataset, root: Path) -> None:
    """Write every file below `root`, which must exist and be empty, down to the disk."""
    for folder in {(root / name).parent for name in dataset.sizes()}:
        folder.mkdir(exist_ok=True)
    for name in dataset.sizes():
        with (root / name).open("wb") as file:
            for chunk in dataset.chunks(name):
                file.write(chunk)
    os.sync()


def verify_tree(dataset: Dataset, root: Path) -> None:
    """Compare every byte below `root` with what it must be; raises ValueError on a difference."""
    buffer = bytearray(MIB)
    view = memoryview(buffer)
    for name in dataset.sizes():
        with (root / name).open("rb", buffering=0) as file:
            for number, expected in enumerate(dataset.chunks(name)):
                if file.readinto(view[: len(expected)]) != len(expected) or not buffer.startswith(
                    expected
                ):
                    raise ValueError(f"{root / name}: wrong bytes in MiB {number}")
            if file.read(1):
                raise ValueError(f"{root / name}: longer than {dataset.sizes()[name]} bytes")


@contextlib.contextmanager
def workspace(parent: Path | None, needed: int) -> Iterator[Path]:
    """A temporary directory below `parent` (default: `/var/tmp`, as `/tmp` may be memory).

    Raises `OSError` when the disk cannot hold `needed` bytes more. Removed on exit.
    """
    home = parent or Path("/var/tmp")
    free = shutil.disk_usage(home).free
    if free < needed:
        raise OSError(f"{home}: {free / GIB:.1f} GiB free, {needed / GIB:.1f} GiB needed (--dir)")
    path = Path(tempfile.mkdtemp(prefix="tiercache-bench-", dir=home))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def say(message: str) -> None:
    """Progress for people: stderr, so that stdout stays machine-readable."""
    print(f"bench: {message}", file=sys.stderr, flush=True)
