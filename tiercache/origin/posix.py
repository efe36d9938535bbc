"""A directory as an origin: local, NFS or Lustre, mounted as `file:///DIR`.

The work is done by pool threads within a limiter of its own, because a network file system blocks.
`posix_tree` knows what may be shown and how it is read, `posix_list` makes pages of it.
"""

from __future__ import annotations

import functools
import os
import stat
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from tiercache.config import TransferConfig
from tiercache.errors import OriginConfigError, TierCacheError
from tiercache.origin.posix_list import PosixLister
from tiercache.origin.posix_tree import PosixTree
from tiercache.origin.protocol import LIST_PAGE_MAX
from tiercache.types import ListPage, ObjectInfo, Progress

T = TypeVar("T")

_SCHEME = "file://"


class PosixOrigin:
    """Implements `tiercache.origin.protocol.Origin` over the files below *root*.

    At most *threads* calls touch the file system at once.
    """

    def __init__(self, root: Path, threads: int = 8) -> None:
        self._tree = PosixTree(os.fsencode(root))
        self._lister = PosixLister(self._tree)
        self._limiter = trio.CapacityLimiter(threads)

    @classmethod
    def from_url(cls, url: str, threads: int = 8) -> PosixOrigin:
        """The origin of `file:///DIR`, percent escapes undone; `OriginConfigError` otherwise."""
        parts = urllib.parse.urlsplit(url)
        path = urllib.parse.unquote_to_bytes(parts.path)
        if parts.scheme != "file" or parts.netloc not in {"", "localhost"} or path[:1] != b"/":
            raise OriginConfigError(f"{url} is not of the form file:///DIR")
        if parts.query or parts.fragment:
            raise OriginConfigError(f"{url}: write `?` as %3F and `#` as %23")
        return cls(Path(os.fsdecode(path)), threads)

    @property
    def name(self) -> str:
        """`file:///DIR`, escaped so that it is one word."""
        return _SCHEME + urllib.parse.quote(self._tree.root)

    @property
    def identity(self) -> str:
        """The URL of the real path."""
        return self.name

    def describe(self) -> dict[str, str]:
        """Facts for `status`."""
        return {"client": "posix", "directory": os.fsdecode(self._tree.root)}

    async def check(self) -> None:
        """Raise `OriginConfigError` with one clear line unless the root can be listed."""
        await self._run(self._check)

    async def list(
        self,
        prefix: bytes,
        token: str | None = None,
        *,
        delimiter: bool = True,
        limit: int = LIST_PAGE_MAX,
    ) -> ListPage:
        """One page in sorted order. Empty directories are prefixes too."""
        return await self._run(
            functools.partial(
                self._lister.page,
                prefix,
                token,
                delimiter=delimiter,
                limit=min(limit, LIST_PAGE_MAX),
            )
        )

    async def head(self, key: bytes) -> ObjectInfo:
        """The file *key* as it is now."""
        return await self._run(functools.partial(self._tree.head, key))

    async def get_range(
        self,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress | None = None,
    ) -> None:
        """Fill *into* on a thread; a cancelled call returns when its thread has stopped writing."""

        def advance(filled: int) -> None:
            if progress is not None:
                progress(filled)
            trio.from_thread.check_cancelled()

        read = functools.partial(self._tree.read, key, etag, start, into, advance)
        await trio.to_thread.run_sync(read, limiter=self._limiter)

    def reconfigure(self, config: TransferConfig) -> None:
        """See `Origin`: a local directory has no live bounds."""

    async def aclose(self) -> None:
        """Nothing stays open between calls."""
        await trio.lowlevel.checkpoint()

    async def _run(self, call: Callable[[], T]) -> T:
        """The result of *call*, given up on when cancelled: a dead server may block it for ever."""
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)

    def _check(self) -> None:
        try:
            mode = Path(os.fsdecode(self._tree.root)).stat().st_mode
        except OSError as error:
            raise OriginConfigError(f"{self.name}: {error.strerror}") from error
        if not stat.S_ISDIR(mode):
            raise OriginConfigError(f"{self.name}: not a directory")
        try:
            self._tree.names(b"")
        except TierCacheError as error:
            raise OriginConfigError(f"{self.name}: cannot be listed: {error}") from error
