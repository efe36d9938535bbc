"""The fills of one mount: at most a few at a time, the last ones remembered, asked for by clients.

A client that watches its fill keeps it alive by asking; one that is gone for long is taken to have
been killed, and its fill ends.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from tiercache.config import OriginConfig
from tiercache.errors import ControlError
from tiercache.prefetch.warm import Fill, Sources, Wanted

#: Fills at a time; each has as many requests queued as there are connections.
_RUNNING_MAX: Final = 4

#: Fills remembered after they are over.
_KEPT: Final = 16

#: Longest answer to a client that waits, and how long one may be silent.
_WAIT_MAX_S: Final = 5.0
_SILENCE_S: Final = 60.0


@dataclass(slots=True, eq=False)
class _Job:
    name: str
    fill: Fill
    watched: bool
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    over: trio.Event = field(default_factory=trio.Event)


class Warmer:
    """Starts fills and answers for them. They live in *nursery*."""

    def __init__(self, sources: Sources, prices: OriginConfig, nursery: trio.Nursery) -> None:
        self._sources = sources
        self._prices = prices
        self._nursery = nursery
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._count = 0

    def start(
        self,
        paths: list[str],
        manifest: str | None = None,
        rate: int = 0,
        tier: str | None = None,
        check: bool = False,
        watched: bool = False,
    ) -> dict[str, Any]:
        """Control operation: begin a fill of *paths* below the mount. Raises ControlError."""
        wanted = _wanted(paths, manifest, rate, tier, check)
        tiers = [tier.name for tier in self._sources.store.tiers]
        if tier is not None and tier not in tiers:
            raise ControlError(f"there is no tier {tier!r}; tiers: {', '.join(tiers)}")
        if sum(not job.over.is_set() for job in self._jobs.values()) >= _RUNNING_MAX:
            raise ControlError(f"{_RUNNING_MAX} fills are running; wait, or cancel one")
        self._count += 1
        name = f"{os.getpid()}-{self._count}"
        job = _Job(name, Fill(self._sources, wanted), watched is True)
        self._jobs[name] = job
        self._forget()
        self._heard(job)
        self._nursery.start_soon(self._run, job)
        return self._report(job)

    async def _run(self, job: _Job) -> None:
        with job.scope:
            await job.fill.run()
        job.over.set()

    def _heard(self, job: _Job) -> None:
        if job.watched:
            job.scope.deadline = trio.current_time() + _SILENCE_S

    def _forget(self) -> None:
        """Drop the oldest that are over, beyond those that are kept."""
        over = [name for name, job in self._jobs.items() if job.over.is_set()]
        for name in over[: max(0, len(self._jobs) - _KEPT)]:
            del self._jobs[name]

    async def wait(self, job: str, wait_s: float = 0.0) -> dict[str, Any]:
        """Control operation: how *job* is doing, once it is over or after *wait_s* seconds."""
        found = self._jobs.get(job) if isinstance(job, str) else None
        if found is None:
            return {"job": job, "state": "unknown"}
        self._heard(found)
        limit = float(wait_s) if isinstance(wait_s, int | float) else 0.0
        with trio.move_on_after(max(0.0, min(limit, _WAIT_MAX_S))):
            await found.over.wait()
        return self._report(found)

    def status(self) -> list[dict[str, Any]]:
        """Control operation: all that are remembered, oldest first."""
        return [self._report(job) for job in self._jobs.values()]

    def cancel(self, job: str | None = None) -> int:
        """Control operation: end *job*, or all; how many that were."""
        ended = 0
        for name, running in self._jobs.items():
            if job in (None, name) and not running.over.is_set():
                running.scope.cancel()
                ended += 1
        return ended

    def operations(self) -> dict[str, Any]:
        """For the control socket."""
        return {
            "warm_start": self.start,
            "warm_wait": self.wait,
            "warm_status": self.status,
            "warm_cancel": self.cancel,
        }

    def _report(self, job: _Job) -> dict[str, Any]:
        wanted, survey = job.fill.wanted, job.fill.survey
        return {
            "job": job.name,
            "paths": [os.fsdecode(path) for path in wanted.paths[:_KEPT]],
            "manifest": None if wanted.manifest is None else str(wanted.manifest),
            "check": wanted.check,
            "cost": survey.cost(self._prices.price_per_get, self._prices.price_per_gb),
            **job.fill.as_dict(),
        }


def _wanted(paths: object, manifest: object, rate: object, tier: object, check: object) -> Wanted:
    """What a client asks for, checked: the socket's other end is not ours."""
    strings = isinstance(paths, list) and all(isinstance(path, str) for path in paths)
    named = isinstance(manifest, str | None) and isinstance(tier, str | None)
    if not strings or not named or type(rate) is not int or rate < 0 or type(check) is not bool:
        raise ControlError("warm_start: an argument is of the wrong kind")
    assert isinstance(paths, list)
    assert isinstance(manifest, str | None)
    if bool(paths) == (manifest is not None):
        raise ControlError("warm_start: give either paths or a manifest")
    try:
        encoded = tuple(os.fsencode(path) for path in paths)
    except UnicodeEncodeError:
        raise ControlError("warm_start: a path is not text of this system") from None
    return Wanted(
        paths=encoded,
        manifest=None if manifest is None else Path(manifest),
        rate=rate,
        tier=tier if isinstance(tier, str) else None,
        check=check,
    )
