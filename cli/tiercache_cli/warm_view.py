"""What `tiercache warm` says: the plan first, progress while it runs, the outcome last."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import click

from tiercache_cli.patience import SILENT_S

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Report = dict[str, Any]

#: Without a terminal, progress is a line as often.
_LINE_S: Final = 10.0


def size(count: int) -> str:
    """*count* bytes for a person."""
    from tiercache_cli.status_view import size as text

    return text(count)


def summary(report: Report) -> str:
    """One line on how a fill is doing."""
    survey = report["survey"]
    what = report["manifest"] or " ".join(report["paths"])
    text = f"{report['state']} {what}: {size(report['fetched_bytes'])} of"
    text += f" {size(survey['missing_bytes'])} fetched"
    return text + "".join(f"; {line}" for line in _troubles(report))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _money(cost: float) -> str:
    """Two decimals, or the first digit that is not 0."""
    return f"{cost:.2f}" if cost >= 0.01 else f"{cost:.1g}"


def intent(report: Report) -> list[str]:
    """What a fill will do."""
    survey = report["survey"]
    resident = survey["bytes"] - survey["missing_bytes"]
    files = _counted(survey["objects"], "file")
    lines = [f"{files}, {size(survey['bytes'])}; {size(max(0, resident))} local"]
    if survey["missing_bytes"]:
        cost = f", cost {_money(report['cost'])}" if report["cost"] else ""
        lines.append(
            f"{'missing' if report['check'] else 'to fetch'}:"
            f" {_counted(survey['missing_objects'], 'file')},"
            f" {size(survey['missing_bytes'])} in {_counted(survey['requests'], 'request')}{cost}"
        )
        where = [f"{size(nbytes)} to {name}" for name, nbytes in report["where"].items()]
        if report["excess_bytes"]:
            where.append(f"{size(report['excess_bytes'])} only where colder data can leave")
        lines.append(f"{'does not fit' if report['excess_bytes'] else 'fits'}: {', '.join(where)}")
    return lines


def outcome(report: Report) -> list[str]:
    """What became of it."""
    if report["complete"]:
        return ["all of it is local"]
    left = report["left"]
    lines = []
    if left is not None and left["missing_bytes"]:
        lines.append(f"{size(left['missing_bytes'])} are not local")
    return lines + list(_troubles(report))


def _troubles(report: Report) -> list[str]:
    survey = report["survey"]
    found = []
    if report["bypassed_bytes"]:
        found.append(f"{size(report['bypassed_bytes'])} no tier takes")
    if report["failed_bytes"]:
        found.append(f"{size(report['failed_bytes'])} could not be fetched")
    if survey["unknown"]:
        found.append(f"{survey['unknown']} names that are no files")
    if survey["archived"]:
        found.append(f"{survey['archived']} archived files, which must be restored first")
    if report["error"]:
        found.append(str(report["error"]))
    return found


class View:
    """Shows reports of one fill on stderr; *quiet*: not at all."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._told = False
        self._started = time.monotonic()
        self._next_line = self._started + _LINE_S
        self._stack = ExitStack()
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def say(self, line: str) -> None:
        """One line, now."""
        if not self._quiet:
            click.echo(f"tiercache: {line}", err=True)

    def show(self, report: Report) -> None:
        """Show what changed."""
        if self._quiet or report["state"] == "surveying":
            return
        if not self._told:
            self._told = True
            for line in intent(report):
                self.say(line)
        if report["state"] == "fetching":
            self._progress(report)
        else:
            self._stack.close()
            for line in outcome(report):
                self.say(line)

    def _progress(self, report: Report) -> None:
        now = time.monotonic()
        if self._bar is not None:
            progress, task = self._bar
            progress.update(task, completed=_done(report), total=report["survey"]["missing_bytes"])
        elif sys.stderr.isatty():
            if now - self._started >= SILENT_S:
                self._open_bar(report)
        elif now >= self._next_line:
            self._next_line = now + _LINE_S
            self.say(summary(report))

    def _open_bar(self, report: Report) -> None:
        # rich costs more start-up time than most commands take.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
        progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
        self._stack.enter_context(progress)
        total = report["survey"]["missing_bytes"]
        self._bar = progress, progress.add_task("", total=total, completed=_done(report))


def _done(report: Report) -> int:
    return int(report["fetched_bytes"] + report["bypassed_bytes"] + report["failed_bytes"])
