"""Real mounts by the real command, under both drivers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tiercache.testing.data import pattern
from tiercache.testing.faultproxy import FaultProxy
from tiercache.testing.mounting import CommandMount
from tiercache.testing.s3server import S3Server


@pytest.fixture(params=["kernel", "libfuse"])
def driver(request: pytest.FixtureRequest) -> str:
    return request.param


class Bucket:
    """A bucket of position-dependent objects, and who mounts it."""

    def __init__(self, server: S3Server, name: str, make_mount: Callable[..., CommandMount]):
        self.server = server
        self.name = name
        self.endpoint = server.endpoint_url
        self._make_mount = make_mount

    def put(self, key: str | bytes, size: int, seed: int = 0) -> None:
        self.server.put(self.name, key, pattern(0, size, seed))

    def delete(self, key: str | bytes) -> None:
        self.server.delete(self.name, key)

    def mount(self, *options: str, **keywords: object) -> CommandMount:
        mount = self.prepare(*options, **keywords)
        mount.mount()
        return mount

    def prepare(
        self, *options: str, driver: str = "kernel", prefix: str = "", cache: str = "cache"
    ) -> CommandMount:
        return self._make_mount(
            f"s3://{self.name}{prefix}",
            *options,
            driver=driver,
            cache=cache,
            endpoint=self.endpoint,
            env=self.server.env(),
        )


@pytest.fixture
def make_mount(tmp_path) -> Iterator[Callable[..., CommandMount]]:
    """`make_mount(source, *options)` prepares a mount that ends with the test."""
    with contextlib.ExitStack() as stack:

        def make(source, *options, driver="kernel", cache="cache", endpoint=None, env=None):
            mountpoint = tmp_path / "mnt"
            mountpoint.mkdir(exist_ok=True)
            given = ["--cache-dir", str(tmp_path / cache), "--cache-size", "1GiB"]
            given += ["--driver", driver, *(["--endpoint-url", endpoint] if endpoint else [])]
            mount = CommandMount(source, mountpoint, [*given, *options], env)
            stack.callback(mount.end)
            return mount

        yield make


@pytest.fixture
def bucket(seaweed, make_mount) -> Bucket:
    return Bucket(seaweed, seaweed.create_bucket(), make_mount)


@pytest.fixture
def proxy(bucket) -> Iterator[FaultProxy]:
    """Stands between the bucket and whoever mounts it; logs what they ask for."""
    with FaultProxy(bucket.server) as proxy:
        bucket.endpoint = proxy.url
        yield proxy
