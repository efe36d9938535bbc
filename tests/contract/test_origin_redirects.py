"""Where the S3 origin lets a redirect lead it, and for how long."""

from __future__ import annotations

import pytest

from tiercache.errors import OriginConfigError, OriginUnavailableError
from tiercache.testing.data import check, pattern
from tiercache.testing.faultproxy import Fault, FaultProxy, s3_error
from tiercache.testing.origin_suite import read

KEY = b"redirected"
NOWHERE = "http://127.0.0.1:1/x"


@pytest.fixture
def bucket(seaweed):
    bucket = seaweed.create_bucket()
    seaweed.put(bucket, KEY, pattern(0, 1000, 5))
    return bucket


@pytest.fixture
def proxied(seaweed, as_client_of):
    as_client_of(seaweed)
    with FaultProxy(seaweed) as proxy:
        yield proxy


async def read_through(origin):
    check(await read(origin, await origin.head(KEY)), 0, 5)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_stray_redirect_to_nowhere_does_not_move_the_mount(
    proxied, bucket, open_s3, status
):
    origin = open_s3(f"s3://{bucket}", proxied.url)
    proxied.rule(Fault(status=status, redirect=NOWHERE), times=1)
    with pytest.raises(OriginUnavailableError):
        await origin.head(KEY)
    await read_through(origin)
    assert origin.describe()["endpoint"].startswith(proxied.url)


@pytest.mark.parametrize(("status", "remembered"), [(307, False), (308, True)])
async def test_only_a_lasting_redirect_is_remembered(
    proxied, seaweed, bucket, open_s3, status, remembered
):
    with FaultProxy(seaweed) as other:
        origin = open_s3(f"s3://{bucket}", proxied.url)
        proxied.rule(Fault(status=status, redirect=f"{other.url}/x"), times=1)
        await read_through(origin)
        # A HEAD and a GET, and one of them twice.
        assert len(other.requests) == (2 if remembered else 1)
        assert len(proxied.requests) == (1 if remembered else 2)


async def test_the_region_that_a_redirect_names_is_remembered(proxied, bucket, open_s3):
    origin = open_s3(f"s3://{bucket}", proxied.url)
    moved = Fault(status=301, headers={"x-amz-bucket-region": "eu-west-1"})
    proxied.rule(moved, times=1)
    await read_through(origin)
    assert origin.describe()["region"] == "eu-west-1"
    assert len(proxied.requests) == 3


@pytest.mark.allow_warnings
async def test_another_host_is_never_followed(proxied, bucket, open_s3):
    origin = open_s3(f"s3://{bucket}", proxied.url)
    proxied.rule(Fault(redirect="http://localhost:1/steal"), times=1)
    with pytest.raises(OriginUnavailableError):
        await origin.head(KEY)
    assert len(proxied.requests) == 1


@pytest.mark.allow_warnings
@pytest.mark.parametrize(
    ("headers", "told"),
    [
        ({"x-amz-bucket-region": "eu-west-1"}, "is in region eu-west-1, not us-east-1"),
        ({"location": "https://b.s3.eu-west-1.amazonaws.com/"}, "is in region eu-west-1"),
        ({"x-amz-bucket-region": "evil.example/"}, "redirects .301.: check --endpoint-url"),
        ({}, "redirects .301.: check --endpoint-url"),
    ],
)
async def test_a_redirect_without_end_is_told_with_the_right_region(
    proxied, bucket, open_s3, headers, told
):
    origin = open_s3(f"s3://{bucket}", proxied.url)
    proxied.rule(Fault(status=301, headers=headers))
    with pytest.raises(OriginConfigError, match=rf"s3://{bucket}: the (bucket|store) {told}"):
        await origin.check()


@pytest.mark.parametrize(
    "fault", [Fault(status=503, body=s3_error("SlowDown")), Fault(reset_before=True)]
)
async def test_a_check_that_gets_no_answer_names_the_bucket(proxied, bucket, open_s3, fault):
    origin = open_s3(f"s3://{bucket}", proxied.url)
    proxied.rule(fault)
    with pytest.raises(OriginUnavailableError, match=rf"^s3://{bucket}: "):
        await origin.check()


async def test_a_port_where_nobody_listens_is_told_once(bucket, proxied, open_s3):
    origin = open_s3(f"s3://{bucket}", "http://127.0.0.1:1")
    told = "cannot connect to 127.0.0.1:1: Connection refused; check --endpoint-url"
    with pytest.raises(OriginConfigError, match=f"^s3://{bucket}: {told}$"):
        await origin.check()
