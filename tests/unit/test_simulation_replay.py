"""Replaying: the order of calls, what is counted, and many replays at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial

import psutil
import pytest

from tiercache import policies_registry
from tiercache.errors import TierCacheError
from tiercache.policy import Policy
from tiercache.simulation import workloads
from tiercache.simulation.jobs import Job, Source, Unbounded, run
from tiercache.simulation.replay import Access, replay
from tiercache.simulation.sweep import sweep


class Noting(Policy):
    """First in, first out; 9 is not welcome, and nobody leaves for 8. Notes every call."""

    def __init__(self, capacity):
        self.calls = []
        self.order = []

    def wants(self, item, size, group, now):
        self.calls.append(("wants", item, size, group, now))
        self.wanted = item
        return item != 9

    def admit(self, item, size, group, now):
        self.calls.append(("admit", item, size, group, now))
        self.order.append(item)

    def access(self, item, now):
        self.calls.append(("access", item, now))

    def victim(self, now):
        self.calls.append(("victim", now))
        return None if self.wanted == 8 else self.order[0]

    def remove(self, item, *, evicted=False):
        self.calls.append(("remove", item, evicted))
        self.order.remove(item)


def test_the_order_of_calls_is_that_of_the_protocol():
    policy = Noting(10)
    counts = replay(
        policy,
        [
            Access(1.0, 1, 4, 7),
            Access(2.0, 2, 4, 7),
            Access(3.0, 1, 4, 7),
            Access(4.0, 9, 1, 7),  # not welcome
            Access(5.0, 8, 4, 7),  # nobody leaves for it
            Access(6.0, 3, 10, 7),  # two must leave
            Access(7.0, 4, 11, 7),  # larger than the tier: nobody is asked to leave
        ],
        10,
    )
    assert policy.calls == [
        ("wants", 1, 4, 7, 1.0),
        ("admit", 1, 4, 7, 1.0),
        ("wants", 2, 4, 7, 2.0),
        ("admit", 2, 4, 7, 2.0),
        ("access", 1, 3.0),
        ("wants", 9, 1, 7, 4.0),
        ("wants", 8, 4, 7, 5.0),
        ("victim", 5.0),
        ("wants", 3, 10, 7, 6.0),
        ("victim", 6.0),
        ("remove", 1, True),
        ("victim", 6.0),
        ("remove", 2, True),
        ("admit", 3, 10, 7, 6.0),
        ("wants", 4, 11, 7, 7.0),
    ]
    assert (counts.uses, counts.hits, counts.bypasses, counts.evictions) == (7, 1, 3, 2)
    assert (counts.nbytes, counts.hit_bytes, counts.written) == (38, 4, 18)
    assert counts.hit_ratio == 1 / 7
    assert counts.byte_hit_ratio == 4 / 38


def job(policy, capacity):
    return Job(policy, capacity, partial(policies_registry.make, policy))


def nothing(_uses):
    pass


#: Hits at capacity 500 of 4 epochs over 1000 items, and of 5000 Zipf draws; libCacheSim's too.
GOLDEN = {
    "lru": (442, 3247),
    "fifo": (563, 3059),
    "pin": (1500, 3175),
    "s3fifo": (538, 3302),
    "belady": (1500, 3760),
}


@pytest.mark.parametrize("policy", GOLDEN)
def test_golden_hits(policy):
    orders = (workloads.permutations(1000, 4, seed=1), workloads.zipf(2000, 5000, seed=1))
    traces = [list(workloads.timed(order)) for order in orders]
    found = [run(job(policy, 500), Source(trace), nothing).counts.hits for trace in traces]
    assert tuple(found) == GOLDEN[policy]


def test_unbounded_misses_first_uses_only():
    trace = list(workloads.timed(workloads.permutations(100, 5)))
    counts = run(Job("unbounded", 1 << 60, Unbounded), Source(trace), nothing).counts
    assert (counts.hits, counts.evictions) == (400, 0)
    warm = run(Job("unbounded", 1 << 60, Unbounded), Source(trace, skip=100), nothing).counts
    assert (warm.uses, warm.hit_ratio) == (400, 1.0)


def test_sizes_may_be_left_out_and_are_never_zero():
    trace = [Access(0, 1, 5000), Access(1, 2, 0), Access(2, 1, 5000)]
    equal = run(job("lru", 2), Source(trace, equal_sizes=True), nothing).counts
    assert (equal.hits, equal.nbytes) == (1, 3)
    assert [access.size for access in Source(trace).accesses()] == [5000, 1, 5000]


@pytest.mark.parametrize("processes", [1, 2])
def test_sweeps_give_what_single_replays_give(processes):
    trace = list(workloads.timed(workloads.zipf(500, 20_000)))
    jobs = [job(policy, size) for policy in ("lru", "belady") for size in (50, 100, 200)]
    seen = []
    outcomes = sweep(jobs, Source(trace), processes, seen.append)
    assert [(found.policy, found.capacity) for found in outcomes] == [
        (expected.policy, expected.capacity) for expected in jobs
    ]
    assert [found.counts for found in outcomes] == [
        run(each, Source(trace), nothing).counts for each in jobs
    ]
    assert seen == sorted(seen)
    assert seen[-1] == 20_000 * len(jobs)


def failing(capacity):
    raise ArithmeticError(f"no policy for {capacity}")


def killed(capacity):
    os.kill(os.getpid(), signal.SIGKILL)


def endless():
    while True:
        yield Access(0.0, 1)


class Endless:
    """A trace without end."""

    def __iter__(self):
        return endless()


def test_a_failure_ends_the_others():
    jobs = [job("lru", 10), Job("failing", 3, failing)]
    with pytest.raises(ArithmeticError, match="no policy for 3"):
        sweep(jobs, Source(Endless()), 2)


def test_a_killed_process_is_told_in_one_line():
    jobs = [Job("killed", 3, killed), Job("killed", 4, killed)]
    with pytest.raises(TierCacheError, match="try fewer --jobs"):
        sweep(jobs, Source([]), 2)


def test_what_the_caller_raises_ends_all():
    def interrupt(done):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep([job("lru", 10), job("pin", 10)], Source(Endless()), 2, interrupt)


ORPHANING = """
import os, signal, sys
from functools import partial
from pathlib import Path
from tiercache import policies_registry
from tiercache.simulation.jobs import Job, Source
from tiercache.simulation.sweep import sweep
from tiercache.simulation.traces import Trace

def note(done):
    if done:
        import psutil
        print(*(child.pid for child in psutil.Process().children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    jobs = [Job(name, 10, partial(policies_registry.make, name)) for name in ("lru", "pin")]
    sweep(jobs, Source(Trace(Path(sys.argv[1]))), 2, note)
"""


def test_processes_do_not_outlive_a_killed_caller(tmp_path):
    trace, script = tmp_path / "t.csv", tmp_path / "orphaning.py"
    with trace.open("w") as file:
        file.writelines(f"{number},{number % 50},1\n" for number in range(400_000))
    script.write_text(ORPHANING)
    caller = subprocess.Popen(
        [sys.executable, script, trace],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with caller:
        children = [int(pid) for pid in caller.stdout.readline().split()]
    assert children
    deadline = time.monotonic() + 60
    while any(map(psutil.pid_exists, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, children))
