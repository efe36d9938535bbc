"""The channel between holder and worker: whole messages, with open files attached.

A `SOCK_SEQPACKET` pair keeps message borders, carries file descriptors (`SCM_RIGHTS`) and shows the
death of the other side as the end of the stream. Messages are small JSON objects with a `type`.
Both sides use the same class: the holder blocks in its own poll loop, the worker waits with
`trio.lowlevel.wait_readable(link)` and then calls `recv`, which returns at once. Standard library
only.
"""

from __future__ import annotations

import array
import json
import socket
from collections.abc import Sequence
from typing import Any

#: Largest message: more than the kernel's default send buffer of 208 KiB lets anybody send.
MESSAGE_MAX = 256 << 10

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
            self._socket.sendmsg([data], _rights(fds), socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionError):
            return False
        return True

    def recv(self) -> tuple[Message, list[int]] | None:
        """The next message and its descriptors, which the caller now owns; None at the end.

        Blocks until there is one.
        """
        try:
            data, fds = receive_fds(self._socket, MESSAGE_MAX, FDS_MAX)
        except ConnectionError:
            return None
        if not data:
            return None
        message: Message = json.loads(data)
        return message, fds

    def close(self) -> None:
        """Close this end; the other side sees the end of the stream. Safe to repeat."""
        self._socket.close()


def receive_fds(connection: socket.socket, size: int, fds_max: int) -> tuple[bytes, list[int]]:
    """One message and its descriptors, which no child inherits.

    `socket.send_fds` and `recv_fds` of Python 3.11 drop the flags they are given, which here would
    mean to block and to leak.
    """
    space = socket.CMSG_SPACE(fds_max * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, fds.tolist()


def _rights(fds: Sequence[int]) -> list[tuple[int, int, bytes]]:
    if not fds:
        return []
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())]
