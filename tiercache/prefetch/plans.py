"""The plan of a mount: set, replaced, cleared and asked for while it runs, kept over a crash."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Final

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


class Plans:
    """At most one plan at a time; `run` follows it. *fresh*: no worker served this mount before."""

    def __init__(
        self,
        parts: tuple[Prefetcher, Paths, Fetcher, TierStore],
        foresight: Foresight,
        config: PrefetchConfig,
        mountpoint: Path,
        kv: KeyValues,
        *,
        fresh: bool,
    ) -> None:
        self._prefetcher, self._paths, self._fetcher, self._store = parts
        self._foresight = foresight
        self._config = config
        self._mountpoint = mountpoint
        self._kv = kv
        self._fresh = fresh
        self._file: Path | None = None
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
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._store.each_resident, self._introduce)
            nursery.start_soon(planner.run)

    @staticmethod
    def _introduce(policy: EvictionPolicy, ino: int) -> None:
        if isinstance(policy, Planned):
            policy.consider(ino)

    async def _begin(self) -> None:
        """Take up the plan of the worker before, or the configured one."""
        kept = None if self._fresh else self._kv.get(_KEY)
        file = self._config.plan_file if kept is None else Path(os.fsdecode(kept))
        if self._fresh:
            self._kv.put_many([(_KEY, None)])
        if file is None or file == Path():  # cleared before the worker was restarted
            return
        try:
            await self.follow(str(file))
        except PlanError as error:
            log.warning("no plan: %s", error)

    async def follow(self, file: str) -> dict[str, Any]:
        """Control operation: read *file* and follow it from now on. Raises PlanError."""
        if not isinstance(file, str) or not Path(file).is_absolute():
            raise ControlError("plan_follow: the file must be an absolute path")
        self._calls += 1
        call = self._calls
        path = Path(file)
        plan = await trio.to_thread.run_sync(self._read, path)
        if call == self._calls:  # nobody set or cleared it meanwhile
            self._replace(path, Planner(plan, self._paths, self._fetcher, self._foresight))
        return self.status()

    def _read(self, file: Path) -> Plan:
        items = planfile.items(file, self._mountpoint, self._config.plan_entries)
        plan = Plan(items, window=self._config.plan_window)
        if not len(plan):
            raise PlanError(f"{file}: no entries")
        return plan

    def clear(self) -> dict[str, Any]:
        """Control operation: follow no plan any more."""
        self._calls += 1
        self._replace(None, None)
        return self.status()

    def _replace(self, file: Path | None, planner: Planner | None) -> None:
        self._file, self._planner = file, planner
        self._prefetcher.planner = planner
        self._foresight.follow(None if planner is None else planner.plan)
        self._kv.put_many([(_KEY, os.fsencode(file or ""))])
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
