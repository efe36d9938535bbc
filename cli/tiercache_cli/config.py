"""`tiercache config`: begin, check and explain a configuration file."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path

import click

from tiercache.config_disks import check_disks
from tiercache.config_file import load_config
from tiercache.config_origins import effective
from tiercache.errors import ConfigError, TierCacheError
from tiercache_cli.mount import read_given, setting_options, warn

FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def config() -> None:
    """Write, check or explain a configuration file."""


@config.command()
@click.argument("file", type=FILE, default=Path("tiercache.toml"))
def init(file: Path) -> None:
    """Write a commented example to FILE (default: tiercache.toml), which must not exist."""
    example = importlib.resources.files("tiercache_cli").joinpath("example.toml")
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(example.read_text(encoding="utf-8"))
    except FileExistsError as error:
        raise TierCacheError(f"{file} exists and is left as it is; name another file") from error
    except OSError as error:
        raise TierCacheError(f"{file}: cannot be written: {error.strerror}") from error
    click.echo(f"wrote {file}; edit it, then: tiercache config check {file}")


@config.command()
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="One object: ok, problems, warnings.")
@click.pass_context
def check(ctx: click.Context, file: Path, as_json: bool) -> None:
    """Say everything that is wrong with FILE; exit status 2 if anything is."""
    problems, warnings = _judge(file)
    if as_json:
        answer = {"ok": not problems, "problems": problems, "warnings": warnings}
        click.echo(json.dumps(answer, indent=2))
        ctx.exit(2 if problems else 0)
    if problems:
        raise ConfigError(problems)
    for text in warnings:
        warn(text)
    click.echo(f"{file}: valid")


def _judge(file: Path) -> tuple[list[str], list[str]]:
    try:
        return [], check_disks(load_config(file))
    except ConfigError as error:
        return list(error.problems), []


@config.command()
@click.argument("file", type=FILE, required=False)
@setting_options
@click.option("-o", "options", multiple=True, metavar="KEY=VALUE,...", help="As for mount.")
@click.option("--json", "as_json", is_flag=True, help="A list of name, value, text, source.")
def show(
    file: Path | None, options: tuple[str, ...], as_json: bool, **flags: str | bool | None
) -> None:
    """Show every setting in effect with FILE and mount options, and where it comes from."""
    given = read_given((), file, options, flags)
    rows = [row._asdict() for row in effective(given.load(), file, given.named)]
    if as_json:
        click.echo(json.dumps(rows, indent=2, default=str))
        return
    for row in rows:
        click.echo(f"{row['name']} = {row['text']}  # {row['source']}")
