"""`tiercache status`: what is mounted and how it is doing, for people and for scripts.

Facts come from the mount table, the holder's state file and the worker itself, asked with a time
limit, so that a worker that hangs is reported and not waited for.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import click

from tiercache.control.client import ask
from tiercache.errors import ControlError, ControlTimeoutError, MountError
from tiercache.fuse.mountpoint import Health, health
from tiercache_cli.mounts import KnownMount, find_mount, known_mounts, why_not

Report = dict[str, Any]

#: Facts the worker reports under the same name.
_FACTS: Final = (
    "driver",
    "passthrough",
    "passthrough_reason",
    "origin",
    "tiers",
    "in_flight",
    "queued",
    "memory_bytes",
    "counters",
    "catalog",
)

#: What the report holds under a name of its own; the worker's other facts go to `worker_facts`.
_SHOWN: Final = frozenset({*_FACTS, "worker", "uptime_s"})


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("mountpoint", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One object, or a list without MOUNTPOINT.")
def status(mountpoint: Path | None, as_json: bool) -> None:
    """Show every mount, or the one on MOUNTPOINT."""
    mounts = known_mounts() if mountpoint is None else [_mount(mountpoint)]
    reports = [report(mount) for mount in mounts]
    if as_json:
        click.echo(json.dumps(reports if mountpoint is None else reports[0], indent=2))
    elif not reports:
        click.echo("no tiercache mounts")
    else:
        # Tables need rich, which scripts that ask for JSON need not wait for.
        from tiercache_cli.status_view import show

        show(reports)


def _mount(mountpoint: Path) -> KnownMount:
    known = find_mount(mountpoint)
    if known is None:
        raise MountError(why_not(mountpoint))
    return known


def report(mount: KnownMount) -> Report:
    """Everything known about *mount*; what only the worker knows is None when it is not asked."""
    state, answer = ask_worker(mount)
    started_at = mount.state.get("started_at")
    worker = answer.get("worker", {})
    return {
        "mountpoint": str(mount.mountpoint),
        "source": mount.source,
        "state": state,
        "mounted": mount.mounted,
        **{name: answer.get(name) for name in _FACTS},
        "driver": answer.get("driver", mount.state.get("driver")),
        "hit_bytes": hit_bytes(answer),
        "uptime_s": max(0.0, time.time() - started_at) if started_at else None,
        "holder": {"pid": mount.holder_pid},
        "worker": {
            "pid": worker.get("pid", mount.worker_pid),
            "restarts": mount.state.get("restarts", worker.get("restarts")),
            "uptime_s": answer.get("uptime_s"),
        },
        "warnings": mount.state.get("warnings", []),
        "log": mount.state.get("log"),
        "config_file": mount.state.get("config_file"),
        "worker_facts": {name: fact for name, fact in answer.items() if name not in _SHOWN},
    }


def ask_worker(mount: KnownMount) -> tuple[str, Report]:
    """The state of *mount* in one word or two, and what its worker answers."""
    if mount.holder_pid is None:
        return _without_holder(mount), {}
    try:
        answer = ask(mount.runtime / "control.sock", "status")
    except ControlTimeoutError:
        return "not answering", {}
    except ControlError:
        phase = mount.state.get("phase")
        return ("restarting" if phase in (None, "serving") else str(phase)), {}
    return ("serving" if mount.mounted else "detached"), answer


def _without_holder(mount: KnownMount) -> str:
    """Dead, or served by somebody whose state file we do not have."""
    if mount.state or health(mount.mountpoint) is Health.DEAD:
        return "dead"
    return "unknown"


def hit_bytes(answer: Report) -> dict[str, int] | None:
    """Bytes served by each tier, and by the origin; None when the worker was not asked."""
    if "tiers" not in answer:
        return None
    served = {tier["name"]: tier["hit_bytes"] for tier in answer["tiers"]}
    return {**served, "origin": answer.get("counters", {}).get("origin_bytes", 0)}
