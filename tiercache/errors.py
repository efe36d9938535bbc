"""A small closed family of errors, sorted by who must act.

Each carries the errno a reader sees; only the drivers turn it into a reply. Anything outside this
family that reaches a driver is a bug: it is logged with its traceback and answered with EIO.
"""

from __future__ import annotations

import errno
from typing import ClassVar


class TierCacheError(Exception):
    """Base of all errors this package raises on purpose."""

    errno: ClassVar[int] = errno.EIO


class ObjectNotFoundError(TierCacheError):
    """The origin said 404, or a fresh listing does not hold the name."""

    errno = errno.ENOENT


class ObjectChangedError(TierCacheError):
    """The object is no longer the version that this inode names."""

    errno = errno.ESTALE


class AccessDeniedError(TierCacheError):
    """The origin refused (403). Never cached as absence."""

    errno = errno.EACCES


class ObjectArchivedError(AccessDeniedError):
    """The object must be restored from an archive class before it can be read."""


class OriginUnavailableError(TierCacheError):
    """The origin cannot answer now: refused, reset, stalled, throttled, 5xx. Worth a retry.

    `retry_after_s` is what the origin asked for, if it did.
    """

    errno = errno.EIO

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class OriginThrottledError(OriginUnavailableError):
    """The origin is asked too often (503 SlowDown, 429): worth a retry, with fewer at a time."""


class OriginReplyError(OriginUnavailableError):
    """A reply that cannot be believed (wrong range, length or framing): retried, never used."""


class OriginConfigError(TierCacheError):
    """The origin cannot be used as configured: missing bucket, wrong region, no credentials.

    The message is one line for a person and says what to change.
    """


class NotDirectoryError(TierCacheError):
    """A file was used as a directory."""

    errno = errno.ENOTDIR


class IsDirectoryError(TierCacheError):
    """A directory was used as a file."""

    errno = errno.EISDIR


class NameTooLongError(TierCacheError):
    """A path component is longer than NAME_MAX bytes."""

    errno = errno.ENAMETOOLONG


class ReadOnlyError(TierCacheError):
    """The tree is read-only."""

    errno = errno.EROFS


class TooManyOpenError(TierCacheError):
    """More files are open at a time than can be kept track of."""

    errno = errno.ENFILE


class OutOfMemoryError(TierCacheError):
    """The system has no memory for the bytes of a transfer."""

    errno = errno.ENOMEM


class BypassedError(TierCacheError):
    """No tier takes this object now, and nobody reads it: it is not fetched."""


class HoldingError(TierCacheError):
    """What was asked of single files cannot be done; one line with the numbers."""


class PlanError(TierCacheError):
    """A list of files cannot be used; one line that names the file and the line in it."""


class CatalogError(TierCacheError):
    """The index of names cannot be opened, read or written: disk full, disk failure, damage.

    Names that are not known yet cannot be given a number that lasts, so looking them up is EIO
    until the index can be written again; known names are not affected.
    """


class ConfigError(TierCacheError):
    """The configuration cannot be used. `problems` holds every problem, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class MountError(TierCacheError):
    """Mounting or unmounting failed; the message is one line that says what to do."""


class ControlError(TierCacheError):
    """A running mount could not be asked: nobody listens, or it refused. One line for a person."""


class ControlTimeoutError(ControlError):
    """A running mount took the question and gave no answer in time."""


class TraceError(TierCacheError):
    """A trace cannot be read or written; the message is one line that names the file."""
