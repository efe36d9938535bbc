"""What a store must do to be mounted.

Keys are relative to the mounted prefix: the origin adds and removes it. Concerns (retry, faults,
tracing) are wrappers around this protocol, never flags inside a store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from tiercache.config import TransferConfig
from tiercache.errors import OriginUnavailableError, TierCacheError
from tiercache.types import ListPage, ObjectInfo, Progress

#: Largest page a listing returns; S3 gives no more.
LIST_PAGE_MAX = 1000


class Origin(Protocol):
    """A read-only object store.

    All methods raise `OriginUnavailableError` for what may work later, `AccessDeniedError` for 403
    and `OriginConfigError` for what a person must fix. They are checkpoints.
    """

    @property
    def name(self) -> str:
        """What a person calls it, e.g. `s3://bucket/prefix`. Holds no secrets."""

    @property
    def identity(self) -> str:
        """Stable text that tells this origin from every other (endpoint, bucket, prefix)."""

    def describe(self) -> dict[str, str]:
        """Facts for `status`: client in use, endpoint, region, addressing."""

    async def check(self) -> None:
        """Raise `OriginConfigError` with one clear line unless objects can be listed or read."""

    async def list(
        self,
        prefix: bytes,
        token: str | None = None,
        *,
        delimiter: bool = True,
        limit: int = LIST_PAGE_MAX,
    ) -> ListPage:
        """One page of the keys that start with *prefix*.

        With *delimiter*, keys that hold a `/` after the prefix are folded into `prefixes` (each
        ending in `/`). No order is promised. At most *limit* entries.
        """

    async def head(self, key: bytes) -> ObjectInfo:
        """The current version of *key*; `ObjectNotFoundError` on a real 404 only."""

    async def get_range(
        self,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress | None = None,
    ) -> None:
        """Fill *into* with the bytes of version *etag* of *key* from offset *start*.

        Status, Content-Range, length and ETag of the reply are checked before a byte counts.
        *progress* is told the bytes filled so far, on whatever thread receives them; an exception
        it raises aborts the transfer and is raised here. On failure the bytes already reported
        stay valid. Never returns, not even cancelled, while something may still write to *into*.

        Raises `ObjectChangedError` if *key* has another version now, `ObjectNotFoundError`,
        `ObjectArchivedError`.
        """

    def reconfigure(self, config: TransferConfig) -> None:
        """Take on other bounds; calls that run may end under the old ones. No checkpoint."""

    async def aclose(self) -> None:
        """Give back connections and threads."""


class RangedGet(NamedTuple):
    """The arguments of `Origin.get_range`."""

    key: bytes
    etag: str
    start: int
    into: memoryview
    progress: Progress | None = None

    def behind(self, done: int) -> RangedGet:
        """What follows its first *done* bytes; the same progress is told of all."""
        progress = self.progress
        rest = None if progress is None else lambda filled: progress(done + filled)
        return RangedGet(self.key, self.etag, self.start + done, self.into[done:], rest)


class FirstAttempt(NamedTuple):
    """How far one came elsewhere: begun at *began* on trio's clock, *failed* if that counts."""

    began: float
    filled: int
    failed: OriginUnavailableError | None


#: Called once, on the loop, with what went wrong, if anything; must not raise.
Ended = Callable[[TierCacheError | None], None]


class Patience(NamedTuple):
    """How long a GET may take to begin. *give_up* is asked once, then: False lets it wait on."""

    seconds: float
    give_up: Callable[[], bool]


@runtime_checkable
class EagerOrigin(Protocol):
    """An origin that can begin a GET without a task, if nothing has to be waited for."""

    def start_get(self, get: RangedGet, ended: Ended, patience: Patience | None) -> bool:
        """Begin what `Origin.get_range` does, one attempt of it; *ended* is called later.

        Nobody writes to its memory from then on. Given up when *patience* is over, it ends with
        `SlowReplyError`. False: not started, as it would have to wait for something.
        """

    async def run(self) -> None:
        """Drive what was started, until cancelled."""
