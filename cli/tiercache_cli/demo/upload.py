"""Builds the dataset's objects and puts them into a bucket, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from tiercache.testing.s3server import S3Server
from tiercache_cli.demo.dataset import Built, Manifest, Part

#: Pillow and the socket both release the GIL; more would only hold more objects in memory.
_THREADS = 4


def upload(
    server: S3Server, bucket: str, parts: Sequence[Part], advance: Callable[[int], None]
) -> Manifest:
    """Store every part; `advance` is told the estimated size of each that is done.

    Returns the manifest. Raises whatever building or storing raised first; the rest is dropped.
    """
    manifest = Manifest()
    client = server.shared_client  # made here: boto3 clients may be used, not made, by threads

    def store(part: Part) -> tuple[Part, Built]:
        built = part.build()
        client.put_object(Bucket=bucket, Key=part.key, Body=built.data)
        return part, built

    pool = ThreadPoolExecutor(_THREADS)
    try:
        for done in as_completed([pool.submit(store, part) for part in parts]):
            part, built = done.result()
            manifest.add(part.key, built)
            advance(part.size)
    finally:
        pool.shutdown(cancel_futures=True)
    return manifest
