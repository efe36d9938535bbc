"""`cold`: data that lies in the object store only, against a plain parallel client of that store.

The server is SeaweedFS on loopback with its data in the page cache. Every sample of the mount has a
fresh mount and an empty cache directory; mounting and the first listing are not timed, as they are
not for the client, which knows its keys. Server and clients share the machine's cores, so the rows
also say what CPU time each side and the server spent.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from boto3.s3.transfer import TransferConfig

from bench.client import Get, ParallelClient, ranges, whole
from bench.readers import parallel_files, sequential, touched_buffer
from bench.rows import Row, alternate
from bench.workspace import BIG, SMALL, Dataset, say, verify_tree
from tiercache.testing.data import check
from tiercache.testing.mounting import CommandMount, mounted
from tiercache.testing.seaweed import SeaweedServer
from tiercache.types import MIB

BUCKET = "bench"
PART = 8 * MIB
READERS = 8
#: How many connections the plain client is tried with; the best counts.
CONNECTIONS = (4, 8)
SMALL_CONNECTIONS = 8
GOALS = {"cold.sequential": 0.7, "cold.small-files": 0.5}


@dataclass(slots=True)
class Cpu:
    """CPU seconds per GB that one side's samples took, by who spent them."""

    samples: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def measure(self, processes: dict[str, psutil.Process], size: int) -> Iterator[None]:
        """Count what `processes` spend in the block, which moves `size` bytes."""
        before = {name: _cpu_seconds(process) for name, process in processes.items()}
        yield
        for name, process in processes.items():
            spent = (_cpu_seconds(process) - before[name]) / (size / 1e9)
            self.samples.setdefault(name, []).append(spent)

    def medians(self) -> dict[str, float]:
        """The median per name."""
        return {name: round(median(values), 3) for name, values in self.samples.items()}


@dataclass(frozen=True, slots=True)
class Store:
    """A started server that holds the dataset, and where mounts of it may live."""

    server: SeaweedServer
    dataset: Dataset
    workspace: Path
    mount_options: Sequence[str] = ()

    def fill(self, tree: Path) -> None:
        """Upload the tree that was written below `tree`."""
        self.server.create_bucket(BUCKET)
        config = TransferConfig(max_concurrency=4)
        for name in self.dataset.sizes():
            self.server.shared_client.upload_file(str(tree / name), BUCKET, name, Config=config)

    @contextmanager
    def cold_mount(self) -> Iterator[CommandMount]:
        """A fresh mount over an empty cache, its directories listed once, as a loader does."""
        cache = Path(tempfile.mkdtemp(prefix="cache-", dir=self.workspace))
        options = [f"--cache-dir={cache}", f"--endpoint-url={self.server.endpoint_url}"]
        mountpoint = self.workspace / "mount"
        options += self.mount_options
        try:
            with mounted(f"s3://{BUCKET}", mountpoint, options, self.server.env()) as mount:
                for folder in (mountpoint, mountpoint / SMALL):
                    _list(folder)
                yield mount
        finally:
            _empty(cache)

    def processes(self, mount: CommandMount | None = None) -> dict[str, psutil.Process]:
        """Whose CPU time a sample costs: the server, and the worker or this client."""
        client = psutil.Process(mount.status()["worker"]["pid"] if mount else None)
        return {"worker" if mount else "client": client, "server": psutil.Process(self.server.pid)}


def _empty(cache: Path) -> None:
    """Drop the dirty pages, whose write-back would slow the next sample down.

    The files stay, empty, until the workspace goes: without a journal ext4 searches past inodes
    that were freed lately, which would make creating the next sample's files several times slower.
    """
    for file in cache.rglob("*"):
        if file.is_file():
            os.truncate(file, 0)


def measure(store: Store, rounds: int) -> list[Row]:
    """All rows of `cold`; the store must be filled. Checks every byte of both sides before."""
    say("cold: warming the server and checking the mount")
    with store.cold_mount() as mount:
        verify_tree(store.dataset, mount.mountpoint)
    return [_sequential(store, rounds), _small_files(store, rounds)]


def _sequential(store: Store, rounds: int) -> Row:
    size, buffer = store.dataset.scale.big_size, touched_buffer(MIB)
    client = store.server.shared_client
    gets = ranges(client, BUCKET, BIG, size, PART)
    mount_cpu, client_cpu = Cpu(), Cpu()

    def mount_sample() -> float:
        with store.cold_mount() as mount, mount_cpu.measure(store.processes(mount), size):
            return sequential(f"{mount.mountpoint}/{BIG}", buffer)

    say(f"cold.sequential: the plain client with {CONNECTIONS} connections")
    best = max(CONNECTIONS, key=lambda count: _client_best(store, gets, count))

    def client_sample() -> float:
        connections = ParallelClient(store.server.endpoint_url, best, PART)
        with connections as plain, client_cpu.measure(store.processes(), size):
            return _timed_rate(lambda: plain.fetch(gets))

    say(f"cold.sequential, {rounds} rounds")
    pairs = alternate(rounds, mount_sample, client_sample)
    name = f"plain parallel client, {best} connections"
    extra = _extra(mount_cpu, client_cpu)
    return Row("cold.sequential", "B/s", name, GOALS["cold.sequential"], pairs, extra)


def _small_files(store: Store, rounds: int) -> Row:
    scale, names = store.dataset.scale, store.dataset.small_names()
    size = scale.small_size * len(names)
    client = store.server.shared_client
    gets = [whole(client, BUCKET, name, scale.small_size) for name in names]
    mount_cpu, client_cpu = Cpu(), Cpu()

    def mount_sample() -> float:
        with store.cold_mount() as mount:
            paths = [f"{mount.mountpoint}/{name}" for name in names]
            with mount_cpu.measure(store.processes(mount), size):
                return parallel_files(paths, scale.small_size, READERS)

    def client_sample() -> float:
        connections = ParallelClient(store.server.endpoint_url, SMALL_CONNECTIONS, scale.small_size)
        with connections as plain, client_cpu.measure(store.processes(), size):
            return _timed_rate(lambda: plain.fetch(gets)) / scale.small_size

    client_sample()  # warm-up
    client_cpu.samples.clear()
    say(f"cold.small-files, {rounds} rounds")
    pairs = alternate(rounds, mount_sample, client_sample)
    name = f"plain parallel client, {SMALL_CONNECTIONS} connections"
    extra = {"readers": READERS, **_extra(mount_cpu, client_cpu)}
    return Row("cold.small-files", "files/s", name, GOALS["cold.small-files"], pairs, extra)


def _list(folder: Path) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            entry.stat()


def _client_best(store: Store, gets: Sequence[Get], connections: int) -> float:
    """Best of two, after one pass that checks every byte (seed 0 is the big file's)."""
    with ParallelClient(store.server.endpoint_url, connections, PART) as plain:
        plain.fetch(gets, lambda offset, body: check(body, offset, 0))
        return max(_timed_rate(lambda: plain.fetch(gets)) for _ in range(2))


def _timed_rate(fetch: Callable[[], int]) -> float:
    start = time.perf_counter()
    count = fetch()
    return count / (time.perf_counter() - start)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _extra(mount_cpu: Cpu, client_cpu: Cpu) -> dict[str, Any]:
    return {
        "mount_cpu_s_per_gb": mount_cpu.medians(),
        "baseline_cpu_s_per_gb": client_cpu.medians(),
    }
