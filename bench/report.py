"""The report of a run while it grows, so that one that is cut off keeps what it measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.rows import Row, line, report
from bench.workspace import say


class Report:
    """Rows as they come: each is said on stderr and kept in *file*, which is whole at any time.

    Raises OSError when *file* cannot be written, at first before anything is measured.
    """

    def __init__(
        self, name: str, machine: Mapping[str, Any], scale: str, file: Path | None = None
    ) -> None:
        self.rows: list[Row] = []
        self._name, self._machine, self._scale = name, machine, scale
        self._file = None if file is None else file.resolve()
        self._complete = False
        self._save()

    def add(self, row: Row) -> None:
        """A row is finished."""
        self.rows.append(row)
        say(line(row))
        self._save()

    def finish(self) -> None:
        """All rows are there."""
        self._complete = True
        self._save()

    def text(self) -> str:
        """The report as JSON; `complete` is false before `finish`."""
        found = report(self._name, self._machine, self.rows, self._scale, complete=self._complete)
        return json.dumps(found, indent=2)

    def _save(self) -> None:
        if self._file is not None:
            staged = self._file.with_name(f"{self._file.name}.part")
            staged.write_text(self.text() + "\n", encoding="utf-8")
            staged.replace(self._file)
