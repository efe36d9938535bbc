"""A worker for tests of the holder: the real drivers over a local directory.

Speaks the worker's side of the link as the daemon does. The `test` section of its configuration
says which `root` to serve and what to do wrong: `fail` with a text before anything is mounted,
`exit` with a status then, `mute` (never say "checked"), `crashes` (exit 3 instead of serving, as
long as fewer restarts happened), `reload` with settings of `[mount]` to take on when asked to.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parent))

from served_directory import DirectoryTree, Settings

from tiercache.config import MountConfig
from tiercache.fuse.fusermount import detach
from tiercache.fuse.kernel import KernelDriver
from tiercache.fuse.link import Link, Message
from tiercache.fuse.session import Session


class Worker:
    def __init__(self, link: Link) -> None:
        self.link = link
        self.start, _ = self._receive()
        self.mount = self.start["config"]["mount"]
        self.test = self.start["config"]["test"]

    def misbehave(self) -> None:
        if "fail" in self.test:
            self.link.send({"type": "failed", "error": self.test["fail"]})
            sys.exit(1)
        if "exit" in self.test:
            sys.exit(self.test["exit"])
        if self.test.get("mute"):
            self.link.recv()
            sys.exit(1)

    async def serve(self) -> None:
        self.link.send({"type": "checked"})
        message, fds = self._receive()
        if 0 < self.start["restarts"] <= self.test.get("crashes", 0):
            sys.exit(3)
        tree = DirectoryTree(os.fsencode(self.test["root"]), Settings(session={}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, nursery.cancel_scope)
            await self._driver(tree, message, fds)
            nursery.cancel_scope.cancel()

    async def _driver(self, tree: DirectoryTree, message: Message, fds: list[int]) -> None:
        known = {name: self.mount[name] for name in ("allow_other", "backing_max", "readahead")}
        config = MountConfig(mountpoint=Path(self.mount["mountpoint"]), **known)
        if message["type"] == "mount":
            from tiercache.fuse.libfuse import LibfuseDriver

            await LibfuseDriver(tree, config, message["source"], on_mounted=self._serving).run()
            return
        dev, opens = fds
        session = Session.from_json(message["session"])
        restarted = self.start["restarts"] > 0
        driver = KernelDriver(tree, dev, session, opens, config, restarted=restarted)
        self._serving()
        await driver.run()

    def _serving(self) -> None:
        self.link.send({"type": "serving"})

    async def _watch(self, scope: trio.CancelScope) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.link.fileno())
            received = self.link.recv()
            if received is None:
                detach(Path(self.mount["mountpoint"]))
            if received is None or received[0]["type"] == "stop":
                scope.cancel()
                return
            self._reload()

    def _reload(self) -> None:
        mount = {**self.mount, **self.test["reload"]}
        config = {**self.start["config"], "mount": mount}
        self.link.send({"type": "reloaded", "config": config, "given": {"file": "/new.toml"}})

    def _receive(self) -> tuple[dict[str, Any], list[int]]:
        received = self.link.recv()
        if received is None:
            sys.exit(0)
        return received


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--link-fd", type=int, required=True)
    worker = Worker(Link(parser.parse_args().link_fd))
    worker.misbehave()
    trio.run(worker.serve)
