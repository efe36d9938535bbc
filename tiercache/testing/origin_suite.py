"""What every origin must do, as tests to inherit.

A store's own test file makes the store and inherits the rest:

    class TestMemory(OriginSuite):
        @pytest.fixture
        def store(self):
            return MemoryStore(MemoryOrigin())

`store` holds an origin over an empty prefix, and puts and deletes objects behind its back. What a
store cannot hold at all (two keys that are one name to a directory) it says by `can_hold`.
Needs pytest-trio in its automatic mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import pytest
import trio

from tiercache.errors import ObjectChangedError, ObjectNotFoundError
from tiercache.origin.protocol import Origin
from tiercache.testing.data import check, pattern
from tiercache.types import BLOCK_SIZE, MIB, ListPage, ObjectInfo

#: Around the sizes at which clients change their ways: nothing, one byte, small bodies, blocks.
SIZES = (0, 1, 65_535, 65_536, 65_537, 262_144, 262_145, BLOCK_SIZE - 1, BLOCK_SIZE, 3_670_017)

ODD_NAMES = (
    b"plain",
    b"with space",
    b" leading and trailing ",
    b"percent%41%2F%",
    b"plus+amp&eq=hash#question?semi;colon:at@",
    b"quote'double\"back`tick\\slash",
    b"<tag>&amp;]]>",
    b"~tilde-._!*()[]{}|^",
    b".hidden",
    b"...",
    "ünïcödé-日本-🙂".encode(),
    "cafe\u0301 not normalised".encode(),
    b"tab\there",
    b"return\rhere",
    b"newline\nhere",
    b"control\x01\x13\x1f\x7f",
    b"n" * 255,
)


class Store(Protocol):
    """An origin, and the hand that changes what it holds."""

    origin: Origin

    def put(self, key: bytes, data: bytes) -> None:
        """Store an object, over an older version if there is one."""

    def delete(self, key: bytes) -> None:
        """Remove an object."""

    def can_hold(self, key: bytes) -> bool:
        """Whether the server behind is able to store and list *key* at all."""


async def pages(
    origin: Origin, prefix: bytes, *, delimiter: bool = True, limit: int = 1000
) -> list[ListPage]:
    """All pages of a listing."""
    result = [await origin.list(prefix, delimiter=delimiter, limit=limit)]
    while (token := result[-1].token) is not None:
        result.append(await origin.list(prefix, token, delimiter=delimiter, limit=limit))
    return result


async def names(
    origin: Origin, prefix: bytes, *, delimiter: bool = True, limit: int = 1000
) -> tuple[list[bytes], list[bytes]]:
    """The sorted keys and prefixes of a listing; each must have come once."""
    found = await pages(origin, prefix, delimiter=delimiter, limit=limit)
    keys = sorted(info.key for page in found for info in page.objects)
    prefixes = sorted(prefix for page in found for prefix in page.prefixes)
    assert len(keys) == len(set(keys)), "a key was listed twice"
    assert len(prefixes) == len(set(prefixes)), "a prefix was listed twice"
    return keys, prefixes


async def read(
    origin: Origin, info: ObjectInfo, start: int = 0, size: int | None = None
) -> memoryview:
    """Bytes of the version *info* names; progress is checked on the way."""
    into = memoryview(bytearray(info.size - start if size is None else size))
    reports: list[int] = []
    await origin.get_range(info.key, info.etag, start, into, reports.append)
    assert reports == sorted(reports), "progress fell back"
    assert len(into) == 0 or reports[-1] == len(into), "progress did not reach the end"
    return into


class OriginSuite:
    """Inherit, and give it a fixture `store`."""

    # Listing

    async def test_check_is_content(self, store: Store) -> None:
        """A store that works passes its check and says what it is."""
        await store.origin.check()
        assert store.origin.name
        assert store.origin.identity
        assert store.origin.describe()["client"]

    async def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        """No objects, no prefixes, no token."""
        for delimiter in (True, False):
            page = await store.origin.list(b"", delimiter=delimiter)
            assert (list(page.objects), list(page.prefixes), page.token) == ([], [], None)

    async def test_prefixes_fold_what_lies_below(self, store: Store) -> None:
        """With a delimiter one level is seen, without it the whole tree."""
        _fill(store, [b"a", b"d/b", b"d/e/c", b"d/e/f/g", b"dd", b"h/i"])
        assert await names(store.origin, b"") == ([b"a", b"dd"], [b"d/", b"h/"])
        assert await names(store.origin, b"d/") == ([b"d/b"], [b"d/e/"])
        assert await names(store.origin, b"d") == ([b"dd"], [b"d/"])
        flat, none = await names(store.origin, b"d/", delimiter=False)
        assert (flat, none) == ([b"d/b", b"d/e/c", b"d/e/f/g"], [])

    async def test_a_prefix_without_objects_is_empty(self, store: Store) -> None:
        """Nothing starts with it: that is no error."""
        _fill(store, [b"a/b"])
        for prefix in (b"a/b/", b"b/", b"a/c", b"a/b/c/d"):
            assert await names(store.origin, prefix) == ([], [])

    @pytest.mark.parametrize("limit", [1, 2, 7, 1000])
    @pytest.mark.parametrize("delimiter", [True, False])
    async def test_pages_hold_all_of_it_once(
        self, store: Store, limit: int, delimiter: bool
    ) -> None:
        """However small the pages, no entry is lost, doubled or over the limit."""
        tree = [b"%s/%02d" % (d, i) for d in (b"p", b"p-", b"p.x", b"p0/q") for i in range(4)]
        _fill(store, [*tree, b"p!", b"p~"])
        expected = await names(store.origin, b"", delimiter=delimiter)
        if not delimiter:
            assert expected == (sorted([*tree, b"p!", b"p~"]), [])
        else:
            assert expected == ([b"p!", b"p~"], [b"p-/", b"p.x/", b"p/", b"p0/"])
        found = await pages(store.origin, b"", delimiter=delimiter, limit=limit)
        assert max(len(page.objects) + len(page.prefixes) for page in found) <= limit
        assert await names(store.origin, b"", delimiter=delimiter, limit=limit) == expected

    async def test_a_listing_describes_like_head(self, store: Store) -> None:
        """Size, ETag and key agree, so that no HEAD is needed after a LIST."""
        store.put(b"d/x", pattern(0, 12_345))
        (listed,) = (await store.origin.list(b"d/")).objects
        head = await store.origin.head(b"d/x")
        assert (listed.key, listed.size, listed.etag) == (b"d/x", 12_345, head.etag)
        assert (head.key, head.size, head.archived) == (b"d/x", 12_345, False)
        # HEAD gives whole seconds where a listing may give fractions.
        assert listed.mtime_ns // 10**9 == head.mtime_ns // 10**9
        assert '"' not in head.etag

    async def test_b06_odd_names_are_listed_and_read(self, store: Store) -> None:
        """Names are bytes: none is changed, and none makes the others vanish."""
        keys = [b"odd/" + name for name in ODD_NAMES if store.can_hold(b"odd/" + name)]
        for number, key in enumerate(keys):
            store.put(key, pattern(0, 100, number))
        assert await names(store.origin, b"odd/") == (sorted(keys), [])
        for number, key in enumerate(keys):
            check(await read(store.origin, await store.origin.head(key)), 0, number)

    async def test_odd_directories_are_listed(self, store: Store) -> None:
        """The same for components in the middle of a key."""
        keys = [b"odd/" + name + b"/x" for name in ODD_NAMES if store.can_hold(name + b"/x")]
        _fill(store, keys)
        assert await names(store.origin, b"odd/") == ([], sorted(key[:-1] for key in keys))
        for key in keys:
            assert await names(store.origin, key[:-1]) == ([key], [])

    # Reading

    @pytest.mark.parametrize("size", SIZES)
    async def test_every_size_is_read_whole(self, store: Store, size: int) -> None:
        """From nothing to several blocks."""
        store.put(b"k", pattern(0, size))
        info = await store.origin.head(b"k")
        assert info.size == size
        check(await read(store.origin, info))

    async def test_ranges_at_every_boundary(self, store: Store) -> None:
        """Starts and ends around blocks and ends of file."""
        size = 2 * BLOCK_SIZE + 17
        store.put(b"k", pattern(0, size, 5))
        info = await store.origin.head(b"k")
        edges = [0, 1, 65_536, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, size - 1, size]
        for start in edges:
            for end in (edge for edge in edges if edge > start):
                check(await read(store.origin, info, start, end - start), start, 5)

    async def test_an_empty_range_is_read_at_once(self, store: Store) -> None:
        """A buffer of no bytes is full, also at the end of the object."""
        store.put(b"k", b"abc")
        info = await store.origin.head(b"k")
        for start in (0, 3):
            await store.origin.get_range(b"k", info.etag, start, memoryview(bytearray()))

    async def test_only_the_buffer_is_written(self, store: Store) -> None:
        """Bytes around the caller's slice stay."""
        store.put(b"k", pattern(0, 1000))
        info = await store.origin.head(b"k")
        whole = bytearray(b"\xaa" * 300)
        await store.origin.get_range(b"k", info.etag, 500, memoryview(whole)[100:200])
        assert bytes(whole[:100]) == bytes(whole[200:]) == b"\xaa" * 100
        check(whole[100:200], 500)

    async def test_concurrent_ranges_do_not_mix(self, store: Store) -> None:
        """D16: parallel reads of several objects give each its own bytes."""
        size = BLOCK_SIZE + 4097
        for seed in range(4):
            store.put(b"k%d" % seed, pattern(0, size, seed))
        infos = [await store.origin.head(b"k%d" % seed) for seed in range(4)]

        async def one(seed: int, start: int) -> None:
            check(await read(store.origin, infos[seed], start, size - start), start, seed)

        async with trio.open_nursery() as nursery:
            for number in range(32):
                nursery.start_soon(one, number % 4, number * 4099)

    async def test_an_exception_of_progress_comes_back(self, store: Store) -> None:
        """What the caller's callback raises ends the transfer and is raised, whatever its kind."""
        store.put(b"k", pattern(0, 3 * MIB))
        info = await store.origin.head(b"k")

        def refuse(_filled: int) -> None:
            raise OSError("the disk is full")

        with pytest.raises(OSError, match="the disk is full"):
            await store.origin.get_range(b"k", info.etag, 0, memoryview(bytearray(3 * MIB)), refuse)
        check(await read(store.origin, info))

    async def test_after_cancellation_nothing_is_written(self, store: Store) -> None:
        """A cancelled read is over when it returns, and the next one works."""
        store.put(b"k", pattern(0, 4 * MIB))
        info = await store.origin.head(b"k")
        into = bytearray(4 * MIB)
        token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as scope:

            def stop(_filled: int) -> None:
                token.run_sync_soon(scope.cancel)  # from any thread, without waiting

            await store.origin.get_range(b"k", info.etag, 0, memoryview(into), stop)
        after = bytes(into)
        check(await read(store.origin, info))
        assert bytes(into) == after, "the buffer was written after the call returned"

    async def test_a_cancelled_call_asks_nothing(self, store: Store) -> None:
        """Every method is a checkpoint."""
        store.put(b"k", b"abc")
        info = await store.origin.head(b"k")
        for call in (
            lambda: store.origin.list(b""),
            lambda: store.origin.head(b"k"),
            lambda: store.origin.get_range(b"k", info.etag, 0, memoryview(bytearray(3))),
        ):
            with trio.CancelScope() as scope:
                scope.cancel()
                await call()
            assert scope.cancelled_caught

    # Versions

    async def test_a01_an_overwritten_object_is_never_mixed(self, store: Store) -> None:
        """The old ETag reads nothing of the new version."""
        store.put(b"k", pattern(0, 1000, 1))
        old = await store.origin.head(b"k")
        store.put(b"k", pattern(0, 1000, 2))
        into = bytearray(1000)
        with pytest.raises(ObjectChangedError):
            await store.origin.get_range(b"k", old.etag, 0, memoryview(into))
        new = await store.origin.head(b"k")
        assert new.etag != old.etag
        check(await read(store.origin, new), 0, 2)

    async def test_d11_an_object_that_shrank_has_changed(self, store: Store) -> None:
        """A range beyond the new end is a changed object, not a failure to retry for ever."""
        store.put(b"k", pattern(0, 100_000))
        old = await store.origin.head(b"k")
        store.put(b"k", b"")
        for start in (0, 50_000):
            with pytest.raises(ObjectChangedError):
                await store.origin.get_range(b"k", old.etag, start, memoryview(bytearray(100)))
        assert (await store.origin.head(b"k")).size == 0

    async def test_what_is_not_there_is_not_found(self, store: Store) -> None:
        """Neither a missing key nor a prefix is an object; a deleted one is no longer."""
        store.put(b"d/k", b"abc")
        info = await store.origin.head(b"d/k")
        for key in (b"nothing", b"d", b"d/nothing", b"d/k/x"):
            with pytest.raises(ObjectNotFoundError):
                await store.origin.head(key)
            # A server may have a folder there and say that it is not this version.
            with pytest.raises((ObjectNotFoundError, ObjectChangedError)):
                await store.origin.get_range(key, info.etag, 0, memoryview(bytearray(3)))
        store.delete(b"d/k")
        with pytest.raises(ObjectNotFoundError):
            await store.origin.head(b"d/k")
        with pytest.raises(ObjectNotFoundError):
            await store.origin.get_range(b"d/k", info.etag, 0, memoryview(bytearray(3)))


def _fill(store: Store, keys: Iterable[bytes]) -> None:
    for key in keys:
        store.put(key, key)
