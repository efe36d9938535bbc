"""Progress of long work on a terminal: nothing at first, then a bar with an ETA on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tiercache_cli.patience import SILENT_S

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class LateProgress:
    """A bar for *total* steps, if that is known; it shows itself once the work takes long."""

    def __init__(self, doing: str, total: int | None = None) -> None:
        self._doing = doing
        self._total = total
        self._speak_at = time.monotonic() + (SILENT_S if sys.stderr.isatty() else float("inf"))
        self._shown: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown is not None:
            self._shown[0].stop()

    def __call__(self, done: int) -> None:
        """*done* steps are behind us."""
        if self._shown is not None:
            progress, task = self._shown
            progress.update(task, completed=done)
        elif time.monotonic() >= self._speak_at:
            self._show(done)

    def _show(self, done: int) -> None:
        # rich costs more start-up time than most commands take.
        from rich.console import Console
        from rich.progress import Progress

        progress = Progress(console=Console(stderr=True), transient=True)
        self._shown = progress, progress.add_task(self._doing, total=self._total, completed=done)
        progress.start()
