"""`tiercache warm`: fill the tiers of a running mount, before or during a job."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import click

from tiercache.config_units import SettingError, parse_rate
from tiercache.errors import ControlError, ControlTimeoutError, MountError
from tiercache_cli.inside import ask_mount, mount_of, the_mount
from tiercache_cli.mounts import KnownMount, find_mount
from tiercache_cli.warm_view import View, summary

Report = dict[str, Any]

#: The worker answers at the latest after this time, which is how often the progress is shown.
_TICK_S: Final = 0.5

#: How long a worker may take to come back, and how often it may go away during one fill.
_RESTART_S: Final = 60.0
_RESTARTS_MAX: Final = 5

_RUNNING: Final = frozenset({"surveying", "fetching"})


def _rate(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int:
    try:
        return 0 if text is None else parse_rate(text)
    except SettingError as error:
        raise click.BadParameter(str(error)) from error


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, metavar="PATH...")
@click.option("--manifest", type=click.Path(path_type=Path), help="Fill what this file lists.")
@click.option("--mount", "mountpoint", type=click.Path(path_type=Path), help="Of --manifest.")
@click.option("--rate", callback=_rate, metavar="RATE", help="At most so fast: 100MiB/s.")
@click.option("--tier", metavar="NAME", help="Fill this tier and no other.")
@click.option("--pin", is_flag=True, help="Keep it local until `tiercache unpin`.")
@click.option("--background", is_flag=True, help="Return at once; the mount goes on.")
@click.option("--check", is_flag=True, help="Only say what is missing; 1 if anything is.")
@click.option("--status", is_flag=True, help="Show the fills of the mount on PATH.")
@click.option("--cancel", is_flag=True, help="End all fills of the mount on PATH.")
@click.option("--json", "as_json", is_flag=True, help="One object when it is over.")
def warm(  # noqa: PLR0913 - options
    paths: tuple[str, ...],
    manifest: Path | None,
    mountpoint: Path | None,
    rate: int,
    tier: str | None,
    pin: bool,
    background: bool,
    check: bool,
    status: bool,
    cancel: bool,
    as_json: bool,
) -> int:
    """Fill the tiers with files below PATH, directories and patterns, inside a mount.

    Exit status 0 only if all of it is local then. What is local is not fetched again, so a fill
    that was interrupted goes on when it is run again.
    """
    if status or cancel:
        return _manage(_place(paths, mountpoint), cancel=cancel, as_json=as_json)
    if bool(paths) == (manifest is not None):
        raise click.UsageError("give PATHs inside a mount, or --manifest FILE")
    if pin and manifest is not None:
        raise click.UsageError("--pin takes PATHs")
    mount, inner = mount_of(paths) if paths else (the_mount(mountpoint), [])
    wanted: Report = {
        "paths": inner,
        "manifest": None if manifest is None else str(manifest.absolute()),
        "rate": rate,
        "tier": tier,
        "check": check,
        "watched": not background,
    }
    if pin and not check:
        ask_mount(mount, "pin", paths=inner, tier=tier)
    if background and not check:
        return _start(mount, wanted, as_json=as_json)
    report = _watch(mount, wanted, View(quiet=as_json))
    if as_json:
        click.echo(json.dumps(report, indent=2))
    return 0 if report["complete"] else 1


def _place(paths: tuple[str, ...], mountpoint: Path | None) -> KnownMount:
    return mount_of(paths)[0] if paths else the_mount(mountpoint)


def _manage(mount: KnownMount, *, cancel: bool, as_json: bool) -> int:
    if cancel:
        ended = ask_mount(mount, "warm_cancel")
        click.echo(json.dumps({"cancelled": ended}) if as_json else f"{ended} fills ended")
        return 0
    reports: Any = ask_mount(mount, "warm_status")
    if as_json:
        click.echo(json.dumps(reports, indent=2))
    else:
        for report in reports:
            click.echo(f"{report['job']}  {summary(report)}")
        if not reports:
            click.echo("no fills")
    return 0


def _start(mount: KnownMount, wanted: Report, *, as_json: bool) -> int:
    report: Any = ask_mount(mount, "warm_start", **wanted)
    text = f"filling in the background as {report['job']}; see `tiercache warm --status`"
    click.echo(json.dumps(report, indent=2) if as_json else text)
    return 0


def _watch(mount: KnownMount, wanted: Report, view: View) -> Report:
    """Run a fill to its end, over restarts of the worker; Ctrl-C ends it."""
    report: Any = None
    restarts = 0
    try:
        with view:
            while report is None or report["state"] in _RUNNING:
                report = _step(mount, wanted, report)
                if report["state"] == "unknown":
                    restarts += 1
                    if restarts > _RESTARTS_MAX:
                        raise MountError(f"{mount.mountpoint}: the worker restarts all the time")
                    view.say("the worker of the mount restarted; resuming")
                    report = ask_mount(mount, "warm_start", **wanted)
                view.show(report)
    except KeyboardInterrupt:
        if report is not None and "job" in report:
            ask_mount(mount, "warm_cancel", job=report["job"])
        raise
    return dict(report)


def _step(mount: KnownMount, wanted: Report, report: Report | None) -> Any:  # noqa: ANN401 - JSON
    """The next report; an unknown state once there is a new worker, which knows nothing of it."""
    if report is None:
        return ask_mount(mount, "warm_start", **wanted)
    try:
        return ask_mount(mount, "warm_wait", job=report["job"], wait_s=_TICK_S)
    except ControlTimeoutError:
        raise
    except ControlError:
        _await_worker(mount)
        return {"state": "unknown"}


def _await_worker(mount: KnownMount) -> None:
    """Until a new worker answers. Raises MountError when the mount is gone or none comes."""
    deadline = time.monotonic() + _RESTART_S
    while time.monotonic() < deadline:
        known = find_mount(mount.mountpoint)
        if known is None or known.holder_pid is None:
            raise MountError(f"{mount.mountpoint}: the mount went away; run it again to resume")
        try:
            ask_mount(known, "status")
        except ControlError:
            time.sleep(0.2)
        else:
            return
    raise MountError(f"{mount.mountpoint}: the worker does not come back; run it again to resume")
