"""The memory origin keeps the contract of every store."""

from __future__ import annotations

import pytest

from tiercache.errors import ObjectArchivedError
from tiercache.testing.memory import MemoryOrigin
from tiercache.testing.origin_suite import OriginSuite, read


class MemoryStore:
    def __init__(self):
        self.origin = MemoryOrigin()
        self.put = self.origin.put
        self.delete = self.origin.delete

    def can_hold(self, key):
        return True


class TestMemory(OriginSuite):
    @pytest.fixture
    def store(self):
        return MemoryStore()


async def test_the_same_calls_give_the_same_tree():
    first, second = MemoryOrigin(), MemoryOrigin()
    for origin in (first, second):
        origin.put(b"a", b"1")
        origin.put_pattern(b"b", 10, seed=3)
    assert [first.info(key) for key in (b"a", b"b")] == [second.info(key) for key in (b"a", b"b")]


async def test_archived_objects_are_listed_but_not_read():
    origin = MemoryOrigin()
    info = origin.put(b"k", b"abc", archived=True)
    assert [listed.archived for listed in (await origin.list(b"")).objects] == [True]
    with pytest.raises(ObjectArchivedError):
        await origin.get_range(b"k", info.etag, 0, memoryview(bytearray(3)))


async def test_corruption_is_told_to_nobody():
    origin = MemoryOrigin()
    info = origin.put(b"k", bytes(1000))
    origin.corrupt(b"k", 700)
    data = await read(origin, await origin.head(b"k"))
    assert [at for at, byte in enumerate(data) if byte] == [700]
    assert origin.info(b"k") == info
