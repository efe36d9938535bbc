"""The INIT handshake, as a pure function: what the kernel offers and what we want of it.

The holder reads the INIT request, sends the reply and passes the `Session` on to every worker it
starts: the kernel asks once per mount, workers come and go. Standard library only.

What is wanted, and why:

* ASYNC_READ, ASYNC_DIO: several reads of one file at a time; PARALLEL_DIROPS: of one directory.
* MAX_PAGES 128: one request carries up to 512 KiB. Its reply fits into a pipe (`splicing`), and
  while one half of a block is read the other is already being answered.
* DO_READDIRPLUS, READDIRPLUS_AUTO: a listing fills the attribute cache when somebody looks at
  attributes, and stays lean for those who want names only.
* HAS_RESEND: a new worker gets the requests again that the old one took to its grave.
* PASSTHROUGH with a stack depth of 1: reads of complete files bypass us. Needs CAP_SYS_ADMIN, so
  only when asked for.

Not wanted: NO_OPEN_SUPPORT and NO_OPENDIR_SUPPORT (opens are counted, listings are snapshots) and
anything about writing, so `max_write` stays at its minimum and the read buffer stays small.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tiercache.errors import MountError
from tiercache.fuse.protocol import (
    HEADER_SIZE,
    IN_HEADER,
    INIT_IN,
    INIT_IN_SHORT,
    INIT_OUT,
    KERNEL_MAJOR,
    KERNEL_MINOR,
    InitFlag,
    Opcode,
    pack_reply,
)

#: Oldest protocol whose layouts are those of `protocol.py` (Linux 4.20).
MINOR_MIN = 28

MAX_PAGES = 128
MAX_WRITE = 4096

_WANTED = (
    InitFlag.ASYNC_READ
    | InitFlag.ASYNC_DIO
    | InitFlag.BIG_WRITES
    | InitFlag.PARALLEL_DIROPS
    | InitFlag.DO_READDIRPLUS
    | InitFlag.READDIRPLUS_AUTO
    | InitFlag.MAX_PAGES
    | InitFlag.INIT_EXT
    | InitFlag.HAS_RESEND
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What the mount asks for. `refusal` says why passthrough is not asked for."""

    passthrough: bool
    max_background: int
    readahead: int
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What was agreed on. `reason` says why there is no passthrough, "" when there is."""

    minor: int
    flags: int
    max_pages: int
    max_write: int
    max_background: int
    readahead: int
    passthrough: bool
    resend: bool
    reason: str

    def as_json(self) -> dict[str, Any]:
        """A form that survives JSON; `from_json` turns it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Session:
        """The session whose `as_json` gave *fields*."""
        return cls(**fields)


def negotiate(request: bytes, wants: Wants) -> tuple[bytes, Session]:
    """Answer the INIT *request* (with its header): the reply to write, and what was agreed on.

    Raises MountError when the kernel speaks a protocol we do not.
    """
    unique, minor, readahead, offered = _parse(request)
    flags = offered & _asked(wants)
    session = Session(
        minor=min(minor, KERNEL_MINOR),
        flags=int(flags),
        max_pages=MAX_PAGES if flags & InitFlag.MAX_PAGES else 32,
        max_write=MAX_WRITE,
        max_background=wants.max_background,
        readahead=max(readahead, wants.readahead),
        passthrough=InitFlag.PASSTHROUGH in flags,
        resend=InitFlag.HAS_RESEND in flags,
        reason=_reason(wants, flags),
    )
    return pack_reply(unique, _pack(session)), session


def _parse(request: bytes) -> tuple[int, int, int, InitFlag]:
    """Unique, minor version, readahead and capabilities of an INIT request."""
    _, opcode, unique, *_ = IN_HEADER.unpack_from(request)
    if opcode != Opcode.INIT:
        raise MountError(f"the kernel began with request {opcode} instead of INIT")
    major, minor, readahead, flags = INIT_IN_SHORT.unpack_from(request, HEADER_SIZE)
    if major != KERNEL_MAJOR or minor < MINOR_MIN:
        raise MountError(
            f"the kernel speaks FUSE {major}.{minor}, 7.{MINOR_MIN} or later is needed"
        )
    if flags & InitFlag.INIT_EXT and len(request) >= HEADER_SIZE + INIT_IN.size:
        flags |= INIT_IN.unpack_from(request, HEADER_SIZE)[4] << 32
    return unique, minor, readahead, InitFlag(flags)


def _asked(wants: Wants) -> InitFlag:
    return _WANTED | InitFlag.PASSTHROUGH if wants.passthrough else _WANTED


def _reason(wants: Wants, flags: InitFlag) -> str:
    if InitFlag.PASSTHROUGH in flags:
        return ""
    if not wants.passthrough:
        return wants.refusal or "not asked for"
    return "the kernel does not offer it (Linux 6.9 or later does)"


def _pack(session: Session) -> bytes:
    return INIT_OUT.pack(
        KERNEL_MAJOR,
        session.minor,
        session.readahead,
        session.flags & 0xFFFFFFFF,
        session.max_background,
        max(session.max_background * 3 // 4, 1),  # the kernel's own ratio of the two
        session.max_write,
        1,  # granularity of times: nanoseconds
        session.max_pages,
        0,
        session.flags >> 32,
        int(session.passthrough),  # backing files on a plain filesystem, never on a stacked one
    )
