"""A shuffled epoch whose order the mount was told: how much of the link it uses, how it stalls.

Pieces of all stream objects are read by one process in a random order. The plan is handed over when
the clock starts, so that nothing is fetched before. That it does not stall is asked of an
accelerator, whose reader is at most two pieces ahead, as those of PyTorch are.
"""

from __future__ import annotations

import mmap
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench.client import ranges
from bench.epoch import File, Pace, run_epoch
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
#: How fast the accelerator takes pieces, of the rate of the link.
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
        lambda root: size / read_epoch(root, plan, epoch),
        lambda client: [
            ranges(client, BUCKET, piece.name, dataset.scale.stream_size, PIECE)[
                piece.offset // PIECE
            ]
            for piece in epoch
        ],
    )


def stalls(store: Store, speed: LinkSpeed, rounds: int) -> Row:
    """The row `cold.link.plan.busy`: an accelerator that computes at 0.9 of the link.

    Its wait for the first piece is no stall, as in MLPerf Storage.
    """
    epoch = pieces(store.dataset)
    plan = _write(store.workspace / "epoch.plan", epoch)
    pace = Pace(batch=1, step_s=PIECE / (BUSY * speed.bytes_per_s), readers=1)
    say(f"cold.link.plan.busy, {rounds} rounds")
    pairs = []
    for _ in range(rounds):
        populate(COPIES * sum(piece.size for piece in epoch))
        with store.cold_mount() as mount:
            files = [
                File(f"{mount.mountpoint / piece.name}@{piece.offset}", [piece.size])
                for piece in epoch
            ]
            _follow(mount.mountpoint, plan)
            ran = run_epoch(files, _Ranges(), pace, 1)
        pairs.append(Pair(100 * (1 - ran.stalled_s / ran.seconds), 100))
    baseline = f"an epoch without stalls at {BUSY:g} of the link"
    return Row("cold.link.plan.busy", "%", baseline, UNSTALLED_GOAL, pairs)


def read_epoch(root: Path, plan: Path, epoch: list[Piece]) -> float:
    """Seconds of the epoch."""
    start = time.perf_counter()
    _follow(root, plan)
    with closing(_Ranges()) as form:
        for piece in epoch:
            for _ in form.read(f"{root / piece.name}@{piece.offset}", [piece.size]):
                pass
    return time.perf_counter() - start


class _Ranges:
    """Samples are ranges of files, each named PATH@OFFSET; a file stays open until `close`."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._buffer: mmap.mmap | None = None  # made by each reader: forks would share it

    def read(self, path: str, samples: Sequence[int]) -> Iterator[None]:
        """See `Reader`."""
        self._buffer = self._buffer or touched_buffer(PIECE)
        name, _, offset = path.rpartition("@")
        if name not in self._files:
            self._files[name] = os.open(name, os.O_RDONLY)
        if os.preadv(self._files[name], [self._buffer], int(offset)) < sum(samples):
            raise ShortReadError(f"{name}: too short")
        yield

    def close(self) -> None:
        """Close the files."""
        for fd in self._files.values():
            os.close(fd)


def _follow(root: Path, plan: Path) -> None:
    ask(runtime_dir(root) / "control.sock", "plan_follow", _PLAN_TIMEOUT_S, {"file": str(plan)})


def _write(file: Path, epoch: list[Piece]) -> Path:
    lines = (f"{piece.name}\t{piece.offset}\t{piece.size}\n" for piece in epoch)
    file.write_text("".join(lines))
    return file
