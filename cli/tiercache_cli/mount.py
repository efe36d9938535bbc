"""`tiercache mount`: from flags, fstab options and a config file to a mount that answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tiercache.config import MountConfig
from tiercache.config_disks import check_disks
from tiercache.config_given import Given
from tiercache_cli import launch
from tiercache_cli.overrides import Overrides

F = TypeVar("F", bound=Callable[..., Any])

#: Options that are settings under the same name: name, metavar, help. No metavar: a switch.
SETTINGS: Final = (
    ("cache-dir", "DIR", "Where to keep what was read. Default: one directory per source."),
    ("cache-size", "SIZE", 'Most bytes to keep, like "500GB". Default: the free space there.'),
    ("endpoint-url", "URL", "Address of an S3 server that is not AWS."),
    ("region", "NAME", "Region of the bucket."),
    ("profile", "NAME", "Profile of the AWS configuration to take credentials from."),
    ("anonymous", None, "Read a public bucket without credentials."),
    ("path-style", None, "Name the bucket in the path. Default: where the server needs it."),
    ("allow-other", None, "Let other users in, as permissions say."),
    ("uid", "N", "Owner of every file. Default: you."),
    ("gid", "N", "Group of every file."),
    ("umask", "OCTAL", "Permission bits to take away. Default: 022."),
    ("driver", "NAME", "auto, kernel (fastest) or libfuse."),
    ("log-level", "NAME", "debug, info, warning or error."),
)


def setting_options(command: F) -> F:
    """Add the options of `SETTINGS` to *command*."""
    for name, metavar, text in reversed(SETTINGS):
        if metavar is None:
            option = click.option(f"--{name}", is_flag=True, default=None, help=text)
        else:
            option = click.option(f"--{name}", metavar=metavar, help=text)
        command = option(command)
    return command


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("places", nargs=-1, metavar="[SOURCE] [MOUNTPOINT]")
@click.option("--config", "file", type=click.Path(path_type=Path), help="TOML file with settings.")
@setting_options
@click.option("--foreground", is_flag=True, help="Stay in the foreground, as systemd wants.")
@click.option("-o", "options", multiple=True, metavar="KEY=VALUE,...", help="As in fstab.")
def mount(
    places: tuple[str, ...],
    file: Path | None,
    foreground: bool,
    options: tuple[str, ...],
    **flags: str | bool | None,
) -> None:
    """Mount SOURCE (s3://BUCKET[/PREFIX] or file:///DIR) on MOUNTPOINT.

    Either may come from the config file instead. Returns when the mount answers. Any setting of
    the config file can be given as -o KEY=VALUE; flags win over -o, and both over the file.
    """
    mount_given(read_given(places, file, options, flags), foreground=foreground)


def read_given(
    places: Sequence[str],
    file: Path | None,
    options: Sequence[str],
    flags: Mapping[str, str | bool | None],
) -> Given:
    """What the arguments say. Raises UsageError, or ConfigError for what names no setting."""
    overrides = Overrides()
    _add_places(places, overrides)
    for text in options:
        overrides.add_options(text)
    for name, value in flags.items():
        if value is not None:
            text = "true" if value is True else str(value)
            overrides.add(name, text, f"--{name.replace('_', '-')}")
    overrides.check()
    return Given(file, overrides.document, overrides.named)


def _add_places(places: Sequence[str], overrides: Overrides) -> None:
    match places:
        case []:
            return
        case [only] if "://" in only:
            overrides.add_source(only)
        case [only]:
            overrides.add_mountpoint(only)
        case [source, mountpoint]:
            overrides.add_source(source)
            overrides.add_mountpoint(mountpoint)
        case _:
            raise click.UsageError(f"expected SOURCE and MOUNTPOINT, got {len(places)} arguments")


def mount_given(given: Given, *, foreground: bool = False) -> None:
    """Mount what *given* says; does not return with *foreground*.

    Raises MountError, or ConfigError when it cannot be, also because of the disks.
    """
    config = given.load()
    for warning in check_disks(config):
        warn(warning)
    if text := ownership_warning(config.mount):
        warn(text)
    if foreground:
        launch.run_in_place(config, given)
    launch.start(config, given=given)


def ownership_warning(mount: MountConfig) -> str | None:
    """Why setting an owner alone does not let that owner in."""
    if mount.allow_other or (mount.uid is None and mount.gid is None):
        return None
    return (
        "uid and gid change what files look like, not who may enter: without --allow-other"
        " only the user who mounts can"
    )


def warn(text: str) -> None:
    """One line on stderr that does not stop anything."""
    click.echo(f"tiercache: warning: {text}", err=True)
