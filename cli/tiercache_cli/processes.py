"""Waiting for the end of processes, children or not, without polling."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from tiercache_cli.patience import Patience


def await_pids(pids: Iterable[int], timeout_s: float, doing: str) -> list[int]:
    """Wait until every process has ended; returns those that have not within *timeout_s*.

    *doing* is shown on a terminal when it takes long.
    """
    deadline = time.monotonic() + timeout_s
    with ExitStack() as opened:
        selector = opened.enter_context(selectors.DefaultSelector())
        patience = opened.enter_context(Patience(doing))
        for pid in pids:
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                opened.callback(os.close, descriptor)
                selector.register(descriptor, selectors.EVENT_READ, pid)
        while selector.get_map() and (ended := patience.wait(selector, deadline)):
            for key in ended:
                selector.unregister(key.fd)
        return [key.data for key in selector.get_map().values()]
