"""What `tiercache size` found, for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tiercache_cli.size import Report
from tiercache_cli.status_view import size


def show(report: Report) -> None:
    """Print *report*."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in ("cache size", "of what is used", "hit ratio"):
        table.add_column(name, justify="right")
    for row in report.rows:
        share = f"{row.capacity / report.footprint:.1%}"
        table.add_row(_amount(report, row.capacity), share, f"{row.hit_ratio:.4f}")
    console.print(table)
    for target, enough in report.targets:
        console.print(_target(report, target, None if enough is None else enough.capacity))
    for note in report.notes:
        console.print(escape(note), style="dim", soft_wrap=True)


def _target(report: Report, target: float, capacity: int | None) -> str:
    wanted = f"[bold]{100 * target:g}%[/]"
    if capacity is None:
        return f"{wanted}: not reached with any size"
    share = capacity / report.footprint
    return f"{wanted} needs {_amount(report, capacity)}, {share:.1%} of what is used"


def _amount(report: Report, capacity: int) -> str:
    trace = report.about.get("trace")
    objects = isinstance(trace, dict) and trace["equal_sizes"]
    return f"{capacity:,} objects" if objects else size(capacity)
