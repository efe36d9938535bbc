"""The same work by readers of cold mounts and by the plain client, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.cold_rows import ROWS
from bench.machine import populate
from bench.rows import Pair, Row, one_pair
from bench.store import COPIES, Cpu, Store
from bench.work import PlainClient, Work
from bench.workspace import say
from tiercache.testing.mounting import CommandMount


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
        goal = ROWS[self.name].goal
        return Row(self.name, self._work.unit, baseline, goal, self._pairs, extra)


def run(
    store: Store, works: Sequence[Work], prefix: str, candidates: Sequence[int], rounds: int
) -> Iterator[Row]:
    """A row for each of *works*, the plain client with the best of *candidates* connections.

    A fresh mount per contest and round, as dirty pages of one would slow the next down. In small
    there are none to speak of, and one mount a round serves all.
    """
    batches = [works] if store.dataset.scale.smoke and works else [[work] for work in works]
    for batch in batches:
        contests = [Contest(store, work, prefix, candidates) for work in batch]
        say(f"{', '.join(contest.name for contest in contests)}, {rounds} rounds")
        for number in range(rounds):
            with store.cold_mount() as mount:
                for contest in contests:
                    contest.compete(number, mount)
        yield from (contest.row() for contest in contests)
