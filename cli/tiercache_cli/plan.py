"""`tiercache plan`: tell a running mount in which order files will be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tiercache_cli.inside import ask_mount, the_mount


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.argument("mountpoint", required=False, type=click.Path(path_type=Path))
@click.option("--clear", is_flag=True, help="Follow no plan any more.")
@click.option("--status", is_flag=True, help="Show the plan and how far its readers are.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
def plan(
    file: Path | None, mountpoint: Path | None, clear: bool, status: bool, as_json: bool
) -> None:
    """Have the mount on MOUNTPOINT (default: the only one) fetch just in time what FILE lists.

    FILE holds a path per line, in the order of reading; after a tab each, an offset and a length.
    With --clear or --status the only argument is MOUNTPOINT.
    """
    if clear and status:
        raise click.UsageError("--clear or --status, not both")
    if clear or status:
        if mountpoint is not None:
            raise click.UsageError("with --clear or --status give MOUNTPOINT alone")
        mount = the_mount(file)
        report: Any = ask_mount(mount, "plan_clear" if clear else "plan_status")
    else:
        if file is None:
            raise click.UsageError("give FILE, --clear or --status")
        mount = the_mount(mountpoint)
        report = ask_mount(mount, "plan_follow", file=str(file.absolute()))
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        for line in _lines(report):
            click.echo(line)


def _lines(report: dict[str, Any]) -> list[str]:
    if report["file"] is None:
        return ["no plan"]
    done = ", all read" if report["done"] else ""
    lines = [f"{report['file']}: {report['position']} of {report['entries']} read{done}"]
    for name, text in (
        ("skipped", "passed over"),
        ("unplanned", "opens outside the plan"),
        ("unknown", "names that are no files"),
    ):
        if report[name]:
            lines.append(f"  {report[name]} {text}")
    lines += [f"    {path}" for path in report["unknown_paths"]]
    return lines
