"""What is read: each piece of work as readers of a mount do it and as a plain client does it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.client import Get, ParallelClient, ranges, whole
from bench.readers import parallel_files, parallel_streams, random_reads, sequential, touched_buffer
from bench.store import BUCKET, Store, timed_rate
from bench.workspace import BIG, Dataset, verify
from tiercache.types import KIB, MIB

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PART = 8 * MIB
READERS = 8
RANDOM_SIZE = 64 * KIB


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of work. `read` gives a rate in `unit`s below a root, `gets` is a client's part.

    `size` is how many bytes it moves, `unit_size` how many make one unit.
    """

    name: str
    unit: str
    size: int
    unit_size: int
    read: Callable[[Path], float]
    gets: Callable[[S3Client], Sequence[Get]]


def sequential_work(dataset: Dataset) -> Work:
    """One reader of the big object."""
    size, buffer = dataset.scale.big_size, touched_buffer(MIB)
    return Work(
        *("sequential", "B/s", size, 1),
        lambda root: sequential(f"{root}/{BIG}", buffer),
        lambda client: ranges(client, BUCKET, BIG, size, PART),
    )


def streams_work(dataset: Dataset) -> Work:
    """A reader each for several objects, all at once."""
    names, size = dataset.stream_names(), dataset.scale.stream_size
    return Work(
        *("streams", "B/s", size * len(names), 1),
        lambda root: parallel_streams([f"{root}/{name}" for name in names], MIB),
        lambda client: [get for name in names for get in ranges(client, BUCKET, name, size, PART)],
    )


def small_files_work(dataset: Dataset) -> Work:
    """All small files, by as many readers as a loader has workers."""
    names, size = dataset.small_names(), dataset.scale.small_size
    return Work(
        *("small-files", "files/s", size * len(names), size),
        lambda root: parallel_files([f"{root}/{name}" for name in names], size, READERS),
        lambda client: [whole(client, BUCKET, name, size) for name in names],
    )


def random_work(dataset: Dataset) -> Work:
    """One reader of small pieces at random places of the big object."""
    offsets = random_offsets(dataset)
    return Work(
        *("random-64k", "IO/s", len(offsets) * RANDOM_SIZE, RANDOM_SIZE),
        lambda root: random_reads(f"{root}/{BIG}", offsets, RANDOM_SIZE),
        lambda client: list(_pieces(client, dataset, offsets)),
    )


def random_offsets(dataset: Dataset) -> list[int]:
    """Where the random reads go, the same in every run."""
    rng = random.Random(65536)
    slots = dataset.scale.big_size // RANDOM_SIZE
    return [slot * RANDOM_SIZE for slot in rng.sample(range(slots), dataset.scale.block_reads)]


def _pieces(client: S3Client, dataset: Dataset, offsets: Sequence[int]) -> Iterator[Get]:
    every = ranges(client, BUCKET, BIG, dataset.scale.big_size, RANDOM_SIZE)
    return (every[offset // RANDOM_SIZE] for offset in offsets)


class PlainClient:
    """The plain parallel client doing one piece of work over a store, with the best connections."""

    def __init__(self, store: Store, work: Work, candidates: Sequence[int]) -> None:
        self._store, self._work = store, work
        self._gets = work.gets(store.client)
        self._body_max = max(get.length for get in self._gets)
        self.connections = candidates[0]
        if len(candidates) > 1:
            self.connections = max(candidates, key=self._best_of_two)

    def connected(self) -> ParallelClient:
        """Its connections, to be opened and closed by the caller."""
        return ParallelClient(self._store.url, self.connections, self._body_max)

    def rate(self, connected: ParallelClient) -> float:
        """Do the work once; units per second."""
        return timed_rate(lambda: connected.fetch(self._gets)) / self._work.unit_size

    def check_big(self) -> None:
        """Compare every byte that this client receives of the big object."""
        with self.connected() as plain:
            plain.fetch(self._gets, lambda offset, body: verify(body, offset, 0))

    def _best_of_two(self, connections: int) -> float:
        self.connections = connections
        with self.connected() as plain:
            return max(self.rate(plain) for _ in range(2))
