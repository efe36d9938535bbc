import pytest
import trio.testing

from tiercache.errors import (
    AccessDeniedError,
    NameTooLongError,
    NotDirectoryError,
    OriginUnavailableError,
)
from tiercache.testing.data import check
from tiercache.types import Kind


async def test_b01_empty_components_are_hidden_and_disturb_nobody(trees):
    for key, body in ((b"a//b", b"1"), (b"a///c", b"2"), (b"a/b", b"3"), (b"/x", b"4")):
        trees.origin.put(key, body)
    async with trees.open() as tree:
        assert await tree.ls() == [b"a"]
        assert await tree.ls(b"a") == [b"b"]
        assert await tree.cat(b"a/b") == b"3"
        assert tree.stack.namespace.stats.hidden_keys == 2


async def test_b03_the_directory_wins_and_the_file_comes_back(trees):
    for key in (b"x", b"x/y", b"x-", b"x!", b"x.", b"x0"):
        trees.origin.put(key, key)
    async with trees.open() as tree:
        assert await tree.ls() == [b"x", b"x!", b"x-", b"x.", b"x0"]
        assert (await tree.entry(b"x")).inode.kind is Kind.DIRECTORY
        assert await tree.ls(b"x") == [b"y"]
        trees.origin.delete(b"x/y")
        tree.clock.now += 61
        assert await tree.cat(b"x") == b"x"
        assert await tree.ls() == [b"x", b"x!", b"x-", b"x.", b"x0"]


async def test_b03_across_pages_and_by_lookup_alone(trees):
    trees.origin.put(b"x", b"file")
    trees.origin.put(b"x/y", b"below")
    for i in range(2500):
        trees.origin.put(b"x!%04d" % i, b"")
    async with trees.open() as tree:
        assert (await tree.entry(b"x")).inode.kind is Kind.DIRECTORY
        names = await tree.ls()
        assert len(names) == len(set(names)) == 2501
        assert (await tree.entry(b"x")).inode.kind is Kind.DIRECTORY


async def test_b04_markers_are_directories_whatever_they_hold(trees):
    trees.origin.put(b"d/", b"12345")
    trees.origin.put(b"e/", b"")
    trees.origin.put(b"e/f", b"x")
    async with trees.open() as tree:
        assert await tree.ls() == [b"d", b"e"]
        assert await tree.ls(b"d") == []
        assert await tree.ls(b"e") == [b"f"]
        assert tree.stack.namespace.stats.hidden_keys == 0


async def test_b05_implicit_directories_need_no_listing_before(trees):
    trees.origin.put(b"p/q/r/f", b"deep")
    trees.origin.put(b"foo", b"1")
    trees.origin.put(b"foobar/x", b"2")
    async with trees.open() as tree:
        assert (await tree.entry(b"p/q/r/f")).inode.size == 4
        assert trees.origin.count("list") <= 4 and trees.origin.count("head") == 0
        assert (await tree.entry(b"foob")).inode is None


@pytest.mark.parametrize(
    "name", [b"a\rb", b"a\nb", b"a\tb", b"x\x13y", b"\xff", b" ", b"%41", b"+"]
)
async def test_b06_odd_names_are_their_own_bytes(trees, name):
    trees.origin.put(b"d/" + name, b"odd")
    trees.origin.put(b"d/ok", b"ok")
    async with trees.open() as tree:
        assert set(await tree.ls(b"d")) == {name, b"ok"}
        assert await tree.cat(b"d/" + name) == b"odd"


async def test_b10_long_components(trees):
    for length in (254, 255, 256, 300):
        trees.origin.put(b"n" * length, b"x")
    trees.origin.put("é".encode() * 127, b"x")
    deep = b"/".join([b"d" * 250] * 4) + b"/" + b"e" * 20
    assert len(deep) == 1024
    trees.origin.put_pattern(deep, 3_000_000)
    async with trees.open() as tree:
        assert sorted(map(len, await tree.ls())) == [250, 254, 254, 255]
        with pytest.raises(NameTooLongError):
            tree.fs.lookup(1, b"n" * 256)
        check(await tree.cat(deep))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert tree.stack.store.complete((await tree.entry(deep)).inode)


async def test_b11_dots_never_escape(trees):
    for key in (b"a/./b", b"a/../c", b"../d", b"./e", b"a/ok"):
        trees.origin.put(key, b"x")
    async with trees.open() as tree:
        assert await tree.ls() == [b"a"]
        assert await tree.ls(b"a") == [b"ok"]


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
async def test_c05_every_name_beyond_a_page(trees, count):
    for i in range(count):
        trees.origin.put(b"k%05d" % i, b"")
    async with trees.open() as tree:
        assert await tree.ls() == [b"k%05d" % i for i in range(count)]
    async with trees.open() as tree:
        if count:
            assert (await tree.entry(b"k%05d" % (count - 1))).inode is not None


async def test_names_of_a_large_directory_cost_one_request_each(trees):
    for i in range(3000):
        trees.origin.put(b"k%05d" % i, b"")
    async with trees.open() as tree:
        await tree.entry(b"k00000")
        trees.origin.calls.clear()
        for i in (2000, 2999):
            assert (await tree.entry(b"k%05d" % i)).inode is not None
        assert (await tree.entry(b"missing")).inode is None
        assert len(trees.origin.calls) == 3


async def test_a09_absence_ends_with_its_own_ttl_however_often_it_is_asked(trees):
    async with trees.open(negative_ttl_s=2.0) as tree:
        for _ in range(19):
            assert (await tree.entry(b"d/x")).inode is None
            tree.clock.now += 0.1
        trees.origin.put(b"d/x", b"here")
        tree.clock.now += 0.2
        assert await tree.cat(b"d/x") == b"here"


async def test_a_listing_that_shows_a_name_ends_its_absence(trees):
    async with trees.open(metadata_ttl_s=1.0, negative_ttl_s=3600.0) as tree:
        assert (await tree.entry(b"x")).inode is None
        trees.origin.put(b"x", b"1")
        tree.clock.now += 2
        assert await tree.ls() == [b"x"]
        assert await tree.cat(b"x") == b"1"


async def test_strict_asks_every_time(trees):
    trees.origin.put(b"f", b"1")
    async with trees.open(consistency="strict") as tree:
        assert await tree.cat(b"f") == b"1"
        trees.origin.put(b"f", b"22")
        assert await tree.cat(b"f") == b"22"
        trees.origin.delete(b"f")
        assert (await tree.entry(b"f")).inode is None


@pytest.mark.allow_warnings
async def test_strict_never_uses_what_it_cannot_confirm(trees):
    trees.origin.put(b"f", b"1")
    async with trees.open(consistency="strict") as tree:
        await tree.cat(b"f")
        tree.faults.fail("list", OriginUnavailableError("down"), times=None)
        with pytest.raises(OriginUnavailableError):
            await tree.entry(b"f")


async def test_immutable_asks_once_a_day(trees):
    trees.origin.put(b"f", b"1")
    async with trees.open(consistency="immutable") as tree:
        await tree.cat(b"f")
        tree.clock.now += 80_000
        trees.origin.calls.clear()
        await tree.cat(b"f")
        assert not trees.origin.calls


async def test_files_are_reachable_where_listing_is_denied(trees):
    trees.origin.put(b"f", b"public")
    async with trees.open() as tree:
        tree.faults.fail("list", AccessDeniedError("no"), times=None)
        assert await tree.cat(b"f") == b"public"
        assert (await tree.entry(b"g")).inode is None
        with pytest.raises(AccessDeniedError):
            await tree.ls()


async def test_a_clock_set_back_makes_nothing_fresh_for_ever(trees):
    trees.origin.put(b"f", b"1")
    async with trees.open() as tree:
        await tree.cat(b"f")
        tree.clock.now -= 86_400
        trees.origin.put(b"f", b"22")
        assert await tree.cat(b"f") == b"22"


async def test_k03_listings_survive_a_restart_within_their_ttl(trees):
    for i in range(1500):
        trees.origin.put(b"k%d" % i, b"")
    async with trees.open() as tree:
        first = await tree.ls()
    trees.origin.calls.clear()
    async with trees.open() as tree:
        assert await tree.ls() == first
        assert not trees.origin.calls
        tree.clock.now += 61
        assert await tree.ls() == first
        assert trees.origin.calls


async def test_readdir_offsets_hold_while_the_directory_changes(trees):
    for i in range(50):
        trees.origin.put(b"k%02d" % i, b"")
    async with trees.open() as tree:
        handle = await tree.fs.opendir(1)
        first = list(tree.fs.readdir(1, handle, 0))[:12]
        trees.origin.put(b"aaa", b"")
        trees.origin.delete(b"k40")
        tree.clock.now += 61
        assert b"aaa" in await tree.ls()
        rest = [e.name for e in tree.fs.readdir(1, handle, first[-1].next_offset)]
        again = [e.name for e in tree.fs.readdir(1, handle, 0)]
        assert [e.name for e in first] + rest == again
        assert b"aaa" not in again


async def test_a_directory_handle_of_a_dead_worker_is_answered(trees):
    trees.origin.put(b"k1", b"")
    trees.origin.put(b"k2", b"")
    async with trees.open() as tree:
        handle = await tree.fs.opendir(1)
        offset = list(tree.fs.readdir(1, handle, 0))[2].next_offset
    async with trees.open(fresh=False) as tree:
        assert [e.name for e in tree.fs.readdir(1, handle, offset)] == [b"k2"]


async def test_inode_numbers_survive_a_restart(trees):
    trees.origin.put_pattern(b"d/f", 2_000_000)
    async with trees.open() as tree:
        ino = await tree.open(b"d/f")
    async with trees.open(fresh=False) as tree:
        check(await tree.read(ino))
        assert await tree.ino(b"d/f") == ino


async def test_j02_directories_are_never_from_1970(trees):
    newest = trees.origin.put(b"d/b", b"").mtime_ns
    trees.origin.put(b"e/f/g", b"")
    async with trees.open() as tree:
        await tree.ls(b"d")
        assert (await tree.entry(b"d")).inode.mtime_ns == newest
        for path in (b"e", b"e/f"):
            assert (await tree.entry(path)).inode.mtime_ns > 10**18


async def test_a_file_is_no_directory(trees):
    trees.origin.put(b"f", b"x")
    async with trees.open() as tree:
        ino = await tree.ino(b"f")
        with pytest.raises(NotDirectoryError):
            tree.fs.opendir(ino)
        with pytest.raises(NotDirectoryError):
            await tree.entry(b"f/g")


async def test_j03_statfs_is_large_finite_and_asks_nothing(trees):
    async with trees.open() as tree:
        facts = tree.fs.statfs()
        assert facts.name_max == 255
        assert 0 < facts.block_size * facts.blocks < 1 << 62
        assert not trees.origin.calls
