"""An origin in front of another: what concerns such as retry and faults have in common."""

from __future__ import annotations

from tiercache.config import TransferConfig
from tiercache.origin.protocol import LIST_PAGE_MAX, Origin
from tiercache.types import ListPage, ObjectInfo, Progress


class OriginWrapper:
    """Passes everything on to *inner*; subclasses override what they care about."""

    def __init__(self, inner: Origin) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        """As the inner origin says."""
        return self.inner.name

    @property
    def identity(self) -> str:
        """As the inner origin says: a wrapper holds the same objects."""
        return self.inner.identity

    def describe(self) -> dict[str, str]:
        """As the inner origin says."""
        return self.inner.describe()

    async def check(self) -> None:
        """See `Origin.check`."""
        await self.inner.check()

    async def list(
        self,
        prefix: bytes,
        token: str | None = None,
        *,
        delimiter: bool = True,
        limit: int = LIST_PAGE_MAX,
    ) -> ListPage:
        """See `Origin.list`."""
        return await self.inner.list(prefix, token, delimiter=delimiter, limit=limit)

    async def head(self, key: bytes) -> ObjectInfo:
        """See `Origin.head`."""
        return await self.inner.head(key)

    async def get_range(
        self,
        key: bytes,
        etag: str,
        start: int,
        into: memoryview,
        progress: Progress | None = None,
    ) -> None:
        """See `Origin.get_range`."""
        await self.inner.get_range(key, etag, start, into, progress)

    def reconfigure(self, config: TransferConfig) -> None:
        """See `Origin.reconfigure`."""
        self.inner.reconfigure(config)

    async def aclose(self) -> None:
        """See `Origin.aclose`."""
        await self.inner.aclose()
