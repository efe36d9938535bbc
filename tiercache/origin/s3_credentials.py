"""Credentials that are always fresh and never fetched on the loop.

botocore's chain finds them (environment, profile, SSO, web identity, container, instance). The
current ones are handed out without waiting; one task at a time renews them in a thread, before they
end or when the store says they have. While renewal fails the old ones stay in use, since the store
decides when they are dead. Explicit keys come first in the chain, so they never touch the instance
metadata service.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from tiercache.errors import OriginConfigError, OriginUnavailableError
from tiercache.origin.s3_session import AwsSession
from tiercache.origin.sigv4 import Credentials

if TYPE_CHECKING:
    from botocore.credentials import Credentials as BotoCredentials
    from botocore.credentials import RefreshableCredentials

log = logging.getLogger(__name__)

#: How often the age of temporary credentials is looked at, and the pause after a failed renewal.
CHECK_INTERVAL_S = 1.0
FAILED_PAUSE_S = 5.0

NOT_FOUND = (
    "no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile, "
    "or mount a public bucket with --anonymous"
)


class CredentialSource:
    """Credentials of one chain. *open_session* starts a new one and blocks."""

    def __init__(self, open_session: Callable[[], AwsSession]) -> None:
        self._open_session = open_session
        self._lock = trio.Lock()
        self._chain: RefreshableCredentials | None = None  # None: they last for ever
        self._current: Credentials | None = None
        self._check_at = 0.0
        self.method = ""

    @property
    def temporary(self) -> bool:
        """Whether the current credentials can expire."""
        return self._current is not None and self._current.token is not None

    async def get(self) -> Credentials:
        """Credentials to sign with; waits only when there are none yet."""
        if self._current is None:
            async with self._lock:
                if self._current is None:
                    await self._restart()
        elif self._chain is not None and time.monotonic() >= self._check_at:
            await self._keep_fresh()
        assert self._current is not None
        return self._current

    def get_now(self) -> Credentials | None:
        """Credentials to sign with, None when there are none yet or their age must be looked at."""
        if self._chain is not None and time.monotonic() >= self._check_at:
            return None
        return self._current

    async def renew(self, refused: Credentials) -> bool:
        """Replace *refused*, which the store says are expired; False if none differ from it."""
        async with self._lock:
            if self._current == refused:
                await self._restart()
            return self._current != refused

    async def _keep_fresh(self) -> None:
        """Renew what ends soon; the requests meanwhile go on with what there is."""
        assert self._chain is not None
        self._check_at = time.monotonic() + CHECK_INTERVAL_S
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            return
        try:
            if self._chain.refresh_needed():
                self._current = await trio.to_thread.run_sync(_frozen, self._chain)
        except OriginUnavailableError as error:
            self._check_at = time.monotonic() + FAILED_PAUSE_S
            log.warning("credentials end soon: %s", error)
        finally:
            self._lock.release()

    async def _restart(self) -> None:
        """Go through the whole chain again: files and variables may have changed."""
        chain = await trio.to_thread.run_sync(self._find)
        self._current = await trio.to_thread.run_sync(_frozen, chain)
        self._chain = _temporary(chain)
        self._check_at = time.monotonic() + CHECK_INTERVAL_S
        self.method = str(chain.method)

    def _find(self) -> BotoCredentials:
        from botocore.exceptions import BotoCoreError

        try:
            found = self._open_session().credentials()
        except BotoCoreError as error:
            raise OriginUnavailableError(_reason(error)) from error
        if found is None:
            raise OriginConfigError(NOT_FOUND)
        return found


def _temporary(chain: BotoCredentials) -> RefreshableCredentials | None:
    from botocore.credentials import RefreshableCredentials

    return chain if isinstance(chain, RefreshableCredentials) else None


def _frozen(chain: BotoCredentials) -> Credentials:
    """Blocks while botocore fetches what has expired."""
    try:
        frozen = chain.get_frozen_credentials()
    except Exception as error:  # custom providers raise anything
        raise OriginUnavailableError(_reason(error)) from error
    return Credentials(str(frozen.access_key), str(frozen.secret_key), frozen.token or None)


def _reason(error: Exception) -> str:
    # The text may quote what a credential process printed, so only the kind is told.
    return f"cannot get AWS credentials ({type(error).__name__})"
