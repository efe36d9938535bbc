"""What a person sees of the demo: progress on stderr while it runs, then a table on stdout."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from tiercache_cli.demo.figures import Epoch, Outcome

_COLUMNS = (
    "epoch",
    "samples/s",
    "MB/s",
    "from\norigin",
    "from tier\nby daemon",
    "by kernel\nalone",
    "passthrough\nopens",
)


class Stages:
    """Says on stderr what is going on: live on a terminal, a line per finished stage elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)

    @contextlib.contextmanager
    def stage(self, text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show `text` until the block ends; with `total` bytes, a bar that the block advances."""
        start = time.monotonic()
        with self._live(total) as progress:
            task = progress.add_task(escape(text), total=total)
            yield lambda count: progress.advance(task, count)
        seconds = time.monotonic() - start
        self._console.print(f"[green]done[/]  {escape(text)}  [dim]{seconds:.1f} s[/]")

    def say(self, text: str) -> None:
        """One line of plain text."""
        self._console.print(escape(text), soft_wrap=True)

    def _live(self, total: int | None) -> Progress:
        columns = [SpinnerColumn(), TextColumn("{task.description}")]
        measured = [BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()]
        return Progress(
            *columns,
            *(measured if total is not None else [TimeElapsedColumn()]),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )


def show(outcome: Outcome) -> None:
    """Print the result."""
    console = Console(highlight=False)
    passthrough = "passthrough" if outcome.passthrough else _no_passthrough(outcome)
    counts = f"{outcome.files:,} files, {outcome.samples:,} samples"
    facts = {
        "Dataset": f"{_size(outcome.bytes)} in {counts}",
        "Mount": f"{outcome.source}, {outcome.driver} driver, {passthrough}",
        "Reader": f"{outcome.reader}, without any tiercache import",
    }
    for name, text in facts.items():
        console.print(f"[bold]{name:<9}[/]{escape(text)}", soft_wrap=True)
    console.print(_table(outcome.epochs))
    if outcome.ok:
        console.print(
            f"[bold green]Checked[/]  every sample of {len(outcome.epochs)} epochs and all"
            f" {_size(outcome.checked_bytes)} of the files: each byte is as stored",
            soft_wrap=True,
        )
    for problem in outcome.problems:
        console.print(f"[bold red]WRONG[/]    {escape(problem)}", soft_wrap=True)


def _no_passthrough(outcome: Outcome) -> str:
    reason = f": {outcome.passthrough_reason}" if outcome.passthrough_reason else ""
    return f"no passthrough{reason}"


def _table(epochs: list[Epoch]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for epoch in epochs:
        counters = epoch.counters
        table.add_row(
            str(epoch.number),
            f"{epoch.samples / epoch.seconds:,.0f}",
            f"{epoch.bytes / epoch.seconds / 1e6:,.0f}",
            _size(counters.origin_bytes),
            _size(counters.tier_bytes),
            _size(epoch.kernel_bytes),
            f"{counters.passthrough_opens:,} of {counters.opens:,}",
        )
    return table


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
