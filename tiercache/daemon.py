"""The worker: composition root of a mount.

`python -P -m tiercache.daemon --link-fd N`, started by the holder. It takes its configuration from
the link, checks the origin, asks for the mount, and serves until the mount is gone or the holder
says stop. Wiring happens here and nowhere else: config in, one nursery out.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio

from tiercache import policies_registry
from tiercache.catalog import Catalog
from tiercache.config import Config, MountConfig
from tiercache.config_file import config_from_json, config_to_json
from tiercache.config_given import Given
from tiercache.control.holdings import HoldingOperations
from tiercache.control.popularity import popularity
from tiercache.control.recorder import Recorder
from tiercache.control.server import serve_control
from tiercache.errors import TierCacheError
from tiercache.fuse.bugs import innermost
from tiercache.fuse.fusermount import detach
from tiercache.fuse.kernel import KernelDriver
from tiercache.fuse.link import Link
from tiercache.fuse.session import Session
from tiercache.origin.hedge import HedgingOrigin
from tiercache.origin.open import open_origin
from tiercache.origin.protocol import Origin
from tiercache.origin.retry import RetryingOrigin
from tiercache.policy import EvictionPolicy
from tiercache.prefetch.plans import Plans
from tiercache.prefetch.prefetcher import Prefetcher
from tiercache.prefetch.warm import Sources
from tiercache.prefetch.warm_jobs import Warmer
from tiercache.reloading import Reloading
from tiercache.tier.store import TierStore
from tiercache.transfer.fetcher import Fetcher
from tiercache.transfer.mover import Mover
from tiercache.transfer.requests import Requests, SingleFlight
from tiercache.vfs.api import Ownership
from tiercache.vfs.filesystem import TieredFilesystem
from tiercache.vfs.namespace import Namespace
from tiercache.vfs.walk import Walker

log = logging.getLogger(__name__)

#: How often a mount asks an origin that answers with a passing failure.
_CHECK_ATTEMPTS = 3

#: Allocations between collections of the youngest objects; Python's 700 comes every few requests.
_GC_THRESHOLD = 20_000


class Driver(Protocol):
    """What both drivers offer."""

    async def run(self) -> None:
        """Serve until the file system is unmounted."""

    def status(self) -> dict[str, Any]:
        """Facts for `tiercache status`."""


def boot_id() -> str:
    """What changes when the machine restarts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def origin_directory(origin: Origin, root: Path) -> Path:
    """Where below a cache directory this origin's files live."""
    return root / hashlib.blake2b(origin.identity.encode(), digest_size=8).hexdigest()


def _patient(origin: Origin, config: Config) -> Origin:
    """*origin* that gets over a hiccup, but does not keep whoever mounts waiting for long."""
    attempts = min(config.transfer.attempts, _CHECK_ATTEMPTS)
    return RetryingOrigin(origin, replace(config.transfer, attempts=attempts))


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

    def reconfigure(self, config: Config) -> None:
        """Take on the live settings of *config*; the others must be those we began with."""
        self.retrying.reconfigure(config.transfer)  # and what is below it
        self.fetcher.reconfigure(config.transfer)
        self.prefetcher.reconfigure(config.prefetch)
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
    store = TierStore.open(
        config.tiers,
        origin_identity=identity,
        kv=catalog.kv,
        boot_id=boot,
        policy=partial(make_policy, config),
        heat=config.heat,
        move=config.move,
        rules=config.rules,
        adopt=catalog.rebuilt is not None,
    )
    try:
        async with trio.open_nursery() as nursery:
            stack = _wire(config, origin, catalog, store, nursery, now, fresh=fresh)
            for task in (
                catalog.run,
                store.run,
                stack.fetcher.run,
                stack.hedging.run,
                stack.mover.run,
                stack.plans.run,
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
    store: TierStore,
    nursery: trio.Nursery,
    now: Callable[[], float],
    *,
    fresh: bool,
) -> Stack:
    hedging = HedgingOrigin(origin, config.transfer)
    retrying = RetryingOrigin(hedging, config.transfer)
    fetcher = Fetcher(retrying, store, config.transfer, nursery)
    retrying.on_failed(fetcher.attempt_failed)
    hedging.on_hedge(fetcher.admission.charge)
    flights = SingleFlight(nursery)
    requests = Requests(retrying, fetcher.admission, flights)
    namespace = Namespace(catalog, requests, flights, config.mount, now)
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
            (prefetcher, namespace, fetcher),
            config.prefetch,
            config.mount.mountpoint,
            catalog.kv,
            fresh=fresh,
        ),
    )


def _holdings(stack: Stack, driver: Driver) -> HoldingOperations:
    return HoldingOperations(
        Walker(stack.namespace, stack.catalog),
        stack.store.holdings,
        lambda: driver.status().get("passthrough_reason") or None,
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


class Worker:
    """One run of the worker, from the link's start message to the end of the mount."""

    def __init__(self, link: Link, start: dict[str, Any]) -> None:
        self._link = link
        self._config = config_from_json(start["config"])
        self._given = Given.from_json(start["given"]) if start["given"] else Given()
        self._restarts: int = start["restarts"]
        self._driver_name: str = start["driver"]
        self._runtime = Path(start["runtime_dir"])
        self._started = time.monotonic()

    async def run(self) -> None:
        """Serve until unmounted; raises TierCacheError when that cannot begin."""
        origin = open_origin(self._config.origin, self._config.transfer)
        try:
            if not self._restarts:
                await _patient(origin, self._config).check()
            async with open_stack(self._config, origin, fresh=not self._restarts) as stack:
                self._link.send({"type": "checked"})
                await self._serve(stack, await self._driver(stack.filesystem))
        finally:
            with trio.move_on_after(1, shield=True):
                await origin.aclose()

    async def _driver(self, filesystem: TieredFilesystem) -> Driver:
        """The driver over what the holder mounted, or tells us to mount."""
        message, fds = await self._receive()
        self._driver_name = message["driver"]
        if self._driver_name == "libfuse":
            from tiercache.fuse.libfuse import LibfuseDriver

            return LibfuseDriver(
                filesystem, self._config.mount, message["source"], on_mounted=self._serving
            )
        dev, opens = fds
        return KernelDriver(
            filesystem,
            dev,
            Session.from_json(message["session"]),
            opens,
            self._config.mount,
            restarted=self._restarts > 0,
        )

    async def _serve(self, stack: Stack, driver: Driver) -> None:
        def status() -> dict[str, Any]:
            return {
                "driver": self._driver_name,
                "uptime_s": time.monotonic() - self._started,
                "worker": {"pid": os.getpid(), "restarts": self._restarts},
                **driver.status(),
                **stack.status(),
                "trace": recorder.status(),
            }

        async with trio.open_nursery() as nursery:
            recorder = Recorder(stack.filesystem, stack.store.usage.group_of, nursery, time.time)
            reloading = self._reloading(stack)
            operations = {
                "status": status,
                "popularity": partial(popularity, stack.store.usage, stack.catalog, time.time),
                "reload": reloading.reload,
                **stack.warmer.operations(),
                **stack.plans.operations(),
                **_holdings(stack, driver).operations(),
                **recorder.operations(),
            }
            await nursery.start(serve_control, self._runtime / "control.sock", operations)
            nursery.start_soon(reloading.run)
            nursery.start_soon(self._watch, nursery.cancel_scope, reloading)
            if self._driver_name == "kernel":  # mounted already; libfuse has yet to mount
                self._serving()
            await driver.run()
            nursery.cancel_scope.cancel()

    def _reloading(self, stack: Stack) -> Reloading:
        def apply(config: Config) -> None:
            logging.getLogger().setLevel(config.log_level.upper())
            stack.reconfigure(config)

        def announce(config: Config, given: Given) -> None:
            self._link.send(
                {"type": "reloaded", "config": config_to_json(config), "given": given.to_json()}
            )

        return Reloading(self._config, self._given, apply, announce)

    def _serving(self) -> None:
        self._link.send({"type": "serving"})

    async def _watch(self, scope: trio.CancelScope, reloading: Reloading) -> None:
        """Do what the holder says; end the mount when it is gone."""
        while True:
            await trio.lowlevel.wait_readable(self._link.fileno())
            received = self._link.recv()
            if received is None:  # the holder was killed: nobody else takes the mount away
                await trio.to_thread.run_sync(detach, self._config.mount.mountpoint)
            if received is None or received[0]["type"] == "stop":
                scope.cancel()
                return
            if received[0]["type"] == "reload":
                reloading.ask()

    async def _receive(self) -> tuple[dict[str, Any], list[int]]:
        await trio.lowlevel.wait_readable(self._link.fileno())
        received = self._link.recv()
        if received is None:
            raise TierCacheError("the holder is gone")
        return received


def main() -> int:
    """Run one worker; the exit status tells the holder whether to start another."""
    parser = argparse.ArgumentParser(prog="tiercache.daemon")
    parser.add_argument("--link-fd", type=int, required=True)
    link = Link(parser.parse_args().link_fd)
    received = link.recv()
    if received is None:
        return 0
    start = received[0]
    logging.basicConfig(
        level=start["config"]["log_level"].upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # What was imported lives as long as the process: full collections need not walk it, and the
    # objects of a busy mount are freed by reference counts alone.
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 50)
    try:
        trio.run(Worker(link, start).run)
    except* TierCacheError as group:
        failure = innermost(group)
    else:
        return 0
    log.error("%s", failure)
    link.send({"type": "failed", "error": str(failure)})
    return 1


if __name__ == "__main__":
    sys.exit(main())
