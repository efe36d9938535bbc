"""The proxy passes signed requests through untouched, and misbehaves exactly as told."""

from __future__ import annotations

import http.client
import socket
import ssl

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tiercache.testing.data import check, pattern
from tiercache.testing.faultproxy import Fault, FaultProxy, s3_error
from tiercache.testing.tls import LocalAuthority

SIZE = 300_000
KEY = "a b+c/ü%41"


@pytest.fixture
def proxy(seaweed):
    with FaultProxy(seaweed) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def bucket(seaweed):
    bucket = seaweed.create_bucket()
    seaweed.put(bucket, KEY, pattern(0, SIZE))
    return bucket


@pytest.fixture
def client(seaweed, proxy):
    config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    client = boto3.client(
        "s3",
        endpoint_url=proxy.url,
        region_name=seaweed.region,
        aws_access_key_id=seaweed.access_key,
        aws_secret_access_key=seaweed.secret_key,
        config=config,
    )
    yield client
    client.close()


@pytest.fixture
def get(seaweed, proxy, bucket):
    """A ranged GET over a bare connection, which forgives nothing and retries nothing."""
    url = seaweed.shared_client.generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": KEY}
    )
    upstream = seaweed.endpoint_url.partition("//")[2]
    target = url.partition(upstream)[2]
    connection = http.client.HTTPConnection(proxy.url.partition("//")[2], timeout=20)

    def get(range_header="bytes=1000-200999"):
        connection.request("GET", target, headers={"Host": upstream, "Range": range_header})
        return connection.getresponse()

    yield get
    connection.close()


def test_signed_requests_pass_untouched_and_are_logged(client, proxy, bucket):
    client.put_object(Bucket=bucket, Key="new", Body=pattern(0, SIZE, 1))
    reply = client.get_object(Bucket=bucket, Key="new", Range="bytes=10-99999")
    check(reply["Body"].read(), 10, 1)
    assert client.head_object(Bucket=bucket, Key=KEY)["ContentLength"] == SIZE
    client.list_objects_v2(Bucket=bucket, Prefix="a b")
    put, get, head, listing = proxy.requests
    assert (put.method, put.body, put.path) == ("PUT", SIZE, f"/{bucket}/new")
    assert (get.status, get.range, get.sent) == (206, "bytes=10-99999", 99_990)
    assert (head.method, head.path, head.sent) == ("HEAD", f"/{bucket}/{KEY}", 0)
    assert listing.query["prefix"] == "a b"
    assert proxy.matching(method="GET", path="new$") == [get]


def test_a_status_is_given_so_many_times_after_so_many(client, proxy, bucket):
    fault = Fault(status=503, body=s3_error("SlowDown"), headers={"Retry-After": "7"})
    rule = proxy.rule(fault, method="HEAD", path="a b", times=2, skip=1)
    got = []
    for _ in range(4):
        try:
            got.append(client.head_object(Bucket=bucket, Key=KEY)["ResponseMetadata"])
        except ClientError as error:
            got.append(error.response["ResponseMetadata"])
    assert [reply["HTTPStatusCode"] for reply in got] == [200, 503, 503, 200]
    assert got[1]["HTTPHeaders"]["retry-after"] == "7"
    assert rule.hits == 2


def test_the_error_body_is_of_the_servers_kind(client, proxy, bucket):
    proxy.rule(Fault(status=503, body=s3_error("SlowDown", "slower")))
    with pytest.raises(ClientError) as caught:
        client.list_objects_v2(Bucket=bucket)
    assert caught.value.response["Error"]["Code"] == "SlowDown"


def test_ignored_range(get, client, proxy, bucket):
    proxy.rule(Fault(ignore_range=True))
    reply = get()
    assert (reply.status, reply.getheader("Content-Range")) == (200, None)
    check(reply.read())
    reply = client.get_object(Bucket=bucket, Key=KEY, Range="bytes=5-9")  # Range is signed here
    assert len(reply["Body"].read()) == SIZE


def test_content_range_lies(get, proxy):
    proxy.rule(Fault(shift_content_range=8), times=1)
    reply = get()
    assert reply.getheader("Content-Range") == f"bytes 1008-201007/{SIZE}"
    check(reply.read(), 1000)
    proxy.rule(Fault(drop_content_range=True))
    reply = get()
    assert (reply.status, reply.getheader("Content-Range")) == (206, None)
    reply.read()


@pytest.mark.parametrize("delta", [-100, 100])
def test_wrong_length(get, proxy, delta):
    proxy.rule(Fault(length_delta=delta))
    reply = get()
    body = reply.read()
    assert len(body) == int(reply.getheader("Content-Length")) == 200_000 + delta
    check(body[:200_000], 1000)


def test_a_flipped_bit(get, proxy):
    proxy.rule(Fault(corrupt_at=70_000))
    body = get().read()
    check(body[:70_000], 1000)
    check(body[70_001:], 71_001)
    assert body[70_000] ^ 1 == pattern(71_000, 1)[0]


def test_truncated_body(get, proxy):
    proxy.rule(Fault(truncate_after=70_001))
    with pytest.raises(http.client.IncompleteRead) as caught:
        get().read()
    assert caught.value.partial == pattern(1000, 70_001)


@pytest.mark.parametrize("fault", [Fault(reset_before=True), Fault(reset_after=70_001)])
def test_reset(get, proxy, fault):
    proxy.rule(fault, times=1)
    with pytest.raises(ConnectionResetError):
        get().read()
    assert proxy.requests[0].sent == (fault.reset_after or 0)


def test_a_stalled_body_goes_on_when_released(get, proxy):
    rule = proxy.rule(Fault(stall_after=70_001))
    reply = get()
    first = reply.read(70_001)
    assert proxy.requests[0].sent == 70_001
    proxy.release(rule)
    check(first + reply.read(), 1000)


def test_chunked_body(get, proxy):
    proxy.rule(Fault(chunked=True))
    reply = get()
    assert reply.getheader("Content-Length") is None
    check(reply.read(), 1000)


def test_redirect(get, proxy):
    proxy.rule(Fault(redirect="http://127.0.0.1:1/x", headers={"x-amz-bucket-region": "eu"}))
    reply = get()
    assert (reply.status, reply.getheader("Location")) == (307, "http://127.0.0.1:1/x")
    assert reply.getheader("x-amz-bucket-region") == "eu"
    reply.read()


def test_connection_is_kept_unless_told(proxy, bucket):
    address = ("127.0.0.1", int(proxy.url.rpartition(":")[2]))
    request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    proxy.rule(Fault(close_after=True), skip=2)
    with socket.create_connection(address, timeout=20) as sock:
        for _ in range(3):
            sock.sendall(request)
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        assert sock.recv(4096) == b""


def test_the_host_goes_down_and_comes_up_again(client, proxy, get):
    proxy.rule(Fault(hang=True), times=1)
    url = proxy.url
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=20) as waiting:
        waiting.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        proxy.wait_for(1)
        proxy.go_down()
        with pytest.raises(ConnectionResetError):
            waiting.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=20)
    proxy.come_up()
    assert proxy.url == url
    check(get().read(), 1000)


def test_bandwidth_is_shared_by_all_replies(proxy):
    proxy.bandwidth = 1000.0
    first = proxy._pacer.reserve(500)
    assert first == pytest.approx(0.5)
    assert proxy._pacer.reserve(500) > first + 0.4


def test_it_ends_though_a_client_does_not_read(seaweed, bucket):
    seaweed.put(bucket, "big", pattern(0, 32 << 20))
    target = seaweed.shared_client.generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": "big"}
    ).partition(seaweed.endpoint_url)[2]
    with FaultProxy(seaweed) as proxy:
        sock = socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2])))
        host = seaweed.endpoint_url.partition("//")[2]
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
    sock.close()


def test_it_speaks_tls(seaweed, bucket, tmp_path):
    authority = LocalAuthority(tmp_path)
    target = seaweed.shared_client.generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": KEY}
    ).partition(seaweed.endpoint_url)[2]
    context = ssl.create_default_context(cafile=authority.ca_bundle)
    with FaultProxy(seaweed, tls=authority.server_context()) as proxy:
        host = proxy.url.partition("https://")[2]
        headers = {"Host": seaweed.endpoint_url.partition("//")[2]}
        connection = http.client.HTTPSConnection(host, timeout=20, context=context)
        connection.request("GET", target, headers=headers)
        check(connection.getresponse().read())
        proxy.rule(Fault(reset_after=70_001))
        connection.request("GET", target, headers=headers)
        # Python up to 3.12 takes RST under TLS for the end of the stream.
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            connection.getresponse().read()
        connection.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(
                socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2]))),
                server_hostname="localhost",
            )
