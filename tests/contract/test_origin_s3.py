"""The S3 origin against real servers: SeaweedFS (signatures, keep-alive) and moto (odd keys)."""

from __future__ import annotations

import gzip
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import trio

from tiercache.config import TransferConfig
from tiercache.errors import (
    ObjectArchivedError,
    ObjectChangedError,
    ObjectNotFoundError,
)
from tiercache.origin.protocol import Origin
from tiercache.testing.data import check, pattern
from tiercache.testing.faultproxy import FaultProxy
from tiercache.testing.origin_suite import OriginSuite, names, pages, read
from tiercache.testing.s3server import S3Server
from tiercache.types import MIB


@dataclass
class S3Store:
    """A bucket, or a folder of it, seen through an origin."""

    origin: Origin
    server: S3Server
    bucket: str
    root: bytes = b""
    unable: tuple[bytes, ...] = ()

    def put(self, key, data, **extra):
        return self.server.put(self.bucket, self.root + key, data, **extra)

    def delete(self, key):
        self.server.delete(self.bucket, self.root + key)

    def can_hold(self, key):
        return not any(part in key for part in self.unable)


class S3Suite(OriginSuite):
    """What both servers must pass."""

    async def test_b01_slashes_are_not_collapsed(self, store):
        """Each key answers with its own bytes, or the server does not have it."""
        keys = [b"s/b", b"s//b", b"s///c", b"s/d//e"]
        keys = [key for key in keys if store.can_hold(key)]
        for number, key in enumerate(keys):
            store.put(key, pattern(0, 100 + number, number))
        for number, key in enumerate(keys):
            check(await read(store.origin, await store.origin.head(key)), 0, number)
        with pytest.raises(ObjectNotFoundError):
            await store.origin.head(b"s//absent")

    async def test_b10_a_key_of_1024_bytes(self, store):
        key = b"/".join(b"x" * 203 for _ in range(5))[: 1024 - len(store.root) - 1] + b"k"
        store.put(key, pattern(0, 10, 3))
        info = await store.origin.head(key)
        check(await read(store.origin, info), 0, 3)
        assert (await names(store.origin, b"", delimiter=False))[0] == [key]

    async def test_d14_stored_bytes_as_they_are(self, store):
        packed = gzip.compress(pattern(0, 100_000, 4), mtime=0)
        for coding in ("gzip", "br"):
            store.put(b"packed", packed, ContentEncoding=coding)
            info = await store.origin.head(b"packed")
            assert info.size == len(packed)
            assert bytes(await read(store.origin, info)) == packed
            assert bytes(await read(store.origin, info, 100, 50)) == packed[100:150]

    async def test_g18_multipart_etag_pins(self, store):
        """The ETag of a multipart upload is no MD5; it is opaque to us."""
        client = store.server.shared_client
        key = (store.root + b"parts").decode()
        upload = client.create_multipart_upload(Bucket=store.bucket, Key=key)["UploadId"]
        parts = []
        for number in (1, 2):
            data = pattern((number - 1) * 5 * MIB, 5 * MIB, 6)
            reply = client.upload_part(
                Bucket=store.bucket, Key=key, UploadId=upload, PartNumber=number, Body=data
            )
            parts.append({"PartNumber": number, "ETag": reply["ETag"]})
        client.complete_multipart_upload(
            Bucket=store.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
        )
        info = await store.origin.head(b"parts")
        assert info.etag.endswith("-2")
        check(await read(store.origin, info), 0, 6)


def folder_of(request):
    """A prefix that no other test uses."""
    return f"{zlib.crc32(request.node.nodeid.encode()):08x}/".encode()


@pytest.fixture(scope="module")
def weed_bucket(seaweed):
    """One for all tests here: to this server each bucket costs several volumes."""
    return seaweed.create_bucket()


class TestSeaweed(S3Suite):
    """A mounted prefix, over a real server."""

    @pytest.fixture
    def store(self, seaweed, weed_bucket, request, as_client_of, open_s3):
        as_client_of(seaweed)
        root = folder_of(request)
        # What lies outside the prefix must never be seen.
        for suffix in (b"", b"-", b".x", b"b/x"):
            seaweed.put(weed_bucket, root[:-1] + suffix, b"outside")
        origin = open_s3(f"s3://{weed_bucket}/{root.decode()}", seaweed.endpoint_url)
        return S3Store(origin, seaweed, weed_bucket, root, unable=(b"//", b"\\"))


class TestMoto(S3Suite):
    """A whole bucket."""

    @pytest.fixture
    def store(self, moto, as_client_of, open_s3):
        as_client_of(moto)
        bucket = moto.create_bucket()
        origin = open_s3(f"s3://{bucket}", moto.endpoint_url)
        return S3Store(origin, moto, bucket, unable=(b"\n",))

    async def test_b11_dots_are_not_normalised(self, store):
        keys = [b"a/./b", b"a/../c", b"../d", b"./e"]
        for number, key in enumerate(keys):
            store.put(key, pattern(0, 10, number))
        assert (await names(store.origin, b"", delimiter=False))[0] == sorted(keys)
        for number, key in enumerate(keys):
            check(await read(store.origin, await store.origin.head(key)), 0, number)

    async def test_g17_archived_objects_are_listed_but_not_read(self, store):
        for storage, archived in (
            ("GLACIER", True),
            ("DEEP_ARCHIVE", True),
            ("STANDARD_IA", False),
        ):
            store.put(b"k", b"frozen", StorageClass=storage)
            (listed,) = (await store.origin.list(b"")).objects
            assert listed.archived == (await store.origin.head(b"k")).archived == archived
            if archived:
                with pytest.raises(ObjectArchivedError):
                    await store.origin.get_range(b"k", listed.etag, 0, memoryview(bytearray(6)))


class TestProxied(OriginSuite):
    """boto3's own stack, chosen because the environment names a proxy for the endpoint."""

    @pytest.fixture
    def proxy(self, seaweed):
        # A reverse proxy serves as forward proxy: it ignores the host in the request line.
        with FaultProxy(seaweed) as proxy:
            yield proxy

    @pytest.fixture
    def store(self, seaweed, weed_bucket, request, proxy, as_client_of, open_s3, monkeypatch):
        as_client_of(seaweed)
        monkeypatch.setenv("http_proxy", proxy.url)
        root = folder_of(request)
        origin = open_s3(f"s3://{weed_bucket}/{root.decode()}", seaweed.endpoint_url)
        return S3Store(origin, seaweed, weed_bucket, root, unable=(b"//", b"\\"))

    async def test_the_proxy_is_used_and_said(self, store, proxy):
        assert store.origin.describe()["client"] == "boto3 (http proxy)"
        store.put(b"k", b"abc")
        before = len(proxy.requests)
        await store.origin.head(b"k")
        assert len(proxy.requests) == before + 1


@pytest.fixture
def proxied(seaweed, weed_bucket, request, as_client_of):
    """A proxy in front of the server, a folder, and its URL."""
    as_client_of(seaweed)
    root = folder_of(request)
    with FaultProxy(seaweed) as proxy:
        yield proxy, root, f"s3://{weed_bucket}/{root.decode()}"


async def test_d10_offsets_beyond_4_gib_are_asked_for(proxied, seaweed, weed_bucket, open_s3):
    """The object is small, so the server refuses; what counts is the range that was sent."""
    proxy, root, url = proxied
    etag = seaweed.put(weed_bucket, root + b"k", b"abc")
    origin = open_s3(url, proxy.url)
    for start in (2**31 - 1, 2**32 + 1, 5 * 2**40 - 10):
        with pytest.raises(ObjectChangedError):
            await origin.get_range(b"k", etag, start, memoryview(bytearray(10)))
        assert proxy.requests[-1].range == f"bytes={start}-{start + 9}"
        assert proxy.requests[-1].headers["if-match"] == f'"{etag}"'


async def test_d11_empty_reads_ask_nothing(proxied, seaweed, weed_bucket, open_s3):
    proxy, root, url = proxied
    etag = seaweed.put(weed_bucket, root + b"k", b"")
    origin = open_s3(url, proxy.url)
    await origin.get_range(b"k", etag, 0, memoryview(bytearray()))
    assert proxy.requests == []


async def test_a_small_cap_of_connections_serves_all(proxied, seaweed, weed_bucket, open_s3):
    proxy, root, url = proxied
    seaweed.put(weed_bucket, root + b"k", pattern(0, 100))
    origin = open_s3(url, proxy.url, TransferConfig(connections=2))
    info = await origin.head(b"k")
    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(read, origin, info)
    assert len(proxy.requests) == 31


async def test_c05_around_a_thousand(proxied, seaweed, weed_bucket, open_s3):
    _, root, url = proxied
    keys = [root + b"m/%04d" % number for number in range(1001)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: seaweed.put(weed_bucket, key, b""), keys))
    origin = open_s3(url, seaweed.endpoint_url)
    for prefix, counts in ((b"m/00", [100]), (b"m/0", [1000]), (b"m/", [1000, 1])):
        found = await pages(origin, prefix)
        assert [len(page.objects) for page in found] == counts
    assert (await origin.head(b"m/1000")).size == 0


async def test_c05_a_server_that_caps_max_keys(proxied, seaweed, weed_bucket, open_s3):
    """It is asked again until it is done."""
    _, root, url = proxied
    for number in range(35):
        seaweed.put(weed_bucket, root + b"k%02d" % number, b"")
    origin = open_s3(url, seaweed.endpoint_url)
    found = await pages(origin, b"", limit=10)
    assert [len(page.objects) for page in found] == [10, 10, 10, 5]
