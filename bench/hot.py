"""`hot`: data that lies in the local tier, against the same files in a plain directory beside it.

Both sides are on one file system and in the page cache (the cached tier file is what the mount
reads from), so a ratio shows what the mount costs and nothing else. Only `hot.random-4k` goes to
the disk: O_DIRECT, the same offsets on both sides.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from bench.readers import (
    PAGE,
    random_direct,
    sequential,
    touch_pages,
    touched_buffer,
    whole_files,
)
from bench.rows import Pair, Row, alternate
from bench.workspace import BIG, SMALL, Dataset, Scale, say, verify_tree
from tiercache.types import KIB, MIB

NATIVE = "native directory"
GOALS = {
    "hot.sequential": 0.95,
    "hot.random-4k": 0.95,
    "hot.mmap": 0.95,
    "hot.small-files": 0.45,
}
#: A pair of O_DIRECT samples is cut into this many alternating slices: the disk of a shared
#: machine changes its mind within a second, and both sides should meet the same moods.
DIRECT_SLICES = 8

Reader = Callable[[Path], float]


def parts(wanted: Collection[str]) -> frozenset[str]:
    """What of the dataset the rows `wanted` read."""
    return frozenset(SMALL if name == "hot.small-files" else BIG for name in wanted)


def measure(
    dataset: Dataset, native: Path, mount: Path, rounds: int, wanted: Collection[str] = tuple(GOALS)
) -> Iterator[Row]:
    """Rows of `hot`, for a tree that is present below both roots.

    Reads everything once before (which warms both sides and checks every byte).
    """
    for root in (native, mount):
        say(f"warming and checking {root}")
        verify_tree(dataset, root)
    os.sync()  # dirty pages of freshly cached files would be written during O_DIRECT reads
    for name, unit, reader in readers(dataset.scale):
        if name in wanted:
            say(f"{name}, {rounds} rounds")
            yield Row(name, unit, NATIVE, GOALS[name], _pairs(reader, native, mount, rounds))


def readers(scale: Scale) -> list[tuple[str, str, Reader]]:
    """Name, unit and reading loop of each row; buffers are made and touched here, once."""
    mebi, small = touched_buffer(MIB), touched_buffer(128 * KIB)
    names = Dataset(scale).small_names() * scale.small_passes
    offsets = direct_offsets(scale)
    places = page_places(scale)
    touch = itemgetter(*places)
    return [
        ("hot.sequential", "B/s", lambda root: sequential(f"{root}/{BIG}", mebi)),
        ("hot.random-4k", "IO/s", _Direct(offsets)),
        ("hot.mmap", "touches/s", lambda root: touch_pages(f"{root}/{BIG}", touch, len(places))),
        (
            "hot.small-files",
            "files/s",
            lambda root: whole_files([f"{root}/{name}" for name in names], scale.small_size, small),
        ),
    ]


def direct_offsets(scale: Scale) -> list[int]:
    """Where the O_DIRECT reads go: random pages of the big file, the same in every run."""
    rng = random.Random(4096)
    return [rng.randrange(scale.big_size // PAGE) * PAGE for _ in range(scale.random_reads)]


def page_places(scale: Scale) -> list[int]:
    """Every page of the big file once, in random order, at a random byte of each."""
    rng = random.Random(1)
    pages = list(range(scale.big_size // PAGE))
    rng.shuffle(pages)
    return [page * PAGE + rng.randrange(PAGE) for page in pages]


class _Direct:
    """O_DIRECT reads of 4 KiB, slice after slice of one list of offsets."""

    def __init__(self, offsets: Sequence[int]) -> None:
        self._buffer = touched_buffer(PAGE)
        step = max(1, len(offsets) // DIRECT_SLICES)
        self.slices = [offsets[start : start + step] for start in range(0, len(offsets), step)]

    def __call__(self, root: Path) -> float:
        return self.read(root, [offset for part in self.slices for offset in part])

    def read(self, root: Path, offsets: Sequence[int]) -> float:
        return random_direct(f"{root}/{BIG}", offsets, self._buffer)


def _pairs(reader: Reader, native: Path, mount: Path, rounds: int) -> Sequence[Pair]:
    reader(native), reader(mount)  # warm-up: code paths, dentries, tlb
    if not isinstance(reader, _Direct):
        return alternate(rounds, lambda: reader(mount), lambda: reader(native))
    return [_sliced_pair(reader, native, mount) for _ in range(rounds)]


def _sliced_pair(reader: _Direct, native: Path, mount: Path) -> Pair:
    """One pair whose sides took turns slice by slice; rates are combined over the whole time."""
    seconds = [0.0, 0.0]
    for number, part in enumerate(reader.slices):
        sides = [(0, native), (1, mount)]
        for side, root in sides if number % 2 else reversed(sides):
            seconds[side] += len(part) / reader.read(root, part)
    total = sum(map(len, reader.slices))
    return Pair(mount=total / seconds[1], baseline=total / seconds[0])
