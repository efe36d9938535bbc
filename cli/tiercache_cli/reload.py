"""`tiercache reload`: have a running mount read its config file again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from tiercache.config_file import load_config
from tiercache.errors import ConfigError
from tiercache_cli.inside import ask_mount, the_mount
from tiercache_cli.mount import warn
from tiercache_cli.mounts import KnownMount


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("mountpoint", required=False, type=click.Path(path_type=Path))
@click.option(
    "--config", "file", type=click.Path(path_type=Path), help="Read this file from now on."
)
@click.option("--json", "as_json", is_flag=True, help="One object: what was done with each change.")
@click.pass_context
def reload(ctx: click.Context, mountpoint: Path | None, file: Path | None, as_json: bool) -> None:
    """Apply what changed in the config file of the mount on MOUNTPOINT.

    Options that it was mounted with still win over the file. A file with anything wrong in it
    changes nothing (exit status 2). What needs a remount is named. Without MOUNTPOINT: that of the
    --config file, or the only mount.
    """
    mount = _mount(mountpoint, file)
    answer = _reload(mount, file)
    if as_json:
        click.echo(json.dumps({"mountpoint": str(mount.mountpoint), **answer}, indent=2))
        ctx.exit(2 if answer["problems"] else 0)
    if answer["problems"]:
        raise ConfigError(answer["problems"])
    for text in answer["warnings"]:
        warn(text)
    _show(answer)


def _mount(mountpoint: Path | None, file: Path | None) -> KnownMount:
    if mountpoint is None and file is not None:
        mountpoint = load_config(file).mount.mountpoint
    return the_mount(mountpoint)


def _reload(mount: KnownMount, file: Path | None) -> dict[str, Any]:
    arguments = {} if file is None else {"file": os.path.abspath(file)}  # noqa: PTH100 - no I/O
    answer = ask_mount(mount, "reload", **arguments)
    assert isinstance(answer, dict)
    return answer


def _show(answer: dict[str, Any]) -> None:
    for what, title in (("applied", "applied"), ("remount", "needs a remount")):
        for change in answer[what]:
            click.echo(f"{title}: {change['name']} = {change['after']} (was {change['before']})")
    if not answer["applied"] and not answer["remount"]:
        click.echo("nothing changed")
