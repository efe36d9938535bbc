"""The `tiercache` command: a group whose commands are imported when they are run.

Exit status: 0 done, 1 failed, 2 usage or configuration, 130 interrupted. What a person did or can
mend is one line on stderr; a traceback is always a bug of ours.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple, NoReturn

import click

from tiercache.errors import ConfigError, TierCacheError

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


class Lazy(NamedTuple):
    """A command: the module that holds it under its own name, and its line in the help."""

    module: str
    help: str


COMMANDS: Final = {
    "mount": Lazy("tiercache_cli.mount", "Mount a bucket or directory and return when it answers."),
    "umount": Lazy("tiercache_cli.umount", "Unmount and wait until the cache is safe on disk."),
    "status": Lazy("tiercache_cli.status", "Show what is mounted and how it is doing."),
    "warm": Lazy("tiercache_cli.warm", "Fill the local tiers with files, before or during a job."),
    "plan": Lazy("tiercache_cli.plan", "Tell a mount in which order files will be read."),
    "pin": Lazy("tiercache_cli.holdings", "Keep files local."),
    "unpin": Lazy("tiercache_cli.holdings", "Let pinned files go again."),
    "evict": Lazy("tiercache_cli.holdings", "Remove the local copies of files."),
    "where": Lazy("tiercache_cli.holdings", "Say in which tier files are, and why."),
    "reload": Lazy("tiercache_cli.reload", "Apply what changed in the config file of a mount."),
    "config": Lazy("tiercache_cli.config", "Write, check or explain a configuration file."),
    "trace": Lazy("tiercache_cli.trace", "Record the opens of a mount to a file."),
    "simulate": Lazy("tiercache_cli.simulate", "Replay a trace through policies and cache sizes."),
    "size": Lazy("tiercache_cli.size", "Say how large a cache must be for a hit ratio."),
    "demo": Lazy(
        "tiercache_cli.demo.command", "Mount a bucket from a local server and train on it."
    ),
}


class LazyGroup(click.Group):
    """Knows its commands by name, so that none costs start-up time before it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import command *cmd_name*."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name].module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tiercache", message="tiercache %(version)s")
def tiercache() -> None:
    """Mount object storage as a read-only POSIX tree with its hot part on local disks."""


def run(command: click.Command, arguments: Sequence[str], name: str) -> int:
    """Run *command* as *name* and return its exit status, errors told to a person."""
    try:
        status = command.main(list(arguments), prog_name=name, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ConfigError as error:
        _tell(*error.problems)
        return USAGE
    except TierCacheError as error:
        _tell(str(error))
        return FAILED
    except (click.Abort, KeyboardInterrupt):
        _tell("interrupted")
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def _tell(*lines: str) -> None:
    for line in lines:
        click.echo(f"tiercache: {line}", err=True)


def main() -> NoReturn:
    """Entry point of the `tiercache` script."""
    sys.exit(run(tiercache, sys.argv[1:], "tiercache"))
