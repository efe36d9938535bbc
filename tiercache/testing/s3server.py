"""What every S3 server for tests, demo and benchmarks offers, whatever runs behind it.

A server is a context manager: started on free loopback ports on entry, stopped on exit. `env()` is
what a child process needs to reach it, `client()` is boto3, the oracle that fills buckets.
"""

from __future__ import annotations

import abc
import itertools
from typing import TYPE_CHECKING, Any, Self

import boto3
from botocore.config import Config

from tiercache.errors import TierCacheError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

REGION = "us-east-1"


class ServerError(TierCacheError):
    """A server of ours did not start; the message is one line that says why."""


class S3Server(abc.ABC):
    """A local S3 endpoint. `start` and `stop` may be called by hand; `stop` more than once."""

    def __init__(self, access_key: str = "tiercache", secret_key: str = "tiercache-secret") -> None:
        self.access_key = access_key
        self.secret_key = secret_key
        self.region = REGION
        self._bucket_numbers = itertools.count(1)
        self._client: S3Client | None = None

    @property
    @abc.abstractmethod
    def endpoint_url(self) -> str:
        """`http://127.0.0.1:PORT`; valid once started."""

    @abc.abstractmethod
    def start(self) -> None:
        """Return when reads and writes are answered, else raise `ServerError`."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End the server and remove what it stored; harmless when it does not run."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close_client()
        self.stop()

    def env(self) -> dict[str, str]:
        """The AWS_* variables that let a child process use this server and nothing else."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    def client(self, endpoint_url: str | None = None) -> S3Client:
        """A new boto3 client; *endpoint_url* points it at a proxy in front of this server."""
        return boto3.client(
            "s3",
            endpoint_url=endpoint_url or self.endpoint_url,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 3, "mode": "standard"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                max_pool_connections=32,
            ),
        )

    @property
    def shared_client(self) -> S3Client:
        """One client that lives as long as the server (boto3 takes a while to make one)."""
        if self._client is None:
            self._client = self.client()
        return self._client

    def close_client(self) -> None:
        """Close the connections of the shared client."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def create_bucket(self, name: str | None = None) -> str:
        """Create bucket *name*, or one with a name of its own, and return the name."""
        bucket = name or f"bucket-{next(self._bucket_numbers)}"
        self.shared_client.create_bucket(Bucket=bucket)
        return bucket

    # Any: whatever put_object takes (StorageClass, ContentEncoding, Metadata, ...).
    def put(self, bucket: str, key: str | bytes, body: bytes, **extra: Any) -> str:
        """Store an object, over an older one if need be, and return its ETag without quotes."""
        reply = self.shared_client.put_object(Bucket=bucket, Key=_text(key), Body=body, **extra)
        return reply["ETag"].strip('"')

    def delete(self, bucket: str, key: str | bytes) -> None:
        """Delete an object; not an error when there is none."""
        self.shared_client.delete_object(Bucket=bucket, Key=_text(key))


def _text(key: str | bytes) -> str:
    """S3 keys are UTF-8, and boto3 takes them as text."""
    return key.decode() if isinstance(key, bytes) else key
