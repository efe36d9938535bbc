"""A running mount takes on a changed configuration, or refuses it as a whole.

The file that the mount was started with is read again under the same options of the command line.
With anything wrong in it nothing changes. Else the live settings take effect at once; the others
stay as they are and are named, for a person to remount.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from tiercache.config import Config
from tiercache.config_changes import Change, changes, take_over
from tiercache.config_disks import check_disks
from tiercache.config_file import config_from_json, config_to_json
from tiercache.config_given import Given
from tiercache.errors import ConfigError
from tiercache.fuse.settings import read_settings

log = logging.getLogger(__name__)

NO_FILE = (
    "the mount was started without a config file, so there is nothing to read again;"
    " name one with --config"
)


class Reloading:
    """Keeps what is in effect; *apply* has the parts take it on, *announce* tells the holder."""

    def __init__(
        self,
        config: Config,
        given: Given,
        apply: Callable[[Config], None],
        announce: Callable[[Config, Given], None],
    ) -> None:
        self.config = config
        self._given = given
        self._apply = apply
        self._announce = announce
        self._lock = trio.Lock()
        self._asked = trio.Event()

    def ask(self) -> None:
        """Have `run` reload; asked again meanwhile, it does so once more."""
        self._asked.set()

    async def run(self) -> None:
        """Reload whenever asked to, and log what became of it, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            await self.reload()

    async def reload(self, file: str | None = None) -> dict[str, Any]:
        """Read the configuration anew, from *file* if given, which then is the mount's own.

        The answer is JSON: `problems` (if any, nothing changed), `warnings`, and by name, before
        and after what was `applied` and what needs a `remount`.
        """
        async with self._lock:
            given = self._given if file is None else replace(self._given, file=Path(file))
            try:
                config, warnings = await trio.to_thread.run_sync(
                    _read, given, abandon_on_cancel=True
                )
            except ConfigError as error:
                return _refused(given, error.problems)
            return self._take_on(config, given, warnings)

    def _take_on(self, config: Config, given: Given, warnings: Sequence[str]) -> dict[str, Any]:
        effective = take_over(self.config, config)
        applied = list(changes(self.config, effective))
        remount = list(changes(effective, config))
        if applied:
            self._apply(effective)
        self.config, self._given = effective, given
        self._announce(effective, given)
        log.info("%s was read again; applied: %s", given.file, _names(applied))
        if remount:
            log.warning("what needs a remount to take effect: %s", _names(remount))
        return {
            **_answer(given, [], warnings),
            "applied": [change._asdict() for change in applied],
            "remount": [change._asdict() for change in remount],
        }


def _read(given: Given) -> tuple[Config, list[str]]:
    """The configuration with its paths as the holder has them; on any thread."""
    if given.file is None:
        raise ConfigError([NO_FILE])
    if not given.file.is_absolute():
        raise ConfigError([f"{given.file} is not an absolute path"])
    config = given.load()
    warnings = check_disks(config)
    return config_from_json(read_settings(config_to_json(config)).config), warnings


def _refused(given: Given, problems: Sequence[str]) -> dict[str, Any]:
    log.warning("%s is refused and nothing was changed: %s", given.file, "; ".join(problems))
    return {**_answer(given, problems, []), "applied": [], "remount": []}


def _answer(given: Given, problems: Sequence[str], warnings: Sequence[str]) -> dict[str, Any]:
    file = None if given.file is None else str(given.file)
    return {"file": file, "problems": list(problems), "warnings": list(warnings)}


def _names(found: Sequence[Change]) -> str:
    return ", ".join(f"{c.name} = {c.after}" for c in found) or "nothing"
