"""`cold`: data that lies in the object store only, against a plain parallel client of that store.

The server is SeaweedFS on loopback with its data in the page cache, at full speed and behind a link
of 500 MB/s and 20 ms. Every sample of the mount has a fresh mount and an empty cache directory;
mounting and the first listing are not timed, as they are not for the client, which knows its keys.
Server and clients share the machine's cores, so the rows also say what CPU time each side and the
server spent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from bench import cold_memory, cold_tls, nginx, peers
from bench.cold_plan import planned_work, stalls
from bench.cold_rows import ROWS
from bench.contest import run
from bench.link import REAL_LINK, Link
from bench.rows import Pair, Row
from bench.store import Store
from bench.work import (
    PlainClient,
    Work,
    random_offsets,
    random_work,
    sequential_work,
    small_files_work,
    streams_work,
)
from bench.workspace import BIG, Dataset, say, verify_tree
from tiercache.types import MIB

#: How many connections the plain client is tried with; the best counts.
CONNECTIONS = (4, 8)
LINK_CONNECTIONS = (8, 32, 64)
#: GB that a CPU second of the daemon is to move: 0.8 CPU seconds per GB.
CPU_BUDGET = 1 / 0.8
BLOCK = MIB


def measure(store: Store, rounds: int, wanted: Collection[str]) -> Iterator[Row]:
    """The rows *wanted*, and what comes with them; the store must hold what they read.

    Checks every byte of both sides before.
    """
    say("cold: warming the server and checking the mount")
    with store.cold_mount() as mount:
        verify_tree(store.dataset, mount.mountpoint)
    if BIG in store.dataset.parts:
        PlainClient(store, sequential_work(store.dataset), CONNECTIONS[:1]).check_big()
    yield from _direct(store, rounds, wanted)
    if any(name.startswith("cold.link.") for name in wanted):
        yield from _behind_link(store, fewer(rounds), wanted)
    if "cold.tls" in wanted:
        if nginx.available():
            yield cold_tls.measure(store, rounds)
        else:
            say("cold.tls is left out: it needs nginx, a server that is not the limit")
    if "cold.memory" in wanted:
        yield cold_memory.measure(store, fewer(rounds))
    yield from peers.measure(store, fewer(rounds), wanted)


def fewer(rounds: int) -> int:
    """For what takes long or varies little: half of the rounds, but 5 at least."""
    return max(5, rounds // 2)


def _direct(store: Store, rounds: int, wanted: Collection[str]) -> Iterator[Row]:
    names = {*wanted, "cold.sequential"} if "cold.cpu" in wanted else wanted
    todo = [work for work in works(store.dataset) if f"cold.{work.name}" in names]
    for row in run(store, todo, "cold", CONNECTIONS, rounds):
        yield row
        if row.name == "cold.sequential":
            yield _cpu(row)
    if "cold.random-64k.useful" in wanted:
        yield _useful(store, rounds)


def _behind_link(store: Store, rounds: int, wanted: Collection[str]) -> Iterator[Row]:
    with Link(store.url, REAL_LINK) as link:
        far = replace(store, url=link.endpoint_url, others={"link": link.pid})
        plan = planned_work(store.dataset, store.workspace)  # reads what `streams` does
        for todo in (works(store.dataset), [plan]):
            todo = [work for work in todo if f"cold.link.{work.name}" in wanted]
            yield from map(_of_link, run(far, todo, "cold.link", LINK_CONNECTIONS, rounds))
        if "cold.link.plan.busy" in wanted:
            yield stalls(far, REAL_LINK, rounds)


def works(dataset: Dataset) -> list[Work]:
    """What is read from cold, each from objects of its own."""
    return [sequential_work(dataset), streams_work(dataset), small_files_work(dataset)]


def _cpu(sequential: Row) -> Row:
    """What the daemon's CPU time moves, of the samples of the sequential row."""
    pairs = [Pair(1 / spent, CPU_BUDGET) for spent in sequential.extra["worker_cpu_samples"]]
    return Row("cold.cpu", "GB/CPU-s", "0.8 CPU s per GB", ROWS["cold.cpu"].goal, pairs)


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
    return Row(name, "B", "bytes fetched from the origin", ROWS[name].goal, pairs, extra)
