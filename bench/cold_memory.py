"""What many streams at once cost in memory: the peak of the worker, which has its default settings.

Hundreds of files are open at the same time and read in steps of 1 MiB by a thread each, so that
every one of them has a window of its own to fill.
"""

from __future__ import annotations

from pathlib import Path

from bench.readers import streams_at_once, touched_buffer
from bench.rows import Pair, Row
from bench.store import Store
from bench.workspace import say
from tiercache.testing.mounting import CommandMount
from tiercache.types import KIB, MIB

#: What the worker may take at most.
BOUND = 600 * MIB
GOAL = 1.0


def measure(store: Store, rounds: int) -> Row:
    """The row `cold.memory`; each round has a fresh mount. Raises OSError if the worker restarts.

    Its ratio is the bound over the peak; `bytes_per_s` says how fast the streams were.
    """
    names = store.dataset.many_names()
    say(f"cold.memory, {len(names)} streams, {rounds} rounds")
    pairs, rates = [], []
    for _ in range(rounds):
        with store.cold_mount() as mount:
            paths = [f"{mount.mountpoint}/{name}" for name in names]
            rates.append(streams_at_once(paths, touched_buffer(MIB)))
            pairs.append(Pair(BOUND, _peak(mount)))
    extra = {"streams": len(names), "bytes_per_s": rates}
    return Row("cold.memory", "B", "most memory the worker ever had", GOAL, pairs, extra)


def _peak(mount: CommandMount) -> int:
    """Bytes of memory that the worker had at most so far."""
    worker = mount.status()["worker"]
    if worker["restarts"]:
        raise OSError("the worker was restarted, and what it took before is not known")
    return resident_peak(Path(f"/proc/{worker['pid']}/status").read_text(encoding="ascii"))


def resident_peak(status: str) -> int:
    """`VmHWM` of the file `status` of a process, in bytes."""
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * KIB
