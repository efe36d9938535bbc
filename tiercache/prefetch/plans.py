"""The plan of a mount: set, replaced, cleared and asked for while it runs, kept over a crash."""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from tiercache.config import PrefetchConfig
from tiercache.errors import ControlError, PlanError
from tiercache.policy import EvictionPolicy
from tiercache.prefetch import planfile
from tiercache.prefetch.foresight import Foresight
from tiercache.prefetch.plan import Plan
from tiercache.prefetch.planned import Planned
from tiercache.prefetch.planner import Paths, Planner
from tiercache.prefetch.prefetcher import Prefetcher
from tiercache.tier.store import TierStore
from tiercache.transfer.fetcher import Fetcher
from tiercache.types import KeyValues

log = logging.getLogger(__name__)

#: Where the file of the plan is remembered for the next worker of the same mount.
_KEY: Final = b"plan"

#: And how far its readers are: changed at, bytes, position. Only of that file as it was read.
_POSITION: Final = b"plan position"
_MARK: Final = struct.Struct("<qqQ")

#: The position is written down at most this often.
_MARK_INTERVAL_S: Final = 1.0


class _Version(NamedTuple):
    """What a plan file was when it was read."""

    mtime_ns: int
    size: int


class Plans:
    """At most one plan at a time; `run` follows it. *fresh*: no worker served this mount before."""

    def __init__(  # noqa: PLR0913 - the composition root names every part once
        self,
        prefetcher: Prefetcher,
        parts: tuple[Paths, Fetcher, TierStore],
        foresight: Foresight,
        config: PrefetchConfig,
        mountpoint: Path,
        kv: KeyValues,
        *,
        fresh: bool,
    ) -> None:
        self._prefetcher = prefetcher
        self._parts = parts
        self._foresight = foresight
        self._config = config
        self._mountpoint = mountpoint
        self._kv = kv
        self._fresh = fresh
        self._file: Path | None = None
        self._version = _Version(0, 0)
        self._kept = 0
        self._planner: Planner | None = None
        self._changed = trio.Event()
        self._scope = trio.CancelScope()
        self._calls = 0

    async def run(self) -> None:
        """Follow plans, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._begin)
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                if self._planner is not None:
                    with trio.CancelScope() as self._scope:
                        await self._follow(self._planner)

    async def _follow(self, planner: Planner) -> None:
        *_, store = self._parts
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_marked, planner)
            # First of all: who is not known to be needed would leave for what is fetched ahead.
            await store.each_resident(self._introduce)
            await planner.run()

    async def _keep_marked(self, planner: Planner) -> None:
        while not planner.plan.done:
            await planner.progress()
            self._mark(planner.plan)
            await trio.sleep(_MARK_INTERVAL_S)
        self._mark(planner.plan)

    def _mark(self, plan: Plan) -> None:
        """Write down for the next worker how far the readers are."""
        if plan.position != self._kept:
            self._kept = plan.position
            self._kv.put_many([(_POSITION, _MARK.pack(*self._version, self._kept))])

    @staticmethod
    def _introduce(policy: EvictionPolicy, ino: int) -> None:
        if isinstance(policy, Planned):
            policy.consider(ino)

    async def _begin(self) -> None:
        """Take up the plan of the worker before, or the configured one."""
        kept = None if self._fresh else self._kv.get(_KEY)
        file = self._config.plan_file if kept is None else Path(os.fsdecode(kept))
        if self._fresh:
            self._kv.put_many([(_KEY, None), (_POSITION, None)])
        if file is None or file == Path():  # cleared before the worker was restarted
            return
        try:
            await self._set(file, self._kv.get(_POSITION))
        except PlanError as error:
            log.warning("no plan: %s", error)

    async def follow(self, file: str) -> dict[str, Any]:
        """Control operation: read *file* and follow it from now on. Raises PlanError."""
        if not isinstance(file, str) or not Path(file).is_absolute():
            raise ControlError("plan_follow: the file must be an absolute path")
        await self._set(Path(file), None)
        return self.status()

    async def _set(self, file: Path, mark: bytes | None) -> None:
        """Follow *file*, from where *mark* says if it is about the same content."""
        self._calls += 1
        call = self._calls
        plan, version = await trio.to_thread.run_sync(self._read, file, mark)
        if call == self._calls:  # nobody set or cleared it meanwhile
            self._version = version
            self._replace(file, Planner(plan, self._parts, self._foresight))

    def _read(self, file: Path, mark: bytes | None) -> tuple[Plan, _Version]:
        version = _version(file)
        items = planfile.items(file, self._mountpoint, self._config.plan_entries)
        plan = Plan(items, window=self._config.plan_window, start=_marked(mark, version))
        if not len(plan):
            raise PlanError(f"{file}: no entries")
        return plan, version

    def clear(self) -> dict[str, Any]:
        """Control operation: follow no plan any more."""
        self._calls += 1
        self._replace(None, None)
        return self.status()

    def _replace(self, file: Path | None, planner: Planner | None) -> None:
        self._file, self._planner = file, planner
        self._prefetcher.planner = planner
        self._foresight.follow(None if planner is None else planner.plan)
        self._kv.put_many([(_KEY, os.fsencode(file or "")), (_POSITION, None)])
        self._kept = 0
        if planner is not None:
            self._mark(planner.plan)
        self._scope.cancel()
        self._changed.set()

    def status(self) -> dict[str, Any]:
        """Control operation: the plan and how far its readers are."""
        if self._planner is None:
            return {"file": None}
        plan = self._planner.plan
        return {
            "file": str(self._file),
            "entries": len(plan),
            "position": plan.position,
            "kept_position": self._kept,
            "done": plan.done,
            "ahead_bytes": plan.ahead_bytes,
            "window": self._config.plan_window,
            "skipped": plan.skipped,
            "unplanned": plan.unplanned,
            "unknown": plan.unknown,
            "unknown_paths": [os.fsdecode(path) for path in plan.unknown_paths],
        }

    def operations(self) -> dict[str, Any]:
        """For the control socket."""
        return {"plan_follow": self.follow, "plan_clear": self.clear, "plan_status": self.status}


def _version(file: Path) -> _Version:
    """What *file* is now; in a thread. Whoever reads it says what is wrong with it."""
    with contextlib.suppress(OSError):
        stat = file.stat()
        return _Version(stat.st_mtime_ns, stat.st_size)
    return _Version(0, 0)


def _marked(mark: bytes | None, version: _Version) -> int:
    """The position that *mark* says for a plan of *version*, 0 if it is about another."""
    if mark is None or len(mark) != _MARK.size:
        return 0
    *marked, position = _MARK.unpack(mark)
    return int(position) if version == _Version(*marked) else 0
