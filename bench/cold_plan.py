"""A shuffled epoch whose order the mount was told: how much of the link it uses, how it stalls.

Pieces of all stream objects are read by one reader in a random order. The plan is handed over when
the clock starts, so that nothing is fetched before.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import NamedTuple

from bench.client import ranges
from bench.link import LinkSpeed
from bench.machine import populate
from bench.readers import ShortReadError, touched_buffer
from bench.rows import Pair, Row
from bench.store import BUCKET, COPIES, Store
from bench.work import Work
from bench.workspace import Dataset, say
from tiercache.control.client import ask
from tiercache.fuse.mountpoint import runtime_dir
from tiercache.types import MIB

PIECE = 4 * MIB
#: How fast the busy reader computes, of the rate of the link.
BUSY = 0.9
#: Share of an epoch in which it must not stall.
UNSTALLED_GOAL = 0.95
_PLAN_TIMEOUT_S = 10.0


class Piece(NamedTuple):
    """A range of a file."""

    name: str
    offset: int
    size: int


def pieces(dataset: Dataset) -> list[Piece]:
    """The epoch, the same order in every run."""
    whole = dataset.scale.stream_size
    found = [
        Piece(name, offset, min(PIECE, whole - offset))
        for name in dataset.stream_names()
        for offset in range(0, whole, PIECE)
    ]
    random.Random(4).shuffle(found)
    return found


def planned_work(dataset: Dataset, home: Path) -> Work:
    """Read the epoch as fast as it comes; the plan file is written into *home*."""
    epoch = pieces(dataset)
    plan = _write(home / "epoch.plan", epoch)
    size = sum(piece.size for piece in epoch)
    return Work(
        *("plan", "B/s", size, 1),
        lambda root: size / read_epoch(root, plan, epoch, 0.0)[0],
        lambda client: [
            ranges(client, BUCKET, piece.name, dataset.scale.stream_size, PIECE)[
                piece.offset // PIECE
            ]
            for piece in epoch
        ],
    )


def stalls(store: Store, speed: LinkSpeed, rounds: int) -> Row:
    """The row `cold.link.plan.busy`: a reader that computes on each piece at 0.9 of the link."""
    epoch = pieces(store.dataset)
    plan = _write(store.workspace / "epoch.plan", epoch)
    pause = PIECE / (BUSY * speed.bytes_per_s)
    say(f"cold.link.plan.busy, {rounds} rounds")
    pairs = []
    for _ in range(rounds):
        populate(COPIES * sum(piece.size for piece in epoch))
        with store.cold_mount() as mount:
            seconds, stalled = read_epoch(mount.mountpoint, plan, epoch, pause)
        pairs.append(Pair(100 * (1 - stalled / seconds), 100))
    baseline = f"an epoch without stalls at {BUSY:g} of the link"
    return Row("cold.link.plan.busy", "%", baseline, UNSTALLED_GOAL, pairs)


def read_epoch(root: Path, plan: Path, epoch: list[Piece], pause: float) -> tuple[float, float]:
    """Seconds of the epoch, and those of them spent in reads; *pause* seconds after each piece."""
    buffer, stalled = touched_buffer(PIECE), 0.0
    start = time.perf_counter()
    socket = runtime_dir(root) / "control.sock"
    ask(socket, "plan_follow", _PLAN_TIMEOUT_S, {"file": str(plan)})
    files: dict[str, int] = {}
    try:
        for piece in epoch:
            asked = time.perf_counter()
            if piece.name not in files:
                files[piece.name] = os.open(root / piece.name, os.O_RDONLY)
            if os.preadv(files[piece.name], [buffer], piece.offset) < piece.size:
                raise ShortReadError(f"{piece.name}: too short")
            stalled += time.perf_counter() - asked
            time.sleep(pause)
    finally:
        for fd in files.values():
            os.close(fd)
    return time.perf_counter() - start, stalled


def _write(file: Path, epoch: list[Piece]) -> Path:
    lines = (f"{piece.name}\t{piece.offset}\t{piece.size}\n" for piece in epoch)
    file.write_text("".join(lines))
    return file
