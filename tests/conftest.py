"""Fixtures every test may use: real S3 servers, buckets, and silence of our loggers."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tiercache.testing.moto import MotoServer
from tiercache.testing.s3server import S3Server
from tiercache.testing.seaweed import SeaweedServer

pytest.register_assert_rewrite("tiercache.testing.origin_suite")


@pytest.fixture(scope="session")
def seaweed() -> Iterator[SeaweedServer]:
    """A real S3 server for the whole run, started when the first test asks for it."""
    with SeaweedServer() as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoServer]:
    """moto on a thread for the whole run, started when the first test asks for it."""
    with MotoServer() as server:
        yield server


@pytest.fixture
def recipe() -> dict[str, Any]:
    """What the program in docs/PREFETCH.md defines, which writes plans."""
    pytest.importorskip("torch", reason="extra `loaders`: torch")
    page = Path(__file__).parents[1] / "docs" / "PREFETCH.md"
    [code] = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.fixture
def make_bucket() -> Callable[..., str]:
    """`make_bucket(server, {key: body})` gives a new bucket with these objects."""

    def make(server: S3Server, objects: dict[bytes, bytes] | None = None) -> str:
        bucket = server.create_bucket()
        for key, body in (objects or {}).items():
            server.put(bucket, key, body)
        return bucket

    return make


@pytest.fixture(autouse=True)
def _no_unexpected_warnings(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """Fail a test in which tiercache warned, unless it is marked `allow_warnings`."""
    yield
    if request.node.get_closest_marker("allow_warnings"):
        return
    unexpected = [
        f"{record.name}: {record.getMessage()}"
        for phase in ("setup", "call")
        for record in caplog.get_records(phase)
        if record.levelno >= logging.WARNING and record.name.partition(".")[0] == "tiercache"
    ]
    if unexpected:
        pytest.fail("unexpected warnings were logged:\n" + "\n".join(unexpected), pytrace=False)
