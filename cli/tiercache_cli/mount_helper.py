"""`mount.fuse.tiercache`: what mount(8) and /etc/fstab call for `-t fuse.tiercache`.

    s3://bucket/prefix  /mnt/data  fuse.tiercache  ro,_netdev,allow_other,cache_size=500GB  0 0

mount(8) looks for helpers in /sbin, so link it there once:
`ln -s "$(command -v mount.fuse.tiercache)" /sbin/`. Options are those of `tiercache mount -o`.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from tiercache_cli.main import run
from tiercache_cli.mount import mount_given, read_given


@click.command()
@click.argument("source")
@click.argument("mountpoint")
@click.option("-o", "options", multiple=True, help="Options between commas, as in fstab.")
@click.option("-n", "no_mtab", is_flag=True, help="Accepted; there is no mtab to write.")
@click.option("-v", "verbose", is_flag=True, help="Accepted.")
@click.option("-s", "sloppy", is_flag=True, help="Accepted; unknown options are still refused.")
@click.option("-f", "fake", is_flag=True, help="Check the options and mount nothing.")
@click.option("-t", "kind", help="Accepted: the type mount(8) was asked for.")
def helper(
    source: str, mountpoint: str, options: tuple[str, ...], fake: bool, **_accepted: object
) -> None:
    """Mount SOURCE on MOUNTPOINT for mount(8)."""
    given = read_given((source, mountpoint), None, options, {})
    if fake:
        given.load()
    else:
        mount_given(given)


def main() -> NoReturn:
    """Entry point of the `mount.fuse.tiercache` script."""
    sys.exit(run(helper, sys.argv[1:], "mount.fuse.tiercache"))
