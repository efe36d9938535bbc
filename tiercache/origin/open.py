"""From a URL to the store behind it."""

from __future__ import annotations

from dataclasses import replace

from tiercache.config import OriginConfig, TransferConfig
from tiercache.errors import OriginConfigError
from tiercache.origin.protocol import Origin
from tiercache.origin.s3_location import SCHEME, parse_location

FILE_SCHEME = "file://"


def open_origin(config: OriginConfig, transfer: TransferConfig) -> Origin:
    """The bare store of `config.url`; nothing is sent yet. `OriginConfigError` for bad settings.

    A store is imported when it is opened, so a mount of a directory does not load botocore.
    """
    if config.url.startswith(FILE_SCHEME):
        from tiercache.origin.posix import PosixOrigin

        return PosixOrigin.from_url(config.url, transfer.threads)
    if config.url.startswith(SCHEME):
        return _open_s3(config, transfer)
    raise OriginConfigError(f"{config.url}: not of the form s3://BUCKET[/PREFIX] or file:///DIR")


def _open_s3(config: OriginConfig, transfer: TransferConfig) -> Origin:
    from tiercache.origin.s3 import S3Origin
    from tiercache.origin.s3_endpoint import split_endpoint
    from tiercache.origin.s3_session import AwsSession, proxy_for

    location = parse_location(config.url)
    if config.endpoint_url is None:
        url = AwsSession(config).configured_endpoint(location)
        config = replace(config, endpoint_url=url)
    else:
        split_endpoint(config.endpoint_url)
    reason = location.boto_reason or proxy_for(config.endpoint_url)
    if reason is None:
        return S3Origin(config, transfer, location)
    from tiercache.origin.s3_boto import BotoOrigin

    return BotoOrigin(config, transfer, location, reason)
