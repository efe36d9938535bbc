"""Origins over real servers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from tiercache.config import OriginConfig, TransferConfig
from tiercache.origin.open import open_origin
from tiercache.origin.protocol import Origin
from tiercache.testing.s3server import S3Server

TRANSFER = TransferConfig(connect_timeout_s=5.0, stall_timeout_s=10.0)


@pytest.fixture
def as_client_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[S3Server], None]:
    """`as_client_of(server)` makes its credentials those of this process."""

    def enter(server: S3Server) -> None:
        for name, value in server.env().items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        for name in ("http_proxy", "https_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)

    return enter


@pytest.fixture
async def open_s3() -> AsyncIterator[Callable[..., Origin]]:
    """`open_s3(url, endpoint_url, transfer=TRANSFER, **OriginConfig fields)`; closed at the end."""
    async with contextlib.AsyncExitStack() as stack:

        def make(
            url: str,
            endpoint_url: str | None = None,
            transfer: TransferConfig = TRANSFER,
            **fields: object,
        ) -> Origin:
            config = OriginConfig(url=url, endpoint_url=endpoint_url, **fields)
            origin = open_origin(config, transfer)
            stack.push_async_callback(origin.aclose)
            return origin

        yield make
