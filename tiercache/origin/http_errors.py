"""How an HTTP exchange fails. All are in the family of `tiercache.errors` and worth a retry.

The kinds exist for two readers: the pool, which retries a lost reused connection, and the check at
start, which tells a person what to change.
"""

from __future__ import annotations

from tiercache.errors import OriginReplyError, OriginUnavailableError


class ConnectError(OriginUnavailableError):
    """No connection: refused, unreachable, timed out."""


class NameResolutionError(ConnectError):
    """The host name has no address."""


class TlsError(ConnectError):
    """The TLS handshake failed; the message names the cause."""


class ConnectionLostError(OriginUnavailableError):
    """The connection ended before the reply did."""


class StalledError(OriginUnavailableError):
    """The reply did not come, or not go on, in time."""


class AskAgainError(OriginUnavailableError):
    """To be asked again at once, with more care: it says nothing against the origin."""


class SlowReplyError(AskAgainError):
    """No byte of the reply came within the time in which nearly all begin."""


class FramingError(OriginReplyError):
    """The reply is not HTTP that can be believed."""
