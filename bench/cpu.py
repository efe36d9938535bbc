"""`cpu`: where the CPU time of a cold stream goes, and how many cores it uses.

One reader streams objects from nginx, which is not the limit, over plain HTTP and over TLS, while
`perf` samples the daemon. A sample belongs to the first part that fits its call chain; CPU seconds
are those the kernel accounts, divided by the shares of the samples.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench import nginx
from bench.cold_tls import both
from bench.machine import populate
from bench.readers import sequential, touched_buffer
from bench.rows import Pair, Row
from bench.store import COPIES, Cpu, Store
from bench.workspace import say
from tiercache.testing.mounting import CommandMount
from tiercache.types import MIB

_HERTZ = 997
_PERF_START_S = 0.5  # nothing says when it samples


class Part(NamedTuple):
    """A part of the work, and what a frame of its call chains holds: a symbol or an object."""

    name: str
    marks: tuple[str, ...]


#: In order: what is inside a call belongs to the call, so system calls come before libraries.
PARTS = (
    Part("receive", ("tcp_recvmsg", "sys_recvfrom")),
    Part("send", ("tcp_sendmsg",)),
    Part("reply", ("fuse_dev", "do_splice")),
    Part("write", ("sys_fallocate", "ext4_", "sys_pwrite", "xfs_", "shmem_file_write")),
    Part("memory", ("exc_page_fault", "sys_mmap", "sys_munmap", "sys_madvise")),
    Part("wait", ("futex", "epoll", "schedule")),
    Part("hash", ("_xxhash",)),
    Part("tls", ("libcrypto", "libssl", "_ssl.")),
    Part("python", ("libpython", "python3", ".cpython-", "libc.so", "ld-linux")),
)
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Sample:
    """Thread name and frames, innermost first, each as `symbol (object)`."""

    thread: str
    frames: tuple[str, ...]


def usable() -> bool:
    """Whether what this needs is installed."""
    return nginx.available() and shutil.which("perf") is not None


def measure(store: Store, rounds: int) -> Iterator[Row]:
    """Rows `cpu.http.*` and `cpu.tls.*`: cores in use, and CPU seconds per GB of each part."""
    names = store.dataset.stream_names()[:rounds]
    with both(store, names) as (secure, plain):
        yield from _stream(store, plain, names, "cpu.http")
        yield from _stream(store, secure, names, "cpu.tls")


def _stream(store: Store, mount: CommandMount, names: Sequence[str], prefix: str) -> list[Row]:
    say(f"{prefix}, {len(names)} objects")
    size, buffer, cpu = store.dataset.scale.stream_size, touched_buffer(MIB), Cpu()
    worker = {"worker": store.processes(mount)["worker"]}
    cores = []
    recording = store.workspace / f"{prefix}.perf"
    with _recorded(worker["worker"].pid, recording):
        for name in names:
            populate(COPIES * size)
            with cpu.measure(worker, size):
                rate = sequential(f"{mount.mountpoint}/{name}", buffer)
            spent = cpu.samples["worker"][-1]
            cores.append(Pair(spent * rate / 1e9, 1.0))
    total = sum(cpu.samples["worker"]) / len(names)
    samples = list(parse(_script(recording)))
    loop = sum(sample.thread.startswith("python") for sample in samples) / max(1, len(samples))
    extra = {"samples": len(samples), "share_of_loop": round(loop, 3)}
    rows = [Row(f"{prefix}.cores", "cores", "one core", 1.0, cores, extra)]
    for part, share in shares(samples).items():
        pair = Pair(share * total, total)
        rows.append(Row(f"{prefix}.{part}", "s/GB", "all CPU s per GB", None, [pair]))
    return rows


def shares(samples: Sequence[Sample]) -> dict[str, float]:
    """Which share of the samples belongs to each part, all parts present."""
    counts = Counter(map(part_of, samples))
    names = [*(part.name for part in PARTS), OTHER]
    return {name: counts[name] / max(1, len(samples)) for name in names}


def part_of(sample: Sample) -> str:
    """The first part one of whose marks is in a frame."""
    for part in PARTS:
        if any(mark in frame for frame in sample.frames for mark in part.marks):
            return part.name
    return OTHER


def parse(lines: Iterable[str]) -> Iterator[Sample]:
    """Samples as `perf script -F comm,tid,ip,sym,dso` prints them, a blank line after each."""
    thread, frames = "", list[str]()
    for line in lines:
        if line.startswith("\t"):
            frames.append(line.split(maxsplit=1)[-1].strip())
        elif line.strip():
            thread = line.rsplit(maxsplit=1)[0].strip()
        elif thread:
            yield Sample(thread, tuple(frames))
            thread, frames = "", []
    if thread:
        yield Sample(thread, tuple(frames))


@contextmanager
def _recorded(pid: int, file: Path) -> Iterator[None]:
    command = ["perf", "record", "-q", "-g", "-F", str(_HERTZ), "-p", str(pid), "-o", str(file)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as perf:
        try:
            time.sleep(_PERF_START_S)
            yield
        finally:
            perf.send_signal(signal.SIGINT)


def _script(file: Path) -> list[str]:
    command = ["perf", "script", "-i", str(file), "-F", "comm,tid,ip,sym,dso"]
    done = subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return done.stdout.decode(errors="replace").splitlines()
