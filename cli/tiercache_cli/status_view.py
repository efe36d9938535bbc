"""`tiercache status` for people: a few lines and one table per mount, readable without colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tiercache_cli.status import Report

#: States that need no attention.
_WELL = frozenset({"serving"})


def show(reports: Sequence[Report], console: Console | None = None) -> None:
    """Print *reports*."""
    console = console or Console(highlight=False)
    for index, report in enumerate(reports):
        if index:
            console.print()
        _show_mount(report, console)


def _show_mount(report: Report, console: Console) -> None:
    colour = "green" if report["state"] in _WELL else "bold red"
    console.print(
        f"[bold]{escape(report['mountpoint'])}[/]  {escape(report['source'])}"
        f"  [{colour}]{report['state']}[/]",
        soft_wrap=True,
    )
    for name, text in _facts(report):
        console.print(f"  {name:<12} {escape(text)}", soft_wrap=True)
    if report["tiers"] is not None:
        console.print(_tiers(report))


def _facts(report: Report) -> Iterable[tuple[str, str]]:
    """Lines of name and text; what is not known is left out."""
    if report["driver"]:
        yield "driver", _driver(report)
    if report["origin"]:
        facts = (f"{key} {value}" for key, value in report["origin"].items() if key != "name")
        yield "origin", ", ".join(facts)
    if report["in_flight"] is not None:
        yield "in flight", f"{report['in_flight']} requests, {report['queued'] or 0} waiting"
    if report["uptime_s"] is not None:
        yield "uptime", duration(report["uptime_s"])
    yield "processes", _processes(report)
    yield from _bypassed(report["tiers"] or ())
    yield from _filling(report["worker_facts"].get("background_fill"))
    yield from _recording(report["worker_facts"].get("trace"))
    for warning in report["warnings"]:
        yield "warning", warning
    if report["state"] not in _WELL and report["log"]:
        yield "log", report["log"]
    if report["state"] == "dead":
        yield "to clear", f"tiercache umount {report['mountpoint']}"


def _driver(report: Report) -> str:
    if report["passthrough"] is None:
        return str(report["driver"])
    if report["passthrough"]:
        return f"{report['driver']}, passthrough"
    return f"{report['driver']}, no passthrough: {report['passthrough_reason']}"


def _filling(fill: dict[str, Any] | None) -> Iterable[tuple[str, str]]:
    if fill is None or not fill["enabled"]:
        return
    state = "nothing to fill"
    if fill["dataset"] is not None:
        state = f"filling {fill['dataset']}"
    elif fill["last"] is not None:
        state = f"{fill['last']['dataset']}: {fill['last']['ended']}"
    yield "fill", f"{state}; {size(fill['fetched_bytes'])} fetched so far"


def _recording(trace: dict[str, Any] | None) -> Iterable[tuple[str, str]]:
    if trace is None:
        return
    state = "recording" if trace["recording"] else f"ended ({trace['ended']})"
    lost = f", {trace['dropped']:,} lost" if trace["dropped"] else ""
    facts = f"{trace['uses']:,} opens{lost}, {size(trace['bytes'])} in {trace['file']}"
    yield "trace", f"{state}: {facts}"


def _processes(report: Report) -> str:
    worker = report["worker"]
    return (
        f"holder {report['holder']['pid'] or '-'}, worker {worker['pid'] or '-'}"
        f" (restarted {worker['restarts'] or 0} times)"
    )


#: Columns that are shown when a tier has something in them.
_COUNTS: Final = {"promotions": "moved up", "demotions": "moved down", "evictions": "evicted"}


def _tiers(report: Report) -> Table:
    tiers = report["tiers"]
    counts = [name for name in _COUNTS if any(tier.get(name) for tier in tiers)]
    pins = any(tier.get("promised") or tier.get("pinned") for tier in tiers)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("  tier")
    for name in ("used", "capacity", "fill", "served"):
        table.add_column(name, justify="right")
    for name in ("pinned",) * pins + tuple(_COUNTS[name] for name in counts):
        table.add_column(name, justify="right")
    table.add_column("state")
    for tier in tiers:
        table.add_row(
            f"  {escape(tier['name'])}",
            size(tier["used"]),
            size(tier["capacity"]),
            _share(tier["used"], tier["capacity"]),
            size(tier["hit_bytes"]),
            *(size(tier["pinned"]) for _ in range(pins)),
            *(str(tier[name]) for name in counts),
            escape(_tier_state(tier)),
        )
    table.add_row("  origin", "", "", "", size(report["hit_bytes"]["origin"]))
    return table


def _bypassed(tiers: Iterable[dict[str, Any]]) -> Iterable[tuple[str, str]]:
    """How often each tier took no newcomer, and why, the commonest reason first."""
    for tier in tiers:
        if found := tier.get("bypass_reasons"):
            reasons = sorted(found.items(), key=lambda item: -item[1])
            text = ", ".join(f"{count} x {why}" for why, count in reasons)
            yield "bypassed", f"{tier['name']} took no newcomer: {text}"


def _tier_state(tier: dict[str, Any]) -> str:
    state = str(tier.get("state") or "")
    return f"{state}: {tier['reason']}" if tier.get("reason") else state


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def size(count: int) -> str:
    """*count* bytes in three or four digits: "0 B", "1.5 GiB"."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} PiB"


def duration(seconds: float) -> str:
    """*seconds* in its two largest units: "45s", "3m 20s", "2d 4h"."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    parts = [(day, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    first = next((index for index, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2])
