"""`cold`: data that lies in the object store only, against a plain parallel client of that store.

The server is SeaweedFS on loopback with its data in the page cache, at full speed and behind a link
of 500 MB/s and 20 ms. Every sample of the mount has a fresh mount and an empty cache directory;
mounting and the first listing are not timed, as they are not for the client, which knows its keys.
Server and clients share the machine's cores, so the rows also say what CPU time each side and the
server spent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench import cold_tls, nginx, peers
from bench.cold_plan import planned_work, stalls
from bench.link import REAL_LINK, Link
from bench.machine import populate
from bench.rows import Pair, Row, one_pair
from bench.store import COPIES, Cpu, Store
from bench.work import (
    PlainClient,
    Work,
    random_offsets,
    random_work,
    sequential_work,
    small_files_work,
    streams_work,
)
from bench.workspace import Dataset, say, verify_tree
from tiercache.testing.mounting import CommandMount
from tiercache.types import MIB

#: How many connections the plain client is tried with; the best counts.
CONNECTIONS = (4, 8)
LINK_CONNECTIONS = (8, 32)
GOALS = {
    "cold.sequential": 0.8,
    "cold.streams": 0.8,
    "cold.small-files": 0.7,
    "cold.cpu": 1.0,
    "cold.random-64k.useful": 1 / 1.2,
    "cold.link.sequential": 0.95,
    "cold.link.streams": 0.95,
    "cold.link.small-files": 0.8,
    "cold.link.plan": 0.9,
}
#: GB that a CPU second of the daemon is to move: 0.8 CPU seconds per GB.
CPU_BUDGET = 1 / 0.8
BLOCK = MIB


def measure(store: Store, rounds: int) -> list[Row]:
    """All rows of `cold`; the store must be filled. Checks every byte of both sides before."""
    say("cold: warming the server and checking the mount")
    with store.cold_mount() as mount:
        verify_tree(store.dataset, mount.mountpoint)
    PlainClient(store, sequential_work(store.dataset), CONNECTIONS[:1]).check_big()
    rows = [*_direct(store, rounds), *_behind_link(store, rounds)]
    if nginx.available():
        rows.append(cold_tls.measure(store, rounds))
    else:
        say("cold.tls is left out: it needs nginx, a server that is not the limit")
    return [*rows, *peers.measure(store, fewer(rounds))]


def fewer(rounds: int) -> int:
    """For what takes long or varies little: half of the rounds, but 5 at least."""
    return max(5, rounds // 2)


def _direct(store: Store, rounds: int) -> list[Row]:
    contests = [Contest(store, work, "cold", CONNECTIONS) for work in works(store.dataset)]
    rows = run(store, contests, rounds)
    return [*rows, *map(_cpu, rows[:1]), _useful(store, rounds)]


def _behind_link(store: Store, rounds: int) -> list[Row]:
    with Link(store.url, REAL_LINK) as link:
        far = replace(store, url=link.endpoint_url, others={"link": link.pid})
        plan = planned_work(store.dataset, store.workspace)  # reads what `streams` does
        rows = [
            _of_link(row)
            for todo in (works(store.dataset), [plan])
            for row in run(far, _contests(far, todo), fewer(rounds))
        ]
        return [*rows, stalls(far, REAL_LINK, fewer(rounds))]


def _contests(far: Store, todo: Sequence[Work]) -> list[Contest]:
    return [Contest(far, work, "cold.link", LINK_CONNECTIONS) for work in todo]


def works(dataset: Dataset) -> list[Work]:
    """What is read from cold, each from objects of its own."""
    return [sequential_work(dataset), streams_work(dataset), small_files_work(dataset)]


class Contest:
    """One piece of work, by readers of a mount that is cold to it and by the plain client."""

    def __init__(self, store: Store, work: Work, prefix: str, candidates: Sequence[int]) -> None:
        self.name = f"{prefix}.{work.name}"
        say(f"{self.name}: the plain client with {' or '.join(map(str, candidates))} connections")
        self._store, self._work = store, work
        self._plain = PlainClient(store, work, candidates)
        self._mount_cpu, self._client_cpu = Cpu(), Cpu()
        self._pairs: list[Pair] = []

    def compete(self, number: int, mount: CommandMount) -> None:
        """Round *number* of it."""
        work = self._work

        def mount_sample() -> float:
            populate(COPIES * work.size)
            with self._mount_cpu.measure(self._store.processes(mount), work.size):
                return work.read(mount.mountpoint)

        def client_sample() -> float:
            with (
                self._plain.connected() as connected,
                self._client_cpu.measure(self._store.processes(), work.size),
            ):
                return self._plain.rate(connected)

        self._pairs.append(one_pair(number, mount_sample, client_sample))

    def row(self) -> Row:
        """What came of it."""
        extra = {
            "mount_cpu_s_per_gb": self._mount_cpu.medians(),
            "baseline_cpu_s_per_gb": self._client_cpu.medians(),
            "worker_cpu_samples": self._mount_cpu.samples["worker"],
        }
        baseline = f"plain parallel client, {self._plain.connections} connections"
        goal = GOALS.get(self.name)
        return Row(self.name, self._work.unit, baseline, goal, self._pairs, extra)


def run(store: Store, contests: Sequence[Contest], rounds: int) -> list[Row]:
    """A fresh mount per contest and round, as dirty pages of one would slow the next down.

    In small there are none to speak of, and one mount a round serves all.
    """
    batches = [contests] if store.dataset.scale.smoke else [[contest] for contest in contests]
    for batch in batches:
        say(f"{', '.join(contest.name for contest in batch)}, {rounds} rounds")
        for number in range(rounds):
            with store.cold_mount() as mount:
                for contest in batch:
                    contest.compete(number, mount)
    return [contest.row() for contest in contests]


def _cpu(sequential: Row) -> Row:
    """What the daemon's CPU time moves, of the samples of the sequential row."""
    pairs = [Pair(1 / spent, CPU_BUDGET) for spent in sequential.extra["worker_cpu_samples"]]
    return Row("cold.cpu", "GB/CPU-s", "0.8 CPU s per GB", GOALS["cold.cpu"], pairs)


def _of_link(row: Row) -> Row:
    """Streams are held against the link itself, whose rate no client can exceed."""
    if row.unit != "B/s":
        return row
    rate = REAL_LINK.bytes_per_s
    pairs = [Pair(pair.mount, rate) for pair in row.pairs]
    extra = {**row.extra, "plain_client": row.baseline, "plain_client_name": row.baseline_name}
    baseline = f"the link, {rate / 1e6:.0f} MB/s and {REAL_LINK.latency_s * 1e3:.0f} ms"
    return replace(row, pairs=pairs, baseline_name=baseline, extra=extra)


def _useful(store: Store, rounds: int) -> Row:
    """How much of what random reads make the daemon fetch lies in blocks that they touch."""
    work = random_work(store.dataset)
    touched = len({offset // BLOCK for offset in random_offsets(store.dataset)}) * BLOCK
    say(f"cold.random-64k, {rounds} rounds")
    pairs, rates = [], []
    for _ in range(rounds):
        with store.cold_mount() as mount:
            before = mount.status()["counters"]["origin_bytes"]
            rates.append(work.read(mount.mountpoint))
            fetched = mount.status()["counters"]["origin_bytes"] - before
        pairs.append(Pair(touched, fetched))
    name = "cold.random-64k.useful"
    extra = {"reads": len(random_offsets(store.dataset)), "reads_per_s": rates}
    return Row(name, "B", "bytes fetched from the origin", GOALS[name], pairs, extra)
