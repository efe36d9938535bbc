"""The cheapest reading loops Python can do, the same for the mount and for its twin.

Each takes a buffer that was touched beforehand (fresh guest memory costs more than the read) and
times nothing but the reading. A loop that met fewer bytes than it should raises: a fast wrong
reader must never look good.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.context import ForkProcess
from operator import itemgetter
from pathlib import Path

PAGE = mmap.PAGESIZE


class ShortReadError(OSError):
    """A reader met fewer bytes than the file holds."""


def touched_buffer(size: int) -> mmap.mmap:
    """Page-aligned anonymous memory (fit for O_DIRECT) whose pages all exist already."""
    buffer = mmap.mmap(-1, size)
    for offset in range(0, size, PAGE):
        buffer[offset] = 1
    return buffer


def sequential(path: str, buffer: mmap.mmap) -> float:
    """Read the file from start to end; returns bytes per second."""
    start = time.perf_counter()
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        total = _drain(fd, buffer)
    finally:
        os.close(fd)
    seconds = time.perf_counter() - start
    _expect(path, total, size)
    return total / seconds


def random_direct(path: str, offsets: Sequence[int], buffer: mmap.mmap) -> float:
    """O_DIRECT reads of the buffer's size at `offsets`; returns reads per second."""
    vector, total = [buffer], 0
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        start = time.perf_counter()
        for offset in offsets:
            total += os.preadv(fd, vector, offset)
        seconds = time.perf_counter() - start
    finally:
        os.close(fd)
    _expect(path, total, len(offsets) * len(buffer))
    return len(offsets) / seconds


def touch_pages(path: str, touch: itemgetter[tuple[int, ...]], count: int) -> float:
    """Read one byte each from `count` places of a fresh shared mapping; returns touches per second.

    `touch` is an `itemgetter` over the offsets: it walks them in C, so that the page faults and
    not the interpreter are measured.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        start = time.perf_counter()
        with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapping:
            touch(mapping)
            seconds = time.perf_counter() - start
    finally:
        os.close(fd)
    return count / seconds


def whole_files(paths: Sequence[str], size: int, buffer: mmap.mmap) -> float:
    """Open, read and close each of `paths`, all of `size` bytes; returns files per second."""
    vector = [buffer]
    start = time.perf_counter()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        count = os.readv(fd, vector)
        os.close(fd)
        if count != size:
            raise ShortReadError(f"{path}: {count} of {size} bytes")
    return len(paths) / (time.perf_counter() - start)


def parallel_files(paths: Sequence[str], size: int, readers: int) -> float:
    """Read `paths`, of `size` bytes each, by `readers` processes; returns files per second."""

    def prepare(part: Sequence[str]) -> Callable[[], object]:
        return partial(whole_files, part, size, touched_buffer(size + PAGE))

    parts = [paths[number::readers] for number in range(readers)]
    return len(paths) / side_by_side([partial(prepare, part) for part in parts])


def parallel_streams(paths: Sequence[str], buffer_size: int) -> float:
    """Read each of `paths` from start to end, a process each; returns bytes per second of all."""

    def prepare(path: str) -> Callable[[], object]:
        return partial(sequential, path, touched_buffer(buffer_size))

    total = sum(Path(path).stat().st_size for path in paths)
    return total / side_by_side([partial(prepare, path) for path in paths])


def streams_at_once(paths: Sequence[str], buffer: mmap.mmap) -> float:
    """Read all of `paths` from start to end, a thread each; returns bytes per second of all.

    All are open from before the first read until after the last. What is read is not looked at, so
    one buffer serves all.
    """
    with ExitStack() as opened:
        files = []
        for path in paths:
            files.append(os.open(path, os.O_RDONLY))
            opened.callback(os.close, files[-1])
        sizes = [os.fstat(fd).st_size for fd in files]
        start = time.perf_counter()
        with ThreadPoolExecutor(len(files)) as pool:
            totals = list(pool.map(lambda fd: _drain(fd, buffer), files))
        seconds = time.perf_counter() - start
    for path, total, size in zip(paths, totals, sizes, strict=True):
        _expect(path, total, size)
    return sum(totals) / seconds


def _drain(fd: int, buffer: mmap.mmap) -> int:
    total = 0
    while count := os.readv(fd, [buffer]):
        total += count
    return total


def random_reads(path: str, offsets: Sequence[int], size: int) -> float:
    """Buffered reads of `size` bytes at `offsets`; returns reads per second."""
    vector, total = [touched_buffer(size)], 0
    fd = os.open(path, os.O_RDONLY)
    try:
        start = time.perf_counter()
        for offset in offsets:
            total += os.preadv(fd, vector, offset)
        seconds = time.perf_counter() - start
    finally:
        os.close(fd)
    _expect(path, total, len(offsets) * size)
    return len(offsets) / seconds


def side_by_side(prepared: Sequence[Callable[[], Callable[[], object]]]) -> float:
    """Seconds that jobs take in a process each; raises `ShortReadError` when one of them fails.

    Each process prepares its job, waits for the others and starts; the clock runs from the first
    start to the last end.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(len(prepared))
    results: multiprocessing.SimpleQueue[tuple[float, float] | str] = context.SimpleQueue()

    def run(prepare: Callable[[], Callable[[], object]]) -> None:
        job = prepare()
        barrier.wait()
        start = time.monotonic()
        try:
            job()
        except (OSError, ValueError) as error:
            results.put(str(error))
        else:
            results.put((start, time.monotonic()))

    processes = [context.Process(target=run, args=(prepare,)) for prepare in prepared]
    for process in processes:
        process.start()
    with _ended(processes):
        outcomes = [results.get() for _ in processes]
    if failures := [outcome for outcome in outcomes if isinstance(outcome, str)]:
        raise ShortReadError(failures[0])
    spans = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    return max(end for _, end in spans) - min(start for start, _ in spans)


@contextmanager
def _ended(processes: Sequence[ForkProcess]) -> Iterator[None]:
    """Have them ended after the block: killed if it fails, for then nobody waits for them."""
    try:
        yield
    except BaseException:
        for process in processes:
            process.kill()
        raise
    finally:
        for process in processes:
            process.join()


def _expect(path: str, total: int, size: int) -> None:
    if total != size:
        raise ShortReadError(f"{path}: {total} of {size} bytes")
