"""Reading an endpoint URL."""

import pytest

from tiercache.errors import OriginConfigError
from tiercache.origin.s3_endpoint import split_endpoint


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@127.0.0.1:9000",
        "https://:hunter2@store",
        "ftp://user:hunter2@store",
        "http://user:hunter2@store:99999",
        "http://user:hunter2@store/?query",
    ],
)
def test_a_password_in_the_address_is_refused_and_not_repeated(url):
    with pytest.raises(OriginConfigError) as caught:
        split_endpoint(url)
    assert "hunter2" not in str(caught.value)


def test_an_address_that_is_none_is_named():
    with pytest.raises(OriginConfigError, match="'store:9000' is not of the form"):
        split_endpoint("store:9000")
