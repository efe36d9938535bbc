"""What a bug costs: one EIO, one count, and one traceback per place it happens at.

A mount serves millions of requests; a bug in one kind of them must neither end it nor fill the disk
with the same traceback.
"""

from __future__ import annotations

import logging
import traceback

log = logging.getLogger(__name__)

#: Places remembered; bugs at further places are counted, but no longer shown.
SITES_MAX = 256


class Bugs:
    """Counts unexpected exceptions; `seen` is how many."""

    __slots__ = ("_sites", "seen")

    def __init__(self) -> None:
        self._sites: set[tuple[str, int]] = set()
        self.seen = 0

    def report(self, request: str, error: BaseException) -> None:
        """Count *error*, raised while *request* was handled; log it when its place is new."""
        self.seen += 1
        frames = traceback.extract_tb(error.__traceback__)
        site = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
        if site in self._sites or len(self._sites) >= SITES_MAX:
            return
        self._sites.add(site)
        log.error("bug in %s, answered with EIO", request, exc_info=error)


def innermost(error: BaseException) -> BaseException:
    """The error itself when nurseries have wrapped a single one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
