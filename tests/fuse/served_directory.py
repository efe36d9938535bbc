"""A directory served by the raw driver, as a program of its own.

A process that reads a mount which it serves itself waits for itself, so tests run this:
`served_directory.py ROOT DEV_FD OPENS_FD SETTINGS` with SETTINGS a JSON object (see `Settings`).
It writes one line when it serves, answers each line on stdin with its status as one line of JSON,
and ends when the mount does.

Names decide what is asked of the driver: `async*` answers late, `bug*` raises when read,
`stuck*` is never answered when read, nor is a lookup of `stuckname*`, `changed*` cannot be opened,
`*plain*` has no local copy to pass through until the command `copied` says so.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from tiercache.config import MountConfig
from tiercache.errors import NameTooLongError, ObjectChangedError
from tiercache.fuse.kernel import KernelDriver
from tiercache.fuse.session import Session
from tiercache.types import NAME_MAX, ROOT_INO, Inode, Kind
from tiercache.vfs.api import DirEntry, Entry, Ownership, StatFs

OWNERSHIP = Ownership(uid=0, gid=0, file_mode=0o444, dir_mode=0o555)


@dataclass(kw_only=True)
class Settings:
    session: dict[str, Any]
    restarted: bool = False
    ttl_s: float = 3600.0
    negative_ttl_s: float = 5.0
    backing_max: int = 4096


class DirectoryTree:
    """Mirrors a directory; inode numbers depend on its names alone, so every process agrees."""

    ownership = OWNERSHIP

    def __init__(self, root: bytes, settings: Settings) -> None:
        self._settings = settings
        self._paths = {ROOT_INO: root}
        self._inodes = {ROOT_INO: self._inode(ROOT_INO, ROOT_INO, root)}
        self._children: dict[int, dict[bytes, int]] = {ROOT_INO: {}}
        self._fds: dict[int, int] = {}
        self._copied: set[int] = set()
        self._handles = 0
        self.held: dict[int, int] = {}
        self.dirs_open = 0
        self.registered: set[int] = set()
        self._scan(ROOT_INO)

    def _scan(self, parent: int) -> None:
        for name in sorted(os.listdir(self._paths[parent])):
            ino = len(self._paths) + 1
            path = os.path.join(self._paths[parent], name)
            self._paths[ino] = path
            self._inodes[ino] = inode = self._inode(ino, parent, path)
            self._children[parent][name] = ino
            if inode.kind is Kind.DIRECTORY:
                self._children[ino] = {}
                self._scan(ino)

    def _inode(self, ino: int, parent: int, path: bytes) -> Inode:
        found = os.stat(path)
        kind = Kind.DIRECTORY if stat.S_ISDIR(found.st_mode) else Kind.FILE
        size = found.st_size if kind is Kind.FILE else 0
        return Inode(ino, parent, kind, size, found.st_mtime_ns, "", os.path.basename(path))

    def _entry(self, ino: int | None) -> Entry:
        if ino is None:
            return Entry(None, self._settings.negative_ttl_s, 0)
        return Entry(self._inodes[ino], self._settings.ttl_s, self._settings.ttl_s)

    def lookup(self, parent: int, name: bytes) -> Any:
        if name.startswith(b"stuckname"):
            return never()
        if len(name) > NAME_MAX:
            raise NameTooLongError(f"{len(name)} bytes")
        entry = self._entry(self._children[parent].get(name))
        return later(entry) if name.startswith(b"async") else entry

    def getattr(self, ino: int) -> Any:
        entry = self._entry(ino)
        return later(entry) if self._named(ino, b"async") else entry

    def open(self, ino: int) -> Any:
        if self._named(ino, b"changed"):
            raise ObjectChangedError("gone")
        self.held[ino] = self.held.get(ino, 0) + 1
        return later(None) if self._named(ino, b"async") else None

    def opened(self, ino: int) -> None:
        assert self.held[ino] > 0

    def backing_fd(self, ino: int) -> int | None:
        if b"plain" in self._inodes[ino].key and ino not in self._copied:
            return None
        return os.open(self._paths[ino], os.O_RDONLY)

    def backing_kept(self, ino: int) -> None:
        self.registered.add(ino)

    def backing_gone(self, ino: int) -> None:
        self.registered.remove(ino)

    def locate(self, ino: int, offset: int, size: int) -> None:
        """Nothing is taken from a page cache."""

    def was_read(self, ino: int, offset: int, size: int) -> None:
        raise AssertionError("nothing was located")

    def read(self, ino: int, offset: int, size: int) -> Any:
        if self._named(ino, b"bug"):
            raise ZeroDivisionError("a bug on purpose")
        if self._named(ino, b"stuck"):
            return never()
        fd = self._fds.get(ino)
        if fd is None:
            fd = self._fds[ino] = os.open(self._paths[ino], os.O_RDONLY)
        data = os.pread(fd, size, offset)
        return later(data) if self._named(ino, b"async") else memoryview(data)

    def release(self, ino: int) -> None:
        self.held[ino] = self.held.get(ino, 0) - 1

    def opendir(self, ino: int) -> Any:
        self._handles += 1
        self.dirs_open += 1
        return later(self._handles) if self._named(ino, b"async") else self._handles

    def readdir(self, ino: int, _handle: int, offset: int) -> Any:
        entries = self._list(ino, offset)
        return later(entries) if self._named(ino, b"async") else entries

    def releasedir(self, _handle: int) -> None:
        self.dirs_open -= 1

    def statfs(self) -> StatFs:
        return StatFs(4096, 1 << 40, 1 << 39, len(self._paths), 255)

    def on_invalidate(self, invalidate: Any) -> None:
        self.invalidate = invalidate

    def on_dropped(self, dropped: Any) -> None:
        self.dropped = dropped

    def command(self, words: list[str]) -> None:
        """`invalidate NAME`, `dropped NAME` or `copied NAME`, all for a child of the root."""
        name = os.fsencode(words[1])
        if words[0] == "invalidate":
            self.invalidate(ROOT_INO, name)
        elif words[0] == "dropped":
            self.dropped(self._children[ROOT_INO][name])
        elif words[0] == "copied":
            self._copied.add(self._children[ROOT_INO][name])

    def _named(self, ino: int, prefix: bytes) -> bool:
        return self._inodes[ino].key.startswith(prefix)

    def _list(self, ino: int, offset: int) -> Iterator[DirEntry]:
        inode = self._inodes[ino]
        names = [(b".", ino), (b"..", inode.parent), *self._children[ino].items()]
        for index, (name, child) in enumerate(names[offset:], offset):
            yield DirEntry(name, self._entry(child), index + 1)


async def later(result: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return result


async def never() -> Any:
    await trio.sleep_forever()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def answer_commands(tree: DirectoryTree, driver: KernelDriver) -> None:
    """One line in, one line of status out."""
    pending = b""
    os.set_blocking(0, False)
    while True:
        await trio.lowlevel.wait_readable(0)
        got = os.read(0, 4096)
        if not got:
            return
        *lines, pending = (pending + got).split(b"\n")
        for line in lines:
            if words := line.decode().split():
                tree.command(words)
            state = {
                "held": sum(tree.held.values()),
                "dirs_open": tree.dirs_open,
                "registered": len(tree.registered),
            }
            say(json.dumps(driver.status() | state))


async def serve(root: str, dev_fd: int, opens_fd: int, settings: Settings) -> None:
    tree = DirectoryTree(os.fsencode(root), settings)
    config = MountConfig(mountpoint=Path("/"), backing_max=settings.backing_max)
    session = Session.from_json(settings.session)
    driver = KernelDriver(tree, dev_fd, session, opens_fd, config, restarted=settings.restarted)
    say("serving")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_commands, tree, driver)
        await driver.run()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    _, root, dev_fd, opens_fd, settings = sys.argv
    trio.run(serve, root, int(dev_fd), int(opens_fd), Settings(**json.loads(settings)))
