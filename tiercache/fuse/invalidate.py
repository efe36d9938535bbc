"""Tells the kernel that a name no longer means what it did, without ever waiting for it.

Dropping a name takes the lock of its directory inside the kernel, and whoever holds that lock may
be waiting for us. So the loop only queues names; a thread that serves no requests and holds no lock
of ours writes them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading

from tiercache.fuse.protocol import pack_inval_entry

log = logging.getLogger(__name__)

#: Names that may wait; one costs about 100 bytes.
PENDING_MAX = 16384


class Invalidator:
    """A bounded queue of names and the thread that drops them."""

    def __init__(self, dev_fd: int, pending_max: int = PENDING_MAX) -> None:
        self._dev = dev_fd
        self._pending: queue.Queue[tuple[int, bytes] | None] = queue.Queue(pending_max)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="invalidate", daemon=True)
        self.overflows = 0

    def start(self) -> None:
        """Begin to drop names."""
        self._thread.start()

    def invalidate(self, parent: int, name: bytes) -> None:
        """Drop *name* in directory *parent* soon. Never blocks.

        When the queue is full the name is skipped and stays believed until its TTL ends.
        """
        try:
            self._pending.put_nowait((parent, name))
        except queue.Full:
            self.overflows += 1
            if self.overflows == 1:
                log.warning("too many names to invalidate: some live on until their TTL ends")

    def stop(self) -> None:
        """Let the thread end after the name it is at.

        It is not waited for: the kernel may hold it until somebody else serves the mount.
        """
        self._stopped = True
        with contextlib.suppress(queue.Full):  # then it is awake and looks at `_stopped` anyway
            self._pending.put_nowait(None)

    def _run(self) -> None:
        while not self._stopped:
            name = self._pending.get()
            if name is None:
                return
            try:
                os.write(self._dev, pack_inval_entry(*name))
            except OSError:
                # ENOENT: the kernel does not know the name, which is what we want. Everything
                # else means that the mount is going away.
                continue
