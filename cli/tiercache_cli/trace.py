"""`tiercache trace`: record what a mount is asked for, and look into such files."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from tiercache.config_units import SettingError, parse_size
from tiercache.control.client import ask
from tiercache.errors import ConfigError, MountError
from tiercache.simulation.summary import Summary, summarize
from tiercache.simulation.traces import FORMATS, Trace, convert, format_for
from tiercache_cli.mounts import find_mount, why_not

#: What is collected must get to the disk before `stop` returns.
_STOP_TIMEOUT_S: Final = 30.0

_PATH: Final = click.Path(path_type=Path)
_HELP: Final = {"help_option_names": ["-h", "--help"]}
_FORMAT: Final = click.option(
    "--format", "form", type=click.Choice(FORMATS), help="Do not guess it."
)
_JSON: Final = click.option("--json", "as_json", is_flag=True, help="One object.")


@click.group(context_settings=_HELP)
def trace() -> None:
    """Record the opens of a mount, for `tiercache simulate` and `tiercache size`."""


@trace.command()
@click.argument("mountpoint", type=_PATH)
@click.argument("file", type=_PATH)
@click.option("--limit", default="1GiB", show_default=True, help="Largest size of FILE.")
def start(mountpoint: Path, file: Path, limit: str) -> None:
    """Record every open below MOUNTPOINT to the new FILE, until stopped or unmounted.

    FILE is written by the mount's own process, readable by its owner only, and about 5 to 20 bytes
    for each open. It names objects by numbers, not by their keys.
    """
    try:
        size = parse_size(limit)
    except SettingError as error:
        raise ConfigError([f"--limit: {error}"]) from error
    report = _ask(mountpoint, "trace_start", {"file": str(file.absolute()), "limit": size})
    click.echo(f"recording to {report['file']}; end it with: tiercache trace stop {mountpoint}")


@trace.command()
@click.argument("mountpoint", type=_PATH)
def stop(mountpoint: Path) -> None:
    """End the recording of MOUNTPOINT; returns when all of it is in the file."""
    report = _ask(mountpoint, "trace_stop", {})
    kept = report["uses"] - report["dropped"]
    lost = f", {report['dropped']:,} lost" if report["dropped"] else ""
    click.echo(f"{report['file']}: {kept:,} uses{lost}, {report['bytes']:,} bytes")


@trace.command()
@click.argument("file", type=_PATH)
@_FORMAT
@_JSON
def info(file: Path, form: str | None, as_json: bool) -> None:
    """Say what is in FILE, of any known format."""
    found = Trace(file, form)
    summary = summarize(found)
    if as_json:
        facts = {"path": str(file), "format": found.format, "bytes": found.bytes}
        facts |= {**asdict(summary), "repeats": summary.repeats, "damage": found.damage}
        click.echo(json.dumps(facts, indent=2))
        return
    for name, text in _facts(found, summary):
        click.echo(f"{name:<11} {text}")


def _facts(trace: Trace, summary: Summary) -> list[tuple[str, str]]:
    share = f" ({summary.repeats / summary.uses:.1%})" if summary.uses else ""
    facts = [
        ("format", f"{trace.format}, {trace.bytes:,} bytes"),
        ("time", f"{_when(summary.begin)} and {summary.end - summary.begin:,.3f} s from there"),
        ("uses", f"{summary.uses:,} of {summary.nbytes:,} bytes"),
        ("objects", f"{summary.objects:,} of {summary.footprint:,} bytes"),
        ("used once", f"{summary.once:,}"),
        ("repeats", f"{summary.repeats:,}{share}: what a cache can hit at most"),
        ("groups", f"{summary.groups:,}"),
    ]
    return facts + ([("damage", trace.damage)] if trace.damage else [])


#: Traces that begin within a year of the epoch count from their own start.
_YEAR_S: Final = 365 * 86400.0


def _when(seconds: float) -> str:
    if not _YEAR_S < seconds < 8000 * _YEAR_S:
        return f"{seconds:,.3f} s"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


@trace.command("convert")
@click.argument("source", metavar="IN", type=_PATH)
@click.argument("target", metavar="OUT", type=_PATH)
@_FORMAT
@click.option("--to", type=click.Choice(FORMATS), help="Format of OUT; else by its name.")
def convert_(source: Path, target: Path, form: str | None, to: str | None) -> None:
    """Write trace IN in another format to the new file OUT.

    Names ending in .csv mean CSV, names with oracleGeneral in them that, any other our own format.
    """
    found = Trace(source, form)
    uses = convert(found, target, to or format_for(target))
    if found.damage:
        click.echo(f"tiercache: {source}: {found.damage}", err=True)
    click.echo(f"{target}: {uses:,} uses")


def _ask(mountpoint: Path, operation: str, arguments: dict[str, object]) -> dict[str, Any]:
    known = find_mount(mountpoint)
    if known is None:
        raise MountError(why_not(mountpoint))
    path = known.runtime / "control.sock"
    report: dict[str, Any] = ask(path, operation, _STOP_TIMEOUT_S, arguments)
    return report
