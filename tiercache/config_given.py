"""What a configuration was made from, so that a running mount can make it again from the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiercache.config import Config
from tiercache.config_file import Document, load_config


@dataclass(frozen=True, slots=True)
class Given:
    """A config file, if there is one, and what the command line overrides in it.

    `named` says how the person gave each override. Nothing in here is a secret.
    """

    file: Path | None = None
    overrides: Document = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> Config:
        """The configuration as it is given now. Raises `ConfigError` with every problem."""
        return load_config(self.file, self.overrides, self.named)

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` gives an equal object, with an absolute path."""
        file = None if self.file is None else os.path.abspath(self.file)  # noqa: PTH100 - no I/O
        return {"file": file, "overrides": dict(self.overrides), "named": dict(self.named)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Given:
        """What `to_json` wrote."""
        file = document["file"]
        return cls(Path(file) if file else None, document["overrides"], document["named"])
