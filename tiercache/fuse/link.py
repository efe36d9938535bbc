"""The channel between holder and worker: whole messages, with open files attached.

A `SOCK_SEQPACKET` pair keeps message borders, carries file descriptors (`SCM_RIGHTS`) and shows the
death of the other side as the end of the stream. Messages are small JSON objects with a `type`.
Both sides use the same class: the holder blocks in its own poll loop, the worker waits with
`trio.lowlevel.wait_readable(link)` and then calls `recv`, which returns at once. Standard library
only.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

#: Largest message. A configuration is a few KiB; the kernel refuses a longer one at the sender.
MESSAGE_MAX = 128 << 10

#: Largest number of descriptors in one message.
FDS_MAX = 8

Message = dict[str, Any]


class Link:
    """One end of the channel. Owns its socket."""

    __slots__ = ("_socket",)

    def __init__(self, fd: int) -> None:
        """Take over *fd*, an end of a pair made by `pair` (here or in the parent)."""
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)

    @classmethod
    def pair(cls) -> tuple[Link, Link]:
        """Two connected ends."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours.detach()), cls(theirs.detach())

    def fileno(self) -> int:
        """The descriptor to wait on; -1 when closed."""
        return self._socket.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> bool:
        """Send *message* and copies of *fds*; never blocks.

        Returns False when the other side is gone or has stopped reading.
        """
        data = json.dumps(message).encode()
        try:
            socket.send_fds(self._socket, [data], list(fds), socket.MSG_DONTWAIT)
        except (BlockingIOError, BrokenPipeError, ConnectionError):
            return False
        return True

    def recv(self) -> tuple[Message, list[int]] | None:
        """The next message and its descriptors, which the caller now owns; None at the end.

        Blocks until there is one.
        """
        try:
            data, fds, _, _ = socket.recv_fds(
                self._socket, MESSAGE_MAX, FDS_MAX, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            return None
        if not data:
            return None
        message: Message = json.loads(data)
        return message, list(fds)

    def close(self) -> None:
        """Close this end; the other side sees the end of the stream. Safe to repeat."""
        self._socket.close()
