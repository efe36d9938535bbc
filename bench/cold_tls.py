"""What TLS costs: a mount over https against one over plain HTTP, both of one nginx."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.machine import populate
from bench.nginx import Nginx
from bench.readers import sequential, touched_buffer
from bench.rows import Row, one_pair
from bench.store import BUCKET, COPIES, Cpu, Store
from bench.workspace import say
from tiercache.testing.mounting import CommandMount
from tiercache.types import MIB

GOAL = 0.5


def measure(store: Store, rounds: int) -> Row:
    """The row `cold.tls`. One reader; each round reads an object that is cold to both mounts."""
    names = store.dataset.stream_names()
    rounds = min(rounds, len(names))
    say(f"cold.tls, {rounds} rounds")
    buffer, size = touched_buffer(MIB), store.dataset.scale.stream_size
    secure_cpu, plain_cpu = Cpu(), Cpu()
    pairs = []
    with both(store, names[:rounds]) as (secure, plain):

        def sample(mount: CommandMount, cpu: Cpu, name: str) -> float:
            populate(COPIES * size)
            worker = {"worker": store.processes(mount)["worker"]}
            with cpu.measure(worker, size):
                return sequential(f"{mount.mountpoint}/{name}", buffer)

        for number, name in enumerate(names[:rounds]):
            over_tls = partial(sample, secure, secure_cpu, name)
            over_http = partial(sample, plain, plain_cpu, name)
            pairs.append(one_pair(number, over_tls, over_http))
    extra = {
        "mount_cpu_s_per_gb": secure_cpu.medians(),
        "baseline_cpu_s_per_gb": plain_cpu.medians(),
    }
    return Row("cold.tls", "B/s", "mount over plain HTTP, nginx", GOAL, pairs, extra)


@contextmanager
def both(store: Store, names: list[str]) -> Iterator[tuple[CommandMount, CommandMount]]:
    """Cold mounts over https and http of an nginx that holds *names*."""
    with Nginx(store.workspace / "nginx", store.url) as front:
        plain_store = replace(store, url=front.url, workspace=_below(store.workspace, "plain"))
        front.warm(plain_store.client, BUCKET, names)
        secure_store = replace(
            store,
            url=front.secure_url,
            workspace=_below(store.workspace, "secure"),
            env={"AWS_CA_BUNDLE": str(front.ca_bundle)},
        )
        with secure_store.cold_mount() as secure, plain_store.cold_mount() as plain:
            yield secure, plain


def _below(workspace: Path, name: str) -> Path:
    path = workspace / name
    path.mkdir()
    return path
