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

    def wait(
        self, selector: selectors.BaseSelector, deadline: float
    ) -> list[selectors.SelectorKey]:
        """What became ready until *deadline* (monotonic); empty when nothing did."""
        while True:
            now = time.monotonic()
            if now >= self._speak_at:
                self._speak()
            until = min(deadline, self._speak_at)
            if ready := selector.select(max(0.0, until - now)):
                return [key for key, _ in ready]
            if time.monotonic() >= deadline:
                return []

    def _speak(self) -> None:
        # rich costs more start-up time than most commands take.
        from rich.console import Console

        self._speak_at = float("inf")
        self._spinner.enter_context(Console(stderr=True).status(f"tiercache: {self._doing}"))
