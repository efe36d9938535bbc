"""What an `s3://` URL names, and how keys of the bucket relate to keys of the mount."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from tiercache.errors import OriginConfigError

SCHEME = "s3://"

# Upper case and underscores are gone from AWS but live on in older buckets and other stores.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_ARN = re.compile(r"(arn:[a-z-]+:s3[a-z-]*:[a-z0-9-]*:[0-9]*:accesspoint[:/][A-Za-z0-9._-]+)(/.*)?")


@dataclass(frozen=True, slots=True)
class Location:
    """A bucket (or access point ARN) and the prefix that is mounted: empty, or ending in `/`."""

    bucket: str
    root: bytes

    @property
    def url(self) -> str:
        """The URL without a trailing slash, for people."""
        return f"{SCHEME}{self.bucket}/{os.fsdecode(self.root)}".rstrip("/")

    def identity(self, endpoint_url: str | None) -> str:
        """Tells this mount from every other; AWS itself when there is no *endpoint_url*."""
        return f"s3 {(endpoint_url or 'aws').rstrip('/')} {self.bucket} {self.root!r}"

    @property
    def needs_path_style(self) -> bool:
        """Whether the bucket cannot be part of a host name that a certificate covers."""
        return not re.fullmatch(r"[a-z0-9-]{3,63}", self.bucket)

    @property
    def boto_reason(self) -> str | None:
        """Why only boto3 can talk to this bucket, if so."""
        if self.bucket.startswith("arn:"):
            return "access point ARN"
        return "S3 Express session" if self.bucket.endswith("--x-s3") else None


def parse_location(url: str) -> Location:
    """Read `s3://BUCKET[/PREFIX]`. The prefix is taken literally: no escapes, no query."""
    rest = url.removeprefix(SCHEME)
    if match := _ARN.fullmatch(rest):
        bucket, prefix = match[1], (match[2] or "")[1:]
    else:
        bucket, _, prefix = rest.partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise OriginConfigError(f"{url}: {bucket!r} is no bucket name; use s3://BUCKET/PREFIX")
    root = os.fsencode(prefix)
    if root and not root.endswith(b"/"):
        root += b"/"
    return Location(bucket, root)
