"""What `python -m bench NAME` can run: each scenario sets itself up, measures, and cleans up."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import cold, cpu, hot, mlperf, policy, policy_mount
from bench.rows import Row
from bench.store import Store, fill
from bench.work import READERS
from bench.workspace import Dataset, Scale, say, workspace, write_tree
from tiercache.testing.mounting import mounted
from tiercache.testing.seaweed import SeaweedServer
from tiercache.types import GIB


@dataclass(frozen=True, slots=True)
class Training:
    """What `mlperf` is to run: workloads, accelerators, bytes of each workload's data."""

    workloads: Sequence[str] = tuple(mlperf.WORKLOADS)
    accelerators: int = 1
    dataset_size: int | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said. `rounds` is the number of pairs per row."""

    scale: Scale
    rounds: int
    directory: Path | None = None
    driver: str = "auto"
    training: Training = field(default_factory=Training)

    @property
    def mount_options(self) -> list[str]:
        """Options of `tiercache mount` that all scenarios share."""
        return [f"--driver={self.driver}"]


def run_hot(options: Options) -> list[Row]:
    """A directory, mounted as it is and read through a warm cache on the same file system."""
    dataset = Dataset(options.scale)
    with workspace(options.directory, _needed(dataset, copies=2)) as home:
        native = home / "native"
        native.mkdir()
        say(f"writing {_gigabytes(dataset):.2f} GB below {home}")
        write_tree(dataset, native)
        flags = [f"--cache-dir={home / 'cache'}", *options.mount_options]
        with mounted(f"file://{native}", home / "mount", flags) as mount:
            return hot.measure(dataset, native, mount.mountpoint, options.rounds)


def run_cold(options: Options) -> list[Row]:
    """An S3 server on loopback, read through fresh mounts and by a plain parallel client."""
    with _filled(options) as store:
        return cold.measure(store, options.rounds)


def run_cpu(options: Options) -> list[Row]:
    """Where the CPU time of a cold stream goes. No rows without nginx and perf."""
    if not cpu.usable():
        say("cpu is left out: it needs nginx and perf")
        return []
    with _filled(options) as store:
        return cpu.measure(store, options.rounds)


@contextmanager
def _filled(options: Options) -> Iterator[Store]:
    dataset = Dataset(options.scale, streams=READERS)
    with (
        workspace(options.directory, _needed(dataset, copies=3)) as home,
        SeaweedServer(home / "server") as server,
    ):
        tree = home / "tree"
        tree.mkdir()
        say(f"storing {_gigabytes(dataset):.2f} GB in SeaweedFS")
        write_tree(dataset, tree)
        fill(server, tree, list(dataset.sizes()))
        shutil.rmtree(tree)
        yield Store(server, dataset, home, server.endpoint_url, options.mount_options)


def run_policy(options: Options) -> list[Row]:
    """Generated workloads through all policies, then a dataset larger than the tiers of a mount."""
    rows = policy.measure(options.scale)
    epochs = policy_mount.dataset(options.scale)
    with workspace(options.directory, 4 * epochs.nbytes + 2 * GIB) as home:
        return [*rows, *policy_mount.measure(epochs, home, options.mount_options)]


def run_mlperf(options: Options) -> list[Row]:
    """Training epochs from a cold and a hot mount and from the native directory."""
    return [row for name in options.training.workloads for row in _run_workload(name, options)]


def _run_workload(name: str, options: Options) -> list[Row]:
    training = options.training
    workload, size = mlperf.WORKLOADS[name], training.dataset_size or MLPERF_SIZE
    if options.scale.smoke:
        workload, size = workload.shrunk(MLPERF_SHRINK), size // MLPERF_SHRINK
    samples = mlperf.Samples.of(workload, size, training.accelerators)
    with (
        workspace(options.directory, 3 * samples.size + 2 * GIB) as home,
        SeaweedServer(home / "server") as server,
    ):
        native = home / "native"
        native.mkdir()
        say(f"storing {samples.size / 1e9:.2f} GB of {name} in SeaweedFS")
        samples.write(native)
        fill(server, native, list(samples.files))
        dataset = Dataset(options.scale)
        store = Store(server, dataset, home, server.endpoint_url, options.mount_options)
        rounds = cold.fewer(options.rounds)
        return mlperf.measure(store, samples, native, training.accelerators, rounds)


#: Bytes of a workload's data, unless the command line says: steps enough to stall in.
MLPERF_SIZE = 1 * GIB
#: By how much less the small scale is.
MLPERF_SHRINK = 32

Scenario = Callable[[Options], Sequence[Row]]

SCENARIOS: dict[str, Scenario] = {
    "hot": run_hot,
    "cold": run_cold,
    "cpu": run_cpu,
    "mlperf": run_mlperf,
    "policy": run_policy,
}


def _gigabytes(dataset: Dataset) -> float:
    return sum(dataset.sizes().values()) / 1e9


def _needed(dataset: Dataset, copies: int) -> int:
    """Free bytes to insist on: the copies, and the reserve a cache leaves on its disk."""
    return copies * sum(dataset.sizes().values()) + 2 * GIB
