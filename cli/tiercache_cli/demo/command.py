"""`tiercache demo`: options, exit status, and the check that its extra packages are there."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from tiercache.config_units import SettingError, parse_size

if TYPE_CHECKING:
    from tiercache.testing.mounting import CommandMount
    from tiercache_cli.demo.show import Stages

#: What extra `demo` installs: import name, and the name a person knows.
NEEDS: Final = {"numpy": "numpy", "PIL": "pillow", "pyarrow": "pyarrow"}
_SIZE_MIN, _SIZE_DEFAULT = 1_000_000, "200MB"


def size_in_bytes(_context: click.Context, _parameter: click.Parameter, text: str) -> int:
    """Click callback: the bytes that `text` stands for."""
    try:
        size = parse_size(text)
    except SettingError as error:
        raise click.BadParameter(str(error)) from None
    if size < _SIZE_MIN:
        raise click.BadParameter("the dataset takes 1MB at least")
    return size


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--size",
    default=_SIZE_DEFAULT,
    show_default=True,
    callback=size_in_bytes,
    metavar="SIZE",
    help="About how large the dataset is.",
)
@click.option("--driver", default="auto", metavar="NAME", help="As in `tiercache mount`.")
@click.option("--keep", is_flag=True, help="Leave everything up afterwards, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def demo(size: int, driver: str, keep: bool, as_json: bool) -> None:
    """Mount a bucket of a server on this machine, train on it for two epochs, and clean up.

    Exit status 1 when any byte read is not the byte that was stored.
    """
    if missing := missing_packages():
        names = ", ".join(missing)
        raise click.ClickException(f"the demo needs {names}: pip install 'tiercache[demo]'")
    # Late, because these modules import what may be missing, and take long.
    from tiercache_cli.demo.run import Options, run
    from tiercache_cli.demo.show import Stages, show

    stages = Stages()
    outcome = run(Options(size, driver), stages, _holder(stages) if keep else lambda _mount: None)
    if as_json:
        click.echo(json.dumps(outcome.as_json(), indent=2))
    else:
        show(outcome)
    if not outcome.ok:
        raise click.exceptions.Exit(1)


def missing_packages(needs: Mapping[str, str] = NEEDS) -> list[str]:
    """Names of the packages that cannot be imported here."""
    return [name for module, name in needs.items() if importlib.util.find_spec(module) is None]


def _holder(stages: Stages) -> Callable[[CommandMount], None]:
    def hold(mount: CommandMount) -> None:
        with suppress(KeyboardInterrupt):
            stages.say(f"{mount.mountpoint} stays mounted until Ctrl-C")
            signal.pause()

    return hold
