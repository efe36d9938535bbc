"""The parts of a running mount and how they are wired: config in, a tree out.

Wiring happens here and nowhere else. The worker (`daemon.py`) puts a driver over it; tests none.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio

from tiercache import policies_registry
from tiercache.catalog import Catalog
from tiercache.config import Config, MountConfig
from tiercache.origin.eager import EagerGets
from tiercache.origin.hedge import HedgingOrigin
from tiercache.origin.protocol import EagerOrigin, Origin
from tiercache.origin.retry import RetryingOrigin
from tiercache.policy import EvictionPolicy
from tiercache.prefetch.background import BackgroundFill
from tiercache.prefetch.foresight import Foresight
from tiercache.prefetch.plans import Plans
from tiercache.prefetch.prefetcher import Prefetcher
from tiercache.prefetch.warm import Sources
from tiercache.prefetch.warm_jobs import Warmer
from tiercache.tier.store import TierStore
from tiercache.transfer.fetcher import Fetcher
from tiercache.transfer.mover import Mover
from tiercache.transfer.requests import Requests, SingleFlight
from tiercache.vfs.api import Ownership
from tiercache.vfs.filesystem import TieredFilesystem
from tiercache.vfs.namespace import Namespace
from tiercache.vfs.walk import Walker


def boot_id() -> str:
    """What changes when the machine restarts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def origin_directory(origin: Origin, root: Path) -> Path:
    """Where below a cache directory this origin's files live."""
    return root / hashlib.blake2b(origin.identity.encode(), digest_size=8).hexdigest()


def ownership(config: MountConfig) -> Ownership:
    """Who owns the tree, from the mount options."""
    return Ownership(
        uid=os.getuid() if config.uid is None else config.uid,
        gid=os.getgid() if config.gid is None else config.gid,
        file_mode=0o444 & ~config.umask,
        dir_mode=0o555 & ~config.umask,
    )


@dataclass(slots=True)
class Stack:
    """The parts of a running mount, from the origin up to the tree."""

    origin: Origin
    hedging: HedgingOrigin
    retrying: RetryingOrigin
    catalog: Catalog
    store: TierStore
    fetcher: Fetcher
    requests: Requests
    prefetcher: Prefetcher
    namespace: Namespace
    filesystem: TieredFilesystem
    mover: Mover
    warmer: Warmer
    plans: Plans
    background: BackgroundFill

    def reconfigure(self, config: Config) -> None:
        """Take on the live settings of *config*; the others must be those we began with."""
        self.retrying.reconfigure(config.transfer)  # and what is below it
        self.fetcher.reconfigure(config.transfer)
        self.prefetcher.reconfigure(config.prefetch)
        self.background.reconfigure(config.prefetch)
        self.namespace.reconfigure(config.mount)
        self.store.reconfigure(config.tiers, config.heat, config.move)
        self.mover.reconfigure(config.move)

    def status(self) -> dict[str, Any]:
        """Everything but the driver, for `tiercache status`."""
        return {
            "origin": {"name": self.origin.name, **self.origin.describe()},
            "tiers": self.store.status(),
            "moves": self.mover.status(),
            "plan": self.plans.status(),
            "background_fill": self.background.status(),
            "in_flight": self.fetcher.admission.connections_used,
            "queued": self.fetcher.admission.waiting,
            "concurrency": self.fetcher.concurrency,
            "streams": self.prefetcher.streams.active,
            "memory_bytes": self.fetcher.admission.memory_used,
            "counters": {
                "origin_bytes": self.fetcher.bytes_fetched,
                "origin_gets": self.fetcher.gets,
                "origin_lists": self.requests.lists,
                "origin_heads": self.requests.heads,
                "origin_retries": self.retrying.retries,
                "origin_failures": self.retrying.failures,
                "origin_hedges": self.hedging.hedges,
                "origin_hedges_won": self.hedging.hedges_won,
                "origin_throttled": self.fetcher.throttled,
                **{f"fetched_{why}_bytes": n for why, n in self.fetcher.fetched.items()},
                "prefetch_wasted_bytes": self.prefetcher.wasted_bytes,
                "prefetch_abandoned_bytes": self.fetcher.abandoned_bytes,
                **asdict(self.filesystem.stats),
                **asdict(self.namespace.stats),
            },
            "catalog": {"rebuilt": self.catalog.rebuilt, **self.catalog.stats()},
        }


@asynccontextmanager
async def open_stack(
    config: Config, origin: Origin, *, fresh: bool, now: Callable[[], float] = time.time
) -> AsyncIterator[Stack]:
    """Wire everything between *origin* and the tree, with its background tasks, for a while.

    *fresh*: no kernel holds inode numbers of a former worker, so forgotten ones may be swept.
    """
    identity, boot = origin.identity, boot_id()
    catalog = Catalog.open(
        origin_directory(origin, config.cache_dir) / "catalog",
        config.catalog,
        identity=identity,
        boot_id=boot,
        now=now,
    )
    foresight = Foresight()
    store = TierStore.open(
        config.tiers,
        origin_identity=identity,
        kv=catalog.kv,
        boot_id=boot,
        policy=lambda name, capacity: foresight.over(make_policy(config, name, capacity)),
        heat=config.heat,
        move=config.move,
        rules=config.rules,
        adopt=catalog.rebuilt is not None,
    )
    try:
        async with trio.open_nursery() as nursery:
            stack = _wire(config, origin, catalog, (store, foresight), nursery, now, fresh=fresh)
            for task in (
                catalog.run,
                store.run,
                stack.fetcher.run,
                stack.hedging.run,
                stack.mover.run,
                stack.plans.run,
                stack.background.run,
            ):
                nursery.start_soon(task)
            if fresh:
                nursery.start_soon(_sweep, catalog, store)
            yield stack
            nursery.cancel_scope.cancel()
    finally:
        # Only now nothing uses them any more, not even in the background.
        store.close()
        catalog.close(clean=True)


def _wire(  # noqa: PLR0913 - called by `open_stack` alone
    config: Config,
    origin: Origin,
    catalog: Catalog,
    local: tuple[TierStore, Foresight],
    nursery: trio.Nursery,
    now: Callable[[], float],
    *,
    fresh: bool,
) -> Stack:
    store, foresight = local
    hedging = HedgingOrigin(origin, config.transfer)
    retrying = RetryingOrigin(hedging, config.transfer)
    eager = None
    if isinstance(origin, EagerOrigin):
        nursery.start_soon(origin.run)
        eager = EagerGets(origin, hedging, retrying)
    fetcher = Fetcher(retrying, store, config.transfer, nursery, eager)
    retrying.on_failed(fetcher.attempt_failed)
    hedging.on_hedge(fetcher.admission.charge)
    flights = SingleFlight(nursery)
    requests = Requests(retrying, fetcher.admission, flights)
    namespace = Namespace(catalog, requests, flights, config.mount, now)
    foresight.key_of = namespace.key_of
    prefetcher = Prefetcher(fetcher, namespace, config.prefetch, config.transfer.part)
    filesystem = TieredFilesystem(
        catalog, namespace, store, fetcher, prefetcher, ownership(config.mount)
    )
    sources = Sources(
        files=Walker(namespace, catalog),
        store=store,
        fetcher=fetcher,
        mountpoint=config.mount.mountpoint,
        part=config.transfer.part,
        workers=config.transfer.connections,
        entries_max=config.prefetch.plan_entries,
    )
    background = BackgroundFill(sources, config.prefetch, config.heat.group_depth)
    prefetcher.background = background
    return Stack(
        origin=origin,
        hedging=hedging,
        retrying=retrying,
        catalog=catalog,
        store=store,
        fetcher=fetcher,
        requests=requests,
        prefetcher=prefetcher,
        namespace=namespace,
        filesystem=filesystem,
        mover=Mover(
            store.exchange,
            config.move,
            activity=lambda: filesystem.stats.reads + filesystem.stats.opens,
        ),
        warmer=Warmer(sources, config.origin, nursery),
        plans=Plans(
            prefetcher,
            (namespace, fetcher, store),
            foresight,
            config.prefetch,
            config.mount.mountpoint,
            catalog.kv,
            fresh=fresh,
        ),
        background=background,
    )


def make_policy(config: Config, name: str, capacity: int) -> EvictionPolicy:
    """Policy *name* for *capacity* bytes, with its `[policy.NAME]`; it forgets as heat does."""
    table = next((table for table in config.policies if table.name == name), None)
    place = None if table is None else table.entry_point
    given: dict[str, object] = {} if table is None else dict(table.params)
    if "half_life" in policies_registry.params_of(policies_registry.find(name, place)):
        given.setdefault("half_life", config.heat.half_life_s)
    return policies_registry.make(name, capacity, given, place)


async def _sweep(catalog: Catalog, store: TierStore) -> None:
    """Drop versions that no name points to any more, in slices."""
    for gone in catalog.sweep(lambda _ino: False):
        for ino in gone:
            store.evict(ino)
        await trio.lowlevel.checkpoint()
