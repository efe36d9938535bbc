"""`tiercache simulate`: what policies and capacities would have made of a recorded trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from tiercache import policies_registry
from tiercache.errors import ConfigError
from tiercache.simulation.jobs import Job
from tiercache_cli.replays import (
    BELADY,
    TRACE_PATH,
    Capacity,
    Policies,
    Problems,
    ReplayOptions,
    Replays,
    figures,
    replay_options,
)

_CAPACITIES: Final = ("5%", "10%", "25%", "50%", "75%")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("path", metavar="TRACE", type=TRACE_PATH)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="A policy to try, also as package.module:Class; may be repeated. All without it.",
)
@click.option("--all", "everything", is_flag=True, help="Try all installed policies too.")
@click.option(
    "--capacity",
    "capacities",
    multiple=True,
    metavar="SIZE|SHARE",
    help="10GiB, or 25% of what the trace touches; may be repeated.",
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw curves.")
@replay_options
def simulate(
    path: Path,
    policies: tuple[str, ...],
    everything: bool,
    capacities: tuple[str, ...],
    plot: Path | None,
    options: ReplayOptions,
) -> None:
    """Replay TRACE through policies with capacities, by the code that a mount runs.

    Each policy begins with an empty tier. Two bounds are added: `belady`, which knows the future
    (and is the optimum where objects are of one size), and `unbounded`, where nothing has to leave.
    """
    problems = Problems()
    names = [*policies, *(policies_registry.names() if everything or not policies else ())]
    chosen = Policies(
        [*(name for name in names if name != BELADY), BELADY], options.settings, problems
    )
    wanted = []
    for text in capacities or _CAPACITIES:
        with problems.of("--capacity"):
            wanted.append(Capacity(text))
    if plot is not None:
        with problems.of("--plot"):
            _check_plot(plot)
    problems.raise_any()
    replays = Replays(path, options)
    sizes = sorted({capacity.of(replays.summary.footprint) for capacity in wanted})
    outcomes = replays.run(_jobs(chosen, sizes, replays))
    if plot is not None:
        from tiercache_cli.curves import draw

        draw(outcomes, replays.summary.footprint, plot)
    if options.as_json:
        rows = [figures(outcome) for outcome in outcomes]
        click.echo(json.dumps({"trace": replays.about(), "rows": rows}, indent=2))
    else:
        from tiercache_cli.replay_view import show_matrix

        show_matrix(replays, outcomes)


def _jobs(policies: Policies, sizes: Sequence[int], replays: Replays) -> list[Job]:
    jobs = [policies.job(name, size) for name in policies.names for size in sizes]
    return [*jobs, replays.unbounded]


def _check_plot(path: Path) -> None:
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path}: charts are PNG; name it FILE.png")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path}: no such directory")
    try:
        import PIL  # noqa: F401 - before anything is calculated
    except ImportError:
        raise ConfigError(
            ["--plot: drawing needs Pillow; install it: pip install pillow"]
        ) from None
