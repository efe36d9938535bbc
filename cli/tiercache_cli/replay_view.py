"""What replays gave, for people: tables that are readable without colour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tiercache.simulation.jobs import Outcome
from tiercache_cli.replays import BELADY, UNBOUNDED, Replays
from tiercache_cli.status_view import size


def show_matrix(replays: Replays, outcomes: Sequence[Outcome]) -> None:
    """One row per policy, best first, one column per capacity; the bounds come last."""
    console = Console(highlight=False)
    console.print(heading(replays), soft_wrap=True)
    console.print(_matrix(replays, outcomes, lambda outcome: outcome.counts.hit_ratio, "hits"))
    if any(outcome.counts.hit_ratio != outcome.counts.byte_hit_ratio for outcome in outcomes):
        ratio: Callable[[Outcome], float] = lambda outcome: outcome.counts.byte_hit_ratio  # noqa: E731
        console.print(_matrix(replays, outcomes, ratio, "bytes hit"))


def heading(replays: Replays) -> str:
    """One line about the trace."""
    summary = replays.summary
    skipped = f", {replays.source.skip:,} of them not counted" if replays.source.skip else ""
    return escape(
        f"{replays.trace.path}: {summary.uses:,} uses{skipped}, {summary.objects:,} objects"
        + ("" if replays.source.equal_sizes else f" of {size(summary.footprint)} in all")
    )


def capacity_text(replays: Replays, capacity: int) -> str:
    """*capacity* as a size, and as a share of what the trace touches."""
    amount = f"{capacity:,}" if replays.source.equal_sizes else size(capacity)
    return f"{amount}\n{capacity / replays.summary.footprint:.1%}"


def _matrix(
    replays: Replays, outcomes: Sequence[Outcome], ratio: Callable[[Outcome], float], title: str
) -> Table:
    sizes = sorted({outcome.capacity for outcome in outcomes if outcome.policy != UNBOUNDED})
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), title_justify="left")
    table.add_column(f"\n{title}")
    for capacity in sizes:
        table.add_column(capacity_text(replays, capacity), justify="right", no_wrap=True)
    found = {(outcome.policy, outcome.capacity): ratio(outcome) for outcome in outcomes}
    for policy in _ranked(outcomes, ratio):
        table.add_row(escape(policy), *(f"{found[policy, capacity]:.4f}" for capacity in sizes))
    unbounded = next(ratio(outcome) for outcome in outcomes if outcome.policy == UNBOUNDED)
    table.add_row(UNBOUNDED, *(f"{unbounded:.4f}" for _ in sizes), style="dim")
    return table


def _ranked(outcomes: Iterable[Outcome], ratio: Callable[[Outcome], float]) -> list[str]:
    totals: dict[str, float] = {}
    for outcome in outcomes:
        totals[outcome.policy] = totals.get(outcome.policy, 0.0) + ratio(outcome)
    totals.pop(UNBOUNDED)
    return sorted(totals, key=lambda policy: (policy == BELADY, -totals[policy]))
