"""Control operations on single files: pin, unpin, evict, where."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from tiercache.errors import ControlError
from tiercache.tier.holdings import Holdings
from tiercache.types import Inode
from tiercache.vfs.walk import Walker

#: Files that one answer tells about.
_ANSWER_MAX: Final = 20_000


class HoldingOperations:
    """Finds the files that paths and patterns name, and passes them on."""

    def __init__(
        self,
        walker: Walker,
        holdings: Holdings,
        no_passthrough: Callable[[], str | None],
    ) -> None:
        """*no_passthrough*: why the driver cannot pass reads through to any file, if so."""
        self._walker = walker
        self._holdings = holdings
        self._no_passthrough = no_passthrough

    def operations(self) -> Mapping[str, Callable[..., Any]]:
        """For the control socket."""
        return {
            "pin": self.pin,
            "unpin": self.unpin,
            "evict": self.evict,
            "where": self.where,
        }

    async def pin(
        self, paths: list[str], tier: str | None = None, recursive: bool = True
    ) -> dict[str, Any]:
        """Keep what *paths*, below the mount's root, name."""
        found = await self._files(paths, recursive, self._holdings.pins.limit)
        return await self._holdings.pin(found, tier)

    async def unpin(self, paths: list[str], recursive: bool = True) -> dict[str, Any]:
        """Let it go again, even a single file that is no longer there."""
        gone = await self._holdings.unpin(os.fsencode(path) for path in paths)
        if gone["objects"] == len(paths):
            return gone
        found = await self._files(paths, recursive, self._holdings.pins.limit)
        done = await self._holdings.unpin(obj.key for obj in found)
        return {"objects": gone["objects"] + done["objects"]}

    async def evict(
        self, paths: list[str], recursive: bool = True, force: bool = False
    ) -> dict[str, Any]:
        """Remove the local copies."""
        found = await self._files(paths, recursive, self._holdings.pins.limit)
        return await self._holdings.evict(found, force=force)

    async def where(self, paths: list[str], recursive: bool = True) -> list[dict[str, Any]]:
        """What is known of each file."""
        told = []
        why = self._no_passthrough()
        for obj in await self._files(paths, recursive, _ANSWER_MAX):
            facts = self._holdings.where(obj)
            if why is not None:
                facts |= {"passthrough": False, "passthrough_reason": why}
            told.append(facts)
            await trio.lowlevel.checkpoint()
        return told

    async def _files(self, paths: list[str], recursive: bool, limit: int) -> list[Inode]:
        """The files, each once, in the order of *paths*. ControlError when one names nothing."""
        found: dict[int, Inode] = {}
        for path in paths:
            matches = await self._matches(path, limit)
            wanted = [obj for obj in matches if recursive or _is_level(obj.key, path)]
            if not wanted:
                hint = "is a directory; --recursive means all files below it"
                raise ControlError(f"{path}: {hint if matches else 'no such file'}")
            found |= {obj.ino: obj for obj in wanted}
        if len(found) > limit:
            raise ControlError(f"more than {limit} files; name fewer at a time")
        return list(found.values())

    async def _matches(self, path: str, limit: int) -> list[Inode]:
        found = []
        async for obj in self._walker.files(os.fsencode(path)):
            found.append(obj)
            if len(found) > limit:
                raise ControlError(f"{path}: more than {limit} files; name fewer at a time")
        return found


def _is_level(key: bytes, path: str) -> bool:
    """Whether *key* is as deep as *path* says, so not in a directory that it matched."""
    parts = [part for part in os.fsencode(path).split(b"/") if part not in (b"", b".")]
    return b"**" in parts or key.count(b"/") == len(parts) - 1
