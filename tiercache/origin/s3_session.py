"""What botocore knows: profile, region, endpoint rules, CA bundle and credentials.

Everything here blocks and is called in threads or before the loop runs. botocore is imported on
first use, so that a mount of a directory never pays for it. It reads its own environment
variables and files; nothing else in tiercache does.
"""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from tiercache.config import OriginConfig
from tiercache.errors import OriginConfigError
from tiercache.origin.s3_endpoint import Endpoint, address_of, custom_endpoint, split_endpoint
from tiercache.origin.s3_location import Location

if TYPE_CHECKING:
    from botocore.credentials import Credentials as BotoCredentials
    from botocore.session import Session
    from mypy_boto3_s3 import S3Client as BotoClient

#: Where S3 starts when no region is set anywhere: it names the right one in its refusal.
DEFAULT_REGION = "us-east-1"
_PROBE_KEY = "k"


class AwsSession:
    """A botocore session of one configuration."""

    def __init__(self, config: OriginConfig) -> None:
        self._config = config
        self._session = self._open()

    def _open(self) -> Session:
        from botocore.exceptions import ProfileNotFound
        from botocore.session import Session

        session = Session(profile=self._config.profile)
        try:
            session.get_scoped_config()
        except ProfileNotFound as error:
            raise OriginConfigError(f"{error}; see `aws configure list-profiles`") from error
        return session

    @property
    def region(self) -> str:
        """As set here, in the environment or in the profile, else `DEFAULT_REGION`."""
        named = self._config.region or self._session.get_config_variable("region")
        return str(named or DEFAULT_REGION)

    def configured_endpoint(self, location: Location) -> str | None:
        """The endpoint URL set for S3 in botocore's variables or files; None: AWS itself."""
        url = str(self.client(location, self.region, anonymous=True).meta.endpoint_url)
        return None if self._is_aws(url) else url

    def endpoint(self, location: Location, region: str) -> Endpoint:
        """Where the bucket is, if it is in *region*."""
        from botocore.exceptions import BotoCoreError

        url = self._config.endpoint_url
        if url is not None and not self._is_aws(url):
            return custom_endpoint(url, location, region, self._config.path_style)
        try:
            # An unsigned URL is the public way to ask botocore's endpoint rules.
            url = self.client(location, region, anonymous=True).generate_presigned_url(
                "get_object", Params={"Bucket": location.bucket, "Key": _PROBE_KEY}
            )
        except (BotoCoreError, ValueError) as error:
            raise OriginConfigError(f"no S3 endpoint for {location.url}: {error}") from error
        parts = urlsplit(url)
        host = parts.hostname or ""
        return Endpoint(
            address=address_of(parts, host),
            base=parts.path.removesuffix(_PROBE_KEY),
            region=region,
            path_style=not host.startswith(f"{location.bucket}."),
            custom=False,
        )

    def _is_aws(self, url: str) -> bool:
        host = split_endpoint(url).hostname or ""
        return any(host.endswith(f".{suffix}") for suffix in self._aws_suffixes())

    def _aws_suffixes(self) -> set[str]:
        data = self._session.get_component("data_loader").load_data("partitions")
        outputs = [partition["outputs"] for partition in data["partitions"]]
        return {str(o[name]) for o in outputs for name in ("dnsSuffix", "dualStackDnsSuffix")}

    def partition_of(self, region: str) -> str | None:
        """The AWS partition of *region*; None if there is none."""
        from botocore.exceptions import BotoCoreError

        try:
            return str(self._session.get_partition_for_region(region))
        except BotoCoreError:
            return None

    def client(
        self,
        location: Location,
        region: str,
        *,
        anonymous: bool | None = None,
        options: Mapping[str, object] | None = None,
    ) -> BotoClient:
        """A botocore S3 client that addresses the bucket as we do.

        *options* are fields of botocore's `Config`; *anonymous* overrides the configuration.
        """
        from botocore import UNSIGNED
        from botocore.config import Config

        merged: dict[str, Any] = {
            **(options or {}),
            "s3": {"addressing_style": self._style(location)},
        }
        if self._config.anonymous if anonymous is None else anonymous:
            merged["signature_version"] = UNSIGNED
        client = self._session.create_client(
            "s3",
            region_name=region,
            endpoint_url=self._config.endpoint_url,
            verify=str(self._config.ca_bundle) if self._config.ca_bundle else None,
            config=Config(**merged),
        )
        return cast("BotoClient", client)

    def _style(self, location: Location) -> str:
        if location.boto_reason:
            return "auto"  # decided by the kind of bucket
        return "path" if self._config.path_style or location.needs_path_style else "virtual"

    def credentials(self) -> BotoCredentials | None:
        """What botocore's chain finds; may ask the instance metadata service."""
        found: BotoCredentials | None = self._session.get_credentials()
        return found

    def tls_context(self) -> ssl.SSLContext:
        """Certificates are always verified: by our bundle, botocore's setting or the system's."""
        named = self._config.ca_bundle or self._session.get_config_variable("ca_bundle")
        bundle = Path(named) if named else _fallback_bundle()
        try:
            context = ssl.create_default_context(cafile=bundle)
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror
            raise OriginConfigError(f"cannot use the CA bundle {bundle}: {reason}") from error
        context.set_alpn_protocols(["http/1.1"])
        return context


def _fallback_bundle() -> Path | None:
    """The bundle of botocore where the system has none, as in slim containers."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or (paths.capath and any(Path(paths.capath).iterdir())):
        return None
    import botocore

    return Path(botocore.__file__).with_name("cacert.pem")


def proxy_for(endpoint_url: str | None) -> str | None:
    """Says so if the environment wants requests to the endpoint to go through a proxy."""
    parts = urlsplit(endpoint_url or "https://s3.amazonaws.com")
    wanted = parts.scheme in urllib.request.getproxies()
    if not wanted or urllib.request.proxy_bypass(parts.netloc):
        return None
    return f"{parts.scheme} proxy"
