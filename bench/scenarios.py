"""What `python -m bench NAME` can run: each scenario sets itself up, measures, and cleans up."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from bench import cold, cold_rows, cpu, hot, mlperf, policy, policy_mount
from bench.rows import Row
from bench.store import Store, fill
from bench.work import READERS
from bench.workspace import STREAMS, Dataset, Scale, say, workspace, write_tree
from tiercache.testing.mounting import mounted
from tiercache.testing.seaweed import SeaweedServer
from tiercache.types import GIB

#: Closed, a generator takes down what it set up.
Rows: TypeAlias = Generator[Row, None, None]


@dataclass(frozen=True, slots=True)
class Training:
    """What `mlperf` is to run: workloads, accelerators, bytes of each workload's data."""

    workloads: Sequence[str] = tuple(mlperf.WORKLOADS)
    accelerators: int = 1
    dataset_size: int | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said. `rounds` is the number of pairs per row.

    `only` are the rows that are asked for; none: the usual ones.
    """

    scale: Scale
    rounds: int
    only: frozenset[str] = frozenset()
    directory: Path | None = None
    driver: str = "auto"
    training: Training = field(default_factory=Training)

    @property
    def mount_options(self) -> list[str]:
        """Options of `tiercache mount` that all scenarios share."""
        return [f"--driver={self.driver}"]


def run_hot(options: Options) -> Rows:
    """A directory, mounted as it is and read through a warm cache on the same file system."""
    wanted = options.only or frozenset(hot.GOALS)
    dataset = Dataset(options.scale, parts=hot.parts(wanted))
    with workspace(options.directory, _needed(dataset, copies=2)) as home:
        native = home / "native"
        native.mkdir()
        say(f"writing {_gigabytes(dataset):.2f} GB below {home}")
        write_tree(dataset, native)
        flags = [f"--cache-dir={home / 'cache'}", *options.mount_options]
        with mounted(f"file://{native}", home / "mount", flags) as mount:
            yield from hot.measure(dataset, native, mount.mountpoint, options.rounds, wanted)


def run_cold(options: Options) -> Rows:
    """An S3 server on loopback, read through fresh mounts and by a plain parallel client."""
    wanted = options.only or cold_rows.usual(options.scale)
    with _filled(options, cold_rows.parts(wanted)) as store:
        for row in cold.measure(store, options.rounds, wanted):
            if row.name in wanted:
                yield row


def run_cpu(options: Options) -> Rows:
    """Where the CPU time of a cold stream goes. No rows without nginx and perf."""
    if not cpu.usable():
        say("cpu is left out: it needs nginx and perf")
        return
    with _filled(options, frozenset({STREAMS})) as store:
        yield from cpu.measure(store, options.rounds)


@contextmanager
def _filled(options: Options, parts: frozenset[str]) -> Iterator[Store]:
    dataset = Dataset(options.scale, READERS, parts)
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


def run_policy(options: Options) -> Rows:
    """Generated workloads through all policies, then a dataset larger than the tiers of a mount."""
    yield from policy.measure(options.scale)
    epochs = policy_mount.dataset(options.scale)
    with workspace(options.directory, 4 * epochs.nbytes + 2 * GIB) as home:
        yield from policy_mount.measure(epochs, home, options.mount_options)


def run_mlperf(options: Options) -> Rows:
    """Training epochs from a cold and a hot mount and from the native directory."""
    for name in options.training.workloads:
        yield from _run_workload(name, options)


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


@dataclass(frozen=True, slots=True)
class Scenario:
    """How it runs, and which of its rows can be measured alone."""

    run: Callable[[Options], Rows]
    rows: Sequence[str] = ()


SCENARIOS = {
    "hot": Scenario(run_hot, tuple(hot.GOALS)),
    "cold": Scenario(run_cold, tuple(cold_rows.ROWS)),
    "cpu": Scenario(run_cpu),
    "mlperf": Scenario(run_mlperf),
    "policy": Scenario(run_policy),
}


def _gigabytes(dataset: Dataset) -> float:
    return sum(dataset.sizes().values()) / 1e9


def _needed(dataset: Dataset, copies: int) -> int:
    """Free bytes to insist on: the copies, and the reserve a cache leaves on its disk."""
    return copies * sum(dataset.sizes().values()) + 2 * GIB
