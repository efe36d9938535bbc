"""Which host answers for a bucket, how its path begins, and which redirects may be followed.

Custom endpoints are read here. For AWS, botocore's rules decide (`s3_session`), so partitions, dual
stack and FIPS work. A signed request never follows a redirect to a host that the configuration does
not stand for: only the region is taken from the reply, and the rules make the host of it.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, urlsplit

from tiercache.errors import OriginConfigError
from tiercache.origin.http_connection import Address
from tiercache.origin.s3_location import Location
from tiercache.origin.sigv4 import quote_key

_REGION = re.compile(r"[a-z0-9][a-z0-9-]{1,40}")
_REGION_HOST = re.compile(r"(?:^|\.)s3(?:-fips)?(?:\.dualstack)?[.-]([a-z]{2}(?:-[a-z]+)+-[0-9])\.")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests for one bucket go. `base` is escaped and ends in `/`; keys follow it."""

    address: Address
    base: str
    region: str
    path_style: bool
    custom: bool

    @property
    def host_header(self) -> str:
        """Host as it is sent and signed: default ports are left out."""
        host, port, tls = self.address
        name = f"[{host}]" if ":" in host else host
        return name if port == (443 if tls else 80) else f"{name}:{port}"

    @property
    def url(self) -> str:
        """For people."""
        return f"{'https' if self.address.tls else 'http'}://{self.host_header}{self.base}"

    @property
    def bucket_path(self) -> str:
        """Path of requests about the bucket itself."""
        return self.base.rstrip("/") or "/"

    def key_path(self, key: bytes) -> str:
        """Path of the object *key*, byte for byte."""
        return self.base + quote_key(key)


def split_endpoint(url: str) -> SplitResult:
    """Split an endpoint URL, or raise `OriginConfigError`."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if valid and (parts.username is not None or parts.password is not None):
        # Not quoted: the message goes to terminals and logs.
        raise OriginConfigError("the endpoint holds a user or password: leave them out of the URL")
    if not valid or parts.query or parts.fragment:
        # What cannot be read may hold them too: only what follows an "@" is quoted.
        shown = url.rpartition("@")[2]
        raise OriginConfigError(
            f"endpoint {shown!r} is not of the form http(s)://HOST[:PORT][/PATH]"
        )
    return parts


def custom_endpoint(url: str, location: Location, region: str, path_style: bool | None) -> Endpoint:
    """The endpoint of a store other than AWS; path style unless it was switched off."""
    parts = split_endpoint(url)
    host = parts.hostname or ""
    in_path = path_style is not False or location.needs_path_style or _is_ip(host)
    bucket = f"{quote_key(location.bucket.encode())}/" if in_path else ""
    base = f"{parts.path.rstrip('/')}/{bucket}"
    return Endpoint(
        address=address_of(parts, host if in_path else f"{location.bucket}.{host}"),
        base=base,
        region=region,
        path_style=in_path,
        custom=True,
    )


def address_of(parts: SplitResult, host: str) -> Address:
    """Host, port and TLS of a URL, with *host* in place of its own."""
    tls = parts.scheme == "https"
    return Address(host, parts.port or (443 if tls else 80), tls)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def region_of(named: str, location: str) -> str | None:
    """The region a redirect leads to: as *named*, else from the host of an AWS *location*."""
    if _REGION.fullmatch(named):
        return named
    try:
        match = _REGION_HOST.search(urlsplit(location).hostname or "")
    except ValueError:
        return None
    return match[1] if match else None


def relocated(endpoint: Endpoint, location: str) -> Endpoint | None:
    """*endpoint* moved to *location* if that is the same host and no step back from TLS.

    The path stays ours. None when the redirect must not be followed.
    """
    try:
        parts = urlsplit(location)
        address = address_of(parts, parts.hostname or "")
    except ValueError:
        return None
    same_host = parts.scheme in ("http", "https") and address.host == endpoint.address.host
    if not same_host or (endpoint.address.tls and not address.tls) or address == endpoint.address:
        return None
    return replace(endpoint, address=address)
