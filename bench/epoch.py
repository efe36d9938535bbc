"""One training epoch: reader processes, a bounded queue of samples, accelerators that sleep.

An accelerator takes a batch, "computes" for the step time by sleeping, and takes the next. Its
readers stay at most two batches ahead, and a sample each that they hold. Utilisation is the share
of the time in which it computed, counted from when the first batch was there, as MLPerf Storage
does.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Semaphore

from bench.loaders import Reader

_FORK = multiprocessing.get_context("fork")
_BATCHES_AHEAD = 2
#: How often a waiting accelerator looks whether its readers failed.
_LOOK_S = 1.0


class EpochError(OSError):
    """A reader failed."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Samples per step, seconds per step, reader processes per accelerator."""

    batch: int
    step_s: float
    readers: int


@dataclass(frozen=True, slots=True)
class File:
    """A file to read and the sizes of its samples."""

    path: str
    samples: Sequence[int]


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch came to, over all accelerators."""

    utilisation: float
    steps: int
    seconds: float
    stalled_s: float
    size: int


def run_epoch(files: Sequence[File], form: Reader, pace: Pace, accelerators: int) -> Epoch:
    """Read `files` once, dealt out in order; samples short of a last batch are not waited for.

    Raises `EpochError` when a reader fails.
    """
    queues = [_Queue(pace) for _ in range(accelerators)]
    parts = [files[number::accelerators] for number in range(accelerators)]
    readers = [
        process
        for queue, part in zip(queues, parts, strict=True)
        for process in _readers(queue, part, form, pace)
    ]
    start = time.perf_counter()
    for reader in readers:
        reader.start()
    consumers = [
        threading.Thread(target=queue.consume, args=(sum(len(file.samples) for file in part),))
        for queue, part in zip(queues, parts, strict=True)
    ]
    for thread in consumers:
        thread.start()
    for thread in consumers:
        thread.join()
    seconds = time.perf_counter() - start
    if any(queue.failed.is_set() for queue in queues):
        for reader in readers:
            reader.terminate()  # those that did not fail wait for room
    for reader in readers:
        reader.join()
    if any(reader.exitcode for reader in readers):
        raise EpochError("a reader failed; what it said is above")
    size = sum(sum(file.samples) for file in files)
    computed = sum(queue.computed_s for queue in queues)
    stalled = sum(queue.stalled_s for queue in queues)
    steps = sum(queue.steps for queue in queues)
    return Epoch(computed / (computed + stalled), steps, seconds, stalled, size)


class _Queue:
    """Counts samples that are there and room for more, between readers and one accelerator."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.room: Semaphore = _FORK.Semaphore(pace.batch * _BATCHES_AHEAD)
        self.there: Semaphore = _FORK.Semaphore(0)
        self.failed = _FORK.Event()
        self.steps = 0
        self.computed_s = self.stalled_s = 0.0

    def consume(self, samples: int) -> None:
        """Be the accelerator, as long as there is a batch to come."""
        for step in range(samples // self._pace.batch):
            start = time.perf_counter()
            if not self._take_batch():
                return
            if step:
                self.stalled_s += time.perf_counter() - start
            computing = time.perf_counter()
            time.sleep(self._pace.step_s)
            self.computed_s += time.perf_counter() - computing
            self.steps += 1

    def _take_batch(self) -> bool:
        for _ in range(self._pace.batch):
            while not self.there.acquire(timeout=_LOOK_S):
                if self.failed.is_set():
                    return False
        for _ in range(self._pace.batch):
            self.room.release()
        return True


def _readers(queue: _Queue, files: Sequence[File], form: Reader, pace: Pace) -> list[ForkProcess]:
    taken = _FORK.Value("i", 0)

    def next_file() -> File | None:
        with taken.get_lock():
            place = taken.value
            taken.value += 1
        return files[place] if place < len(files) else None

    def read() -> None:
        try:
            for file in iter(next_file, None):
                for _ in form.read(file.path, file.samples):
                    queue.room.acquire()
                    queue.there.release()
        except BaseException:
            queue.failed.set()
            raise

    return [_FORK.Process(target=read) for _ in range(pace.readers)]
