"""`tiercache pin`, `unpin`, `evict` and `where`: orders about single files of a running mount.

PATHs are files inside one mount, or patterns in quotes: `*`, `?` and `[...]` match within one name,
`**` any number of directories. A directory needs --recursive.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tiercache_cli.inside import ask_mount, mount_of

Command = TypeVar("Command", bound=Callable[..., Any])

_SETTINGS = {"help_option_names": ["-h", "--help"]}


def _common(function: Command) -> Command:
    """PATH..., --recursive and --json."""
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="JSON instead of text."),
        click.option("-r", "--recursive", is_flag=True, help="Directories, with all below them."),
        click.argument("paths", nargs=-1, required=True, metavar="PATH..."),
    ):
        function = decorate(function)
    return function


@click.command(context_settings=_SETTINGS)
@_common
@click.option("--tier", metavar="NAME", help="Keep it there; else in the hottest that holds it.")
def pin(paths: tuple[str, ...], recursive: bool, as_json: bool, tier: str | None) -> None:
    """Keep the files at PATH local until `tiercache unpin`.

    What is not local yet is kept once it is read (or filled by `tiercache warm`). All or nothing:
    files that do not fit are refused.
    """
    done = _ask("pin", paths, recursive=recursive, tier=tier)
    _tell(done, f"pinned {done['objects']} files to tier {done['tier']}", as_json=as_json)


@click.command(context_settings=_SETTINGS)
@_common
def unpin(paths: tuple[str, ...], recursive: bool, as_json: bool) -> None:
    """Let the files at PATH be treated like all others again."""
    done = _ask("unpin", paths, recursive=recursive)
    _tell(done, f"unpinned {done['objects']} files", as_json=as_json)


@click.command(context_settings=_SETTINGS)
@_common
@click.option("--force", is_flag=True, help="Pinned files too; that ends their pins.")
def evict(paths: tuple[str, ...], recursive: bool, as_json: bool, force: bool) -> None:
    """Remove the local copies of the files at PATH; whoever has them open reads on."""
    done = _ask("evict", paths, recursive=recursive, force=force)
    _tell(done, f"evicted {done['objects']} files, {done['bytes']} bytes", as_json=as_json)


@click.command(context_settings=_SETTINGS)
@_common
def where(paths: tuple[str, ...], recursive: bool, as_json: bool) -> None:
    """Say where the files at PATH are: tier, how much of them, how hot, and why."""
    found = _ask("where", paths, recursive=recursive)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        from tiercache_cli.holdings_view import show

        show(found)


def _ask(operation: str, paths: tuple[str, ...], **arguments: object) -> Any:  # noqa: ANN401 - JSON
    mount, inner = mount_of(paths)
    return ask_mount(mount, operation, paths=inner, **arguments)


def _tell(done: object, text: str, *, as_json: bool) -> None:
    click.echo(json.dumps(done, indent=2) if as_json else text)
