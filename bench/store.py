"""The object store that cold data comes from, mounts of it, and what CPU time a sample costs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import psutil
from boto3.s3.transfer import TransferConfig

from bench.workspace import Dataset
from tiercache.testing.mounting import CommandMount, mounted
from tiercache.testing.s3server import S3Server
from tiercache.testing.seaweed import SeaweedServer

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BUCKET = "bench"
#: Times that cold data comes to lie in memory: in the cache's files, in ours, and on its way.
COPIES = 3


@dataclass(slots=True)
class Cpu:
    """CPU seconds per GB that one side's samples took, by who spent them."""

    samples: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def measure(self, processes: Mapping[str, psutil.Process], size: int) -> Iterator[None]:
        """Count what `processes` spend in the block, which moves `size` bytes."""
        before = {name: _cpu_seconds(process) for name, process in processes.items()}
        yield
        for name, process in processes.items():
            spent = (_cpu_seconds(process) - before[name]) / (size / 1e9)
            self.samples.setdefault(name, []).append(spent)

    def medians(self) -> dict[str, float]:
        """The median per name."""
        return {name: round(median(values), 3) for name, values in self.samples.items()}


@dataclass(frozen=True)
class Store:
    """A started server that holds the dataset, and where mounts of it may live.

    `url` is where it is reached, directly or by a link; `others` are processes between.
    """

    server: SeaweedServer
    dataset: Dataset
    workspace: Path
    url: str
    mount_options: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def client(self) -> S3Client:
        """A client whose signatures are valid at `url`."""
        return self.server.client(self.url)

    @contextmanager
    def cold_mount(self) -> Iterator[CommandMount]:
        """A fresh mount over an empty cache, its directories listed once, as a loader does."""
        cache = Path(tempfile.mkdtemp(prefix="cache-", dir=self.workspace))
        mountpoint = self.workspace / "mount"
        options = [f"--cache-dir={cache}", f"--endpoint-url={self.url}", *self.mount_options]
        env = {**self.server.env(), **self.env}
        try:
            with mounted(f"s3://{BUCKET}", mountpoint, options, env) as mount:
                list_tree(mountpoint)
                yield mount
        finally:
            empty(cache)

    def processes(self, mount: CommandMount | None = None) -> dict[str, psutil.Process]:
        """Whose CPU time a sample costs: the worker or this client, the server, what is between."""
        pid = mount.status()["worker"]["pid"] if mount else os.getpid()
        pids = {"worker" if mount else "client": pid, "server": self.server.pid, **self.others}
        return {name: psutil.Process(pid) for name, pid in pids.items()}


def fill(server: S3Server, tree: Path, names: Sequence[str]) -> None:
    """Upload files of the tree that was written below `tree`."""
    server.create_bucket(BUCKET)
    config = TransferConfig(max_concurrency=4)
    for name in names:
        server.shared_client.upload_file(str(tree / name), BUCKET, name, Config=config)


def empty(cache: Path) -> None:
    """Drop the dirty pages, whose write-back would slow the next sample down.

    The files stay, empty, until the workspace goes: without a journal ext4 searches past inodes
    that were freed lately, which would make creating the next sample's files several times slower.
    """
    for file in cache.rglob("*"):
        if file.is_file() and not file.is_symlink():
            os.truncate(file, 0)


def list_tree(folder: Path) -> None:
    """List every directory and stat every entry."""
    with os.scandir(folder) as entries:
        for entry in entries:
            entry.stat()
            if entry.is_dir():
                list_tree(Path(entry.path))


def timed_rate(fetch: Callable[[], int]) -> float:
    """Bytes per second of a call that returns how many it moved."""
    start = time.perf_counter()
    count = fetch()
    return count / (time.perf_counter() - start)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
