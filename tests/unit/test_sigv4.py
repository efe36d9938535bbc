"""The signer gives what botocore's gives, byte for byte."""

from __future__ import annotations

import calendar
import time

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiercache.origin.sigv4 import (
    UNSIGNED_PAYLOAD,
    Credentials,
    Signer,
    encode_query,
    quote_key,
)

PAIRS = st.lists(
    st.tuples(st.sampled_from(["prefix", "marker", "list-type", "a", "A", "b-c"]), st.binary()),
    max_size=4,
)
TEXT = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/+=", min_size=1)
KEYS = st.one_of(
    st.binary(max_size=64),
    st.lists(st.sampled_from([b"a", b"..", b".", b"", b"%2F", b"+", b" ", b"~", "ü".encode()])).map(
        b"/".join
    ),
)


def oracle(credentials, region, method, url, headers):
    """What botocore signs; also when it thinks it is."""
    auth = botocore.auth.S3SigV4Auth(
        botocore.credentials.Credentials(
            credentials.access_key, credentials.secret_key, credentials.token
        ),
        "s3",
        region,
    )
    request = botocore.awsrequest.AWSRequest(method, url, dict(headers))
    auth.add_auth(request)
    stamp = time.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
    return request.headers, float(calendar.timegm(stamp))


@settings(max_examples=1000, deadline=None)
@given(
    credentials=st.builds(Credentials, TEXT, TEXT, st.one_of(st.none(), TEXT)),
    region=st.sampled_from(["us-east-1", "eu-central-1", "cn-north-1", "garage"]),
    method=st.sampled_from(["GET", "HEAD"]),
    host=st.sampled_from(["bucket.s3.amazonaws.com", "127.0.0.1:9000", "[::1]:80"]),
    scheme=st.sampled_from(["http", "https"]),
    key=KEYS,
    query=PAIRS,
    payer=st.booleans(),
)
def test_signature_equals_botocore(credentials, region, method, host, scheme, key, query, payer):
    path, text = "/bucket/" + quote_key(key), encode_query(query)
    headers = {"host": host, **({"x-amz-request-payer": "requester"} if payer else {})}
    expected, at = oracle(credentials, region, method, f"{scheme}://{host}{path}?{text}", headers)
    signed = Signer(region).sign(credentials, (method, path, text), headers, at)
    assert signed["authorization"] == expected["Authorization"]
    sent = {name.lower(): value for name, value in expected.items()}
    assert signed == {"host": host, **sent}


def test_keys_are_never_normalised():
    assert quote_key(b"a//b/./../c") == "a//b/./../c"
    assert quote_key(b"\x00\xff %+~?#&='\"") == "%00%FF%20%25%2B~%3F%23%26%3D%27%22"


def test_query_is_sorted_and_escaped_once():
    pairs = [("prefix", b"a/b c+%20"), ("delimiter", b"/"), ("list-type", b"2")]
    assert encode_query(pairs) == "delimiter=%2F&list-type=2&prefix=a%2Fb%20c%2B%2520"


def test_the_cached_key_follows_day_and_secret():
    """Signing in turn for two days and secrets equals signing with fresh signers."""
    signer = Signer("us-east-1")
    line, headers = ("GET", "/b/k", ""), {"host": "h"}
    for _ in range(2):
        for at in (86399.0, 86400.0):
            for secret in ("one", "two"):
                credentials = Credentials("AK", secret)
                fresh = Signer("us-east-1").sign(credentials, line, headers, at)
                assert signer.sign(credentials, line, headers, at) == fresh


def test_an_unsigned_payload_is_said_and_signed():
    credentials, line, headers = Credentials("AK", "SK"), ("GET", "/k", ""), {"host": "h"}
    unsigned = Signer("us-east-1", payload=UNSIGNED_PAYLOAD).sign(credentials, line, headers, 0.0)
    empty = Signer("us-east-1").sign(credentials, line, headers, 0.0)
    assert unsigned["x-amz-content-sha256"] == UNSIGNED_PAYLOAD
    assert unsigned["authorization"] != empty["authorization"]


@pytest.mark.parametrize("shown", [repr, str])
def test_secrets_are_not_shown(shown):
    text = shown(Credentials("AK", "secret-key", "secret-token"))
    assert "AK" in text
    assert "secret" not in text
