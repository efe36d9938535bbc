"""A directory keeps the contract of every store, and never shows what lies outside."""

from __future__ import annotations

import os
import shutil
import socket

import pytest
import trio

from tiercache.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    OriginConfigError,
    OriginUnavailableError,
)
from tiercache.origin.posix import PosixOrigin
from tiercache.testing.data import check, pattern
from tiercache.testing.origin_suite import OriginSuite, names, pages, read
from tiercache.types import MIB


class DirectoryStore:
    def __init__(self, root):
        self.root = os.fsencode(root)
        self.origin = PosixOrigin(root)

    def path(self, key):
        return os.path.join(self.root, key)

    def put(self, key, data):
        path = self.path(key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)

    def delete(self, key):
        os.unlink(self.path(key))

    def can_hold(self, key):
        return True


@pytest.fixture
def store(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    return DirectoryStore(root)


class TestDirectory(OriginSuite):
    @pytest.fixture
    def store(self, store):
        return store


async def test_empty_directories_are_prefixes(store):
    os.makedirs(store.path(b"a/b"))
    assert await names(store.origin, b"") == ([], [b"a/"])
    assert await names(store.origin, b"a/b/") == ([], [])
    assert await names(store.origin, b"", delimiter=False) == ([], [])


async def test_names_that_are_no_text(store):
    key = b"\xff\xfe/\x80"
    store.put(key, b"abc")
    assert await names(store.origin, b"") == ([], [b"\xff\xfe/"])
    assert bytes(await read(store.origin, await store.origin.head(key))) == b"abc"


@pytest.mark.parametrize(
    "key",
    [b"../secret", b"d/../../secret", b"..", b".", b"/etc/passwd", b"d//f", b"d/./f", b"a\0b", b""],
)
async def test_b11_no_key_leads_out_of_the_root(store, tmp_path, key):
    (tmp_path / "secret").write_bytes(b"secret")
    store.put(b"d/f", b"abc")
    with pytest.raises(ObjectNotFoundError):
        await store.origin.head(key)
    with pytest.raises(ObjectNotFoundError):
        await store.origin.get_range(key, "", 0, memoryview(bytearray(1)))
    assert await names(store.origin, key + b"/") == ([], [])


async def test_links_inside_are_followed_and_links_outside_hidden(store, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    (tmp_path / "rootlike").mkdir()  # a sibling whose path starts like the root's
    store.put(b"d/f", b"abc")
    root = os.fsdecode(store.root)
    for name, target in {
        "file": "d/f",
        "dir": "d",
        "absolute": f"{root}/d/f",
        "dangling": "nothing",
        "self": "self",
        "up": "..",
        "outside": "../outside",
        "secret": "../outside/secret",
        "sibling": "../rootlike",
        "passwd": "/etc/passwd",
    }.items():
        os.symlink(target, f"{root}/{name}")
    assert await names(store.origin, b"") == ([b"absolute", b"file"], [b"d/", b"dir/"])
    assert await names(store.origin, b"dir/") == ([b"dir/f"], [])
    assert bytes(await read(store.origin, await store.origin.head(b"dir/f"))) == b"abc"
    for key in (
        b"secret",
        b"outside/secret",
        b"passwd",
        b"self",
        b"dangling",
        b"up/outside/secret",
    ):
        with pytest.raises(ObjectNotFoundError):
            await store.origin.head(key)
    assert await names(store.origin, b"outside/") == ([], [])


async def test_links_that_lead_back_do_not_make_an_endless_tree(store):
    root = os.fsdecode(store.root)
    store.put(b"a/f", b"1")
    store.put(b"b/g", b"2")
    os.symlink(".", f"{root}/a/here")
    os.symlink("..", f"{root}/a/above")
    os.symlink("../b", f"{root}/a/x")
    os.symlink("../a", f"{root}/b/y")
    keys, _ = await names(store.origin, b"", delimiter=False)
    assert keys == [b"a/f", b"a/x/g", b"b/g", b"b/y/f"]


async def test_special_files_are_hidden_and_never_opened(store):
    os.mkfifo(store.path(b"pipe"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(store.path(b"socket"))
        store.put(b"file", b"abc")
        assert await names(store.origin, b"") == ([b"file"], [])
        for key in (b"pipe", b"socket"):
            with pytest.raises(ObjectNotFoundError):
                await store.origin.get_range(key, "", 0, memoryview(bytearray(1)))


@pytest.mark.parametrize("delimiter", [True, False])
async def test_a_listing_goes_on_while_names_come_and_go(store, delimiter):
    for number in range(20):
        store.put(b"d/%02d" % number, b"")
    first = await store.origin.list(b"d/", delimiter=delimiter, limit=5)
    store.delete(b"d/04")
    store.delete(b"d/05")
    resumed = PosixOrigin(os.fsdecode(store.root))  # one that knows nothing of the first page
    for origin in (store.origin, resumed):
        rest = await origin.list(b"d/", first.token, delimiter=delimiter)
        assert [info.key for info in rest.objects] == [b"d/%02d" % n for n in range(6, 20)]
    shutil.rmtree(store.path(b"d"))
    assert (await resumed.list(b"d/", first.token, delimiter=delimiter)).objects == []


async def test_a_large_directory_in_small_pages(store):
    os.makedirs(store.path(b"d"))
    for number in range(3000):
        os.close(os.open(store.path(b"d/%d" % number), os.O_CREAT))
    for delimiter in (True, False):
        keys, _ = await names(store.origin, b"d/", delimiter=delimiter, limit=700)
        assert len(keys) == 3000
    assert store.origin._lister._snapshots._count == 0


async def test_a_page_holds_a_thousand_at_most(store):
    os.makedirs(store.path(b"d"))
    for number in range(1001):
        os.close(os.open(store.path(b"d/%d" % number), os.O_CREAT))
    first, second = await pages(store.origin, b"d/", limit=5000)
    assert (len(first.objects), len(second.objects)) == (1000, 1)


async def test_a06_a_file_changed_while_it_is_read(store):
    store.put(b"k", pattern(0, 4 * MIB, 1))
    info = await store.origin.head(b"k")
    into = memoryview(bytearray(4 * MIB))
    reported = []

    def overwrite(filled):
        reported.append(filled)
        if len(reported) == 2:
            with open(store.path(b"k"), "r+b") as file:
                file.write(pattern(0, 4 * MIB, 2))
            os.utime(store.path(b"k"), ns=(info.mtime_ns, info.mtime_ns))  # ctime tells

    with pytest.raises(ObjectChangedError):
        await store.origin.get_range(b"k", info.etag, 0, into, overwrite)
    check(into[: reported[-1]], 0, 1)


async def test_a_file_replaced_by_rename_keeps_its_old_bytes_to_itself(store):
    store.put(b"k", pattern(0, 1000, 1))
    info = await store.origin.head(b"k")
    store.put(b"new", pattern(0, 1000, 2))
    os.utime(store.path(b"new"), ns=(info.mtime_ns, info.mtime_ns))
    os.rename(store.path(b"new"), store.path(b"k"))
    with pytest.raises(ObjectChangedError):
        await read(store.origin, info)


async def test_a08_a_root_that_is_gone_is_no_empty_tree(store):
    store.put(b"k", b"abc")
    await store.origin.head(b"k")
    os.rename(store.root, store.root + b".gone")
    for call in (
        lambda: store.origin.list(b""),
        lambda: store.origin.list(b"d/"),
        lambda: store.origin.head(b"k"),
        lambda: store.origin.get_range(b"k", "", 0, memoryview(bytearray(1))),
    ):
        with pytest.raises(OriginUnavailableError):
            await call()


async def test_a08_a_share_that_is_no_longer_mounted_is_no_empty_tree(store):
    store.put(b"k", b"abc")
    await store.origin.head(b"k")
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    await trio.run_process(["mount", "-t", "tmpfs", "none", store.root])
    try:
        with pytest.raises(OriginUnavailableError, match="another device"):
            await store.origin.list(b"")
        with pytest.raises(OriginUnavailableError, match="another device"):
            await store.origin.head(b"k")
    finally:
        await trio.run_process(["umount", "-l", store.root])


async def test_what_may_not_be_read_is_denied_not_absent(store):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    store.put(b"k", b"abc")
    info = await store.origin.head(b"k")
    os.chmod(store.path(b"k"), 0)
    info = await store.origin.head(b"k")
    with pytest.raises(AccessDeniedError):
        await store.origin.get_range(b"k", info.etag, 0, memoryview(bytearray(3)))


@pytest.mark.parametrize("kind", ["missing", "file"])
async def test_check_says_in_one_line_what_is_wrong(tmp_path, kind):
    root = tmp_path / "some where"
    if kind == "file":
        root.write_bytes(b"")
    with pytest.raises(OriginConfigError) as caught:
        await PosixOrigin(root).check()
    assert "some%20where" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_urls(tmp_path):
    root = tmp_path / "a b%"
    root.mkdir()
    origin = PosixOrigin.from_url(f"file://{tmp_path}/a%20b%25")
    await origin.check()
    assert PosixOrigin.from_url(origin.name).identity == origin.identity
    for url in ("file://host/dir", "file:relative", "s3://bucket", "file:///a?b", "file:///a#b"):
        with pytest.raises(OriginConfigError):
            PosixOrigin.from_url(url)


async def test_a_blocked_file_system_does_not_hold_a_cancelled_lookup(store):
    release = trio.Event()
    origin = PosixOrigin(os.fsdecode(store.root), threads=1)
    await origin._limiter.acquire_on_behalf_of(release)  # as a thread that never comes back
    with trio.CancelScope() as scope:
        scope.cancel()
        await origin.head(b"k")
    assert scope.cancelled_caught
