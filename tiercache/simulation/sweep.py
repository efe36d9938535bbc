"""Many jobs at a time, in processes of their own.

Each process reads the trace itself, so memory is that of the policies and no use travels between
processes. They end when the caller does, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

from tiercache.errors import TierCacheError
from tiercache.simulation.jobs import Job, Outcome, Source, run

#: Seconds between two looks at how far the processes are.
_LOOK_S: Final = 0.2

#: Uses replayed so far by all, and whether to stop; set in each process when it starts.
_shared: tuple[Any, Any] | None = None


class StoppedError(Exception):
    """The caller does not want the result any more."""


def usable_cores() -> int:
    """Processes that can run at a time on this machine."""
    return len(os.sched_getaffinity(0))


def sweep(
    jobs: Sequence[Job],
    source: Source,
    processes: int,
    progress: Callable[[int], object] = lambda _done: None,
) -> list[Outcome]:
    """The outcome of every job, in their order; at most *processes* at a time, 1: right here.

    *progress* is told now and then how many uses are done in all. Raises what a job raises, and
    TierCacheError when a process was killed.
    """
    processes = min(processes, len(jobs))
    if processes > 1:
        return _in_processes(jobs, source, processes, progress)
    done = 0

    def tick(uses: int) -> None:
        nonlocal done
        progress(done := done + uses)

    return [run(job, source, tick) for job in jobs]


def _in_processes(
    jobs: Sequence[Job], source: Source, processes: int, progress: Callable[[int], object]
) -> list[Outcome]:
    context = multiprocessing.get_context("spawn")
    done, stop = context.Value("Q", 0), context.Event()
    pool = ProcessPoolExecutor(processes, context, _begin, (done, stop))
    try:
        futures = [pool.submit(_work, job, source) for job in jobs]
        running: set[Future[Outcome]] = set(futures)
        while running:
            ended, running = wait(running, _LOOK_S, FIRST_COMPLETED)
            progress(done.value)
            for future in ended:
                future.result()  # the first that failed ends all
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise TierCacheError(
            "a simulation was killed, maybe for want of memory; try fewer --jobs"
        ) from error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _begin(done: object, stop: object) -> None:
    """In a new process: Ctrl-C is the caller's business, and nobody outlives it."""
    global _shared  # how an executor hands things to its processes
    _shared = done, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(job: Job, source: Source) -> Outcome:
    return run(job, source, _tick)


def _tick(uses: int) -> None:
    assert _shared is not None
    done, stop = _shared
    with done.get_lock():
        done.value += uses
    if stop.is_set():
        raise StoppedError
