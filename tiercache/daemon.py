"""The worker: composition root of a mount.

`python -P -m tiercache.daemon --link-fd N`, started by the holder. It takes its configuration from
the link, checks the origin, asks for the mount, and serves until the mount is gone or the holder
says stop. What it serves is wired in `stack.py`.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio

from tiercache.config import Config
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
from tiercache.origin.open import open_origin
from tiercache.origin.protocol import Origin
from tiercache.origin.retry import RetryingOrigin
from tiercache.reloading import Reloading
from tiercache.stack import Stack, open_stack
from tiercache.vfs.filesystem import TieredFilesystem
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


def _patient(origin: Origin, config: Config) -> Origin:
    """*origin* that gets over a hiccup, but does not keep whoever mounts waiting for long."""
    attempts = min(config.transfer.attempts, _CHECK_ATTEMPTS)
    return RetryingOrigin(origin, replace(config.transfer, attempts=attempts))


def _holdings(stack: Stack, driver: Driver) -> HoldingOperations:
    return HoldingOperations(
        Walker(stack.namespace, stack.catalog),
        stack.store.holdings,
        lambda: driver.status().get("passthrough_reason") or None,
    )


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
