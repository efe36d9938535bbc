"""`tiercache where` for people: one table, readable without colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tiercache_cli.status_view import size


def show(found: Sequence[dict[str, Any]], console: Console | None = None) -> None:
    """Print what is known of each file."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in ("path", "tier"):
        table.add_column(name, overflow="fold")
    for name in ("local", "heat"):
        table.add_column(name, justify="right")
    for name in ("passthrough", "why"):
        table.add_column(name)
    for file in found:
        table.add_row(
            escape(file["path"].encode(errors="replace").decode()),
            escape(file["tier"] or "-"),
            f"{size(file['resident_bytes'])} of {size(file['size'])}",
            f"{file['heat']:.2f}",
            "ready" if file["passthrough"] else escape(f"no: {file['passthrough_reason']}"),
            escape(file["reason"]),
        )
    (console or Console(highlight=False)).print(table)
