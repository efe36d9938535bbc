"""Waiting at a terminal: silent at first, then a spinner that says what for."""

from __future__ import annotations

import selectors
import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

#: Shorter waits need no words.
SILENT_S: Final = 2.0


class Patience:
    """Waits on selectors; shows *doing* on a terminal once the waits took long in all."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._speak_at = time.monotonic() + (SILENT_S if sys.stderr.isatty() else float("inf"))
        self._spinner = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spinner.close()

    def wait(self, selector: selectors.BaseSelector, deadline: float) -> bool:
        """Wait for *selector* until *deadline* (monotonic); False when there was no event."""
        while True:
            now = time.monotonic()
            if now >= self._speak_at:
                self._speak()
            until = min(deadline, self._speak_at)
            if selector.select(max(0.0, until - now)):
                return True
            if time.monotonic() >= deadline:
                return False

    def _speak(self) -> None:
        # rich costs more start-up time than most commands take.
        from rich.console import Console

        self._speak_at = float("inf")
        self._spinner.enter_context(Console(stderr=True).status(f"tiercache: {self._doing}"))
