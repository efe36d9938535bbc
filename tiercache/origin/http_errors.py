"""How an HTTP exchange fails. All are in the family of `tiercache.errors` and worth a retry.

The kinds exist for who asks again: the pool and `start_get` do at once where a reused connection
was lost, `EagerGets` without counting it where nothing speaks against the origin. And for the
check at start, which tells a person what to change.
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
