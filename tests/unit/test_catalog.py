"""What the catalog promises of names, inodes, listings and the key-value space."""

import os
import threading

import pytest
import trio

from tiercache.catalog import Catalog, NewEntry
from tiercache.catalog.store import Store
from tiercache.config import CatalogConfig
from tiercache.errors import CatalogError, NotDirectoryError, ObjectChangedError
from tiercache.types import MIB, ROOT_INO, Inode, Kind

CONFIG = CatalogConfig(map_size=64 * MIB, sync_interval_s=0.1)
NOW = 1_800_000_000.0
NOW_NS = 1_800_000_000_000_000_000
TIB = 1 << 40


def file(name, etag="e1", size=10, mtime_ns=5, archived=False):
    return NewEntry(name, Kind.FILE, size, mtime_ns, etag, archived)


def directory(name, mtime_ns=0):
    return NewEntry(name, Kind.DIRECTORY, 0, mtime_ns, "", False)


def open_catalog(path, config=CONFIG, boot_id="boot", now=lambda: NOW):
    return Catalog.open(path, config, identity="s3://bucket", boot_id=boot_id, now=now)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalog"


@pytest.fixture
def catalog(path):
    catalog = open_catalog(path)
    yield catalog
    catalog.close(clean=True)


def put(catalog, entry, parent=ROOT_INO):
    catalog.put(parent, entry, NOW)
    return catalog.child(parent, entry.name).inode


def list_all(catalog, *pages, parent=ROOT_INO, listed_at=NOW):
    """One whole listing; returns the names re-pointed and the names gone."""
    listing = catalog.begin_listing(parent)
    changed = [name for page in pages for name in listing.add(page)]
    return changed, listing.finish(listed_at)


def names(catalog, parent=ROOT_INO):
    return [name for name, _ in catalog.children(parent)]


# -- lookups ---------------------------------------------------------------------------------------


def test_root_is_known_from_the_start(catalog):
    assert catalog.inode(ROOT_INO) == Inode(1, 1, Kind.DIRECTORY, 0, NOW_NS, "", b"")


def test_unknown_things_are_none(catalog):
    assert catalog.inode(77) is None
    assert catalog.child(ROOT_INO, b"x") is None
    assert catalog.listed_at(ROOT_INO) is None
    assert names(catalog) == []


def test_put_gives_name_inode_and_time(catalog):
    assert catalog.put(ROOT_INO, file(b"x", archived=True), 12.5) == []
    child = catalog.child(ROOT_INO, b"x")
    ino = child.inode.ino
    assert ino > ROOT_INO
    assert child.inode == Inode(ino, ROOT_INO, Kind.FILE, 10, 5, "e1", b"x", archived=True)
    assert child.seen_at == 12.5
    assert catalog.inode(ino) == child.inode


def test_keys_are_paths(catalog):
    outer = put(catalog, directory(b"a"))
    inner = put(catalog, directory(b"b"), outer.ino)
    leaf = put(catalog, file(b"\xff \xc3"), inner.ino)
    assert (outer.key, inner.key, leaf.key) == (b"a/", b"a/b/", b"a/b/\xff \xc3")
    assert leaf.parent == inner.ino


def test_children_come_in_name_order_and_from_one_directory(catalog):
    sub = put(catalog, directory(b"m"))
    put(catalog, file(b"in"), sub.ino)
    for name in (b"z", b"a", b"\xff", b"a.b", b"a" * 255):
        put(catalog, file(name))
    expected = sorted([b"z", b"a", b"\xff", b"a.b", b"a" * 255, b"m"])
    assert names(catalog) == expected
    assert names(catalog, sub.ino) == [b"in"]
    assert all(inode == catalog.child(1, name).inode for name, inode in catalog.children(1))


def test_children_may_be_mixed_with_writes(catalog):
    list_all(catalog, [file(b"%04d" % n) for n in range(2500)])
    seen = []
    for name, _ in catalog.children(ROOT_INO):
        seen.append(name)
        catalog.remove(ROOT_INO, b"%04d" % (2499 - len(seen)))
        catalog.put(ROOT_INO, file(b"~%d" % (len(seen) % 3)), NOW)
    assert seen == sorted(set(seen))
    assert {b"%04d" % n for n in range(1000)} <= set(seen)


def test_children_end_when_the_next_one_goes_away(catalog):
    list_all(catalog, [file(b"%04d" % n) for n in range(1001)])
    children = catalog.children(ROOT_INO)
    first = [next(children)[0] for _ in range(1000)]
    catalog.remove(ROOT_INO, b"1000")
    assert [name for name, _ in children] == []
    assert len(first) == 1000


@pytest.mark.parametrize("size", [0, 2**31 - 1, 2**32 + 1, 5 * TIB, 2**63 - 1])
def test_d10_sizes_are_64_bits(path, size):
    catalog = open_catalog(path)
    ino = put(catalog, file(b"x", size=size)).ino
    catalog.close(clean=False)
    catalog = open_catalog(path)
    assert catalog.inode(ino).size == size
    catalog.close(clean=True)


@pytest.mark.parametrize("etag", ["", "é", "\udcff", "a" * 70_000])
def test_any_etag_is_kept(catalog, etag):
    assert put(catalog, file(b"x", etag)).etag == etag


# -- versions --------------------------------------------------------------------------------------


def test_same_version_keeps_its_inode_and_takes_new_attributes(catalog):
    first = put(catalog, file(b"x", "e1", size=10, mtime_ns=5))
    assert catalog.put(ROOT_INO, file(b"x", "e1", size=11, mtime_ns=6, archived=True), NOW) == []
    again = catalog.child(ROOT_INO, b"x").inode
    assert again.ino == first.ino
    assert (again.size, again.mtime_ns, again.archived) == (11, 6, True)


def test_a01_another_etag_is_another_inode_and_the_old_one_stays(catalog):
    old = put(catalog, file(b"x", "e1"))
    assert catalog.put(ROOT_INO, file(b"x", "e2"), NOW) == [b"x"]
    new = catalog.child(ROOT_INO, b"x").inode
    assert new.ino != old.ino
    assert catalog.inode(old.ino) == old


def test_version_that_comes_back_has_its_old_inode(catalog):
    first = put(catalog, file(b"x", "e1"))
    second = put(catalog, file(b"x", "e2"))
    assert put(catalog, file(b"x", "e1")).ino == first.ino
    assert catalog.remove(ROOT_INO, b"x")
    assert put(catalog, file(b"x", "e2")).ino == second.ino


def test_same_etag_of_two_keys_is_two_inodes(catalog):
    assert put(catalog, file(b"x")).ino != put(catalog, file(b"y")).ino
    # Key and etag run together would be the same bytes.
    assert put(catalog, file(b"ab", "c")).ino != put(catalog, file(b"a", "bc")).ino


def test_directory_keeps_its_number_over_absence_but_not_its_listing(catalog):
    first = put(catalog, directory(b"d"))
    list_all(catalog, [file(b"f")], parent=first.ino)
    assert catalog.remove(ROOT_INO, b"d")
    assert catalog.inode(first.ino).ino == first.ino
    assert catalog.child(ROOT_INO, b"d") is None
    assert catalog.listed_at(first.ino) is None
    assert put(catalog, directory(b"d")).ino == first.ino


def test_remove_says_whether_the_name_was_there(catalog):
    put(catalog, file(b"x"))
    assert catalog.remove(ROOT_INO, b"x") is True
    assert catalog.remove(ROOT_INO, b"x") is False


def test_file_may_take_a_directorys_name_and_back(catalog):
    folder = put(catalog, directory(b"x"))
    list_all(catalog, [], parent=folder.ino)
    assert catalog.put(ROOT_INO, file(b"x"), NOW) == [b"x"]
    assert catalog.listed_at(folder.ino) is None
    assert catalog.put(ROOT_INO, directory(b"x"), NOW) == [b"x"]
    assert catalog.child(ROOT_INO, b"x").inode.ino == folder.ino


def test_put_below_what_is_no_directory(catalog):
    leaf = put(catalog, file(b"x"))
    with pytest.raises(NotDirectoryError):
        catalog.put(leaf.ino, file(b"y"), NOW)
    with pytest.raises(ObjectChangedError):
        catalog.put(leaf.ino + 1_000_000, file(b"y"), NOW)
    with pytest.raises(ObjectChangedError):
        catalog.remove(leaf.ino + 1_000_000, b"y")


@pytest.mark.parametrize("name", [b"", b"a/b", b"x" * 256])
def test_what_is_no_name_is_the_callers_bug(catalog, name):
    with pytest.raises(AssertionError):
        catalog.put(ROOT_INO, file(name), NOW)


def test_hostile_size_is_refused_and_changes_nothing(catalog):
    with pytest.raises(CatalogError):
        catalog.put(ROOT_INO, file(b"x", size=1 << 64), NOW)
    assert catalog.child(ROOT_INO, b"x") is None
    put(catalog, file(b"x"))


# -- listings --------------------------------------------------------------------------------------


def test_listing_adds_and_takes_away(catalog):
    put(catalog, file(b"old"))
    kept = put(catalog, file(b"kept"))
    changed, gone = list_all(catalog, [file(b"kept"), file(b"new")])
    assert (changed, gone) == ([], [b"old"])
    assert names(catalog) == [b"kept", b"new"]
    assert catalog.child(ROOT_INO, b"kept").inode.ino == kept.ino
    assert catalog.listed_at(ROOT_INO) == NOW


def test_listing_says_what_was_re_pointed(catalog):
    list_all(catalog, [file(b"a"), file(b"b"), file(b"c")])
    changed, gone = list_all(catalog, [file(b"a", "e2"), file(b"b")], [directory(b"c")])
    assert (changed, gone) == ([b"a", b"c"], [])


def test_old_names_stay_until_the_listing_ends(catalog):
    list_all(catalog, [file(b"old")], listed_at=3.0)
    listing = catalog.begin_listing(ROOT_INO)
    listing.add([file(b"new")])
    assert names(catalog) == [b"new", b"old"]
    assert catalog.listed_at(ROOT_INO) == 3.0
    assert listing.finish(4.0) == [b"old"]
    assert catalog.listed_at(ROOT_INO) == 4.0


def test_abandoned_listing_harms_nothing(catalog):
    list_all(catalog, [file(b"a"), file(b"b")])
    abandoned = catalog.begin_listing(ROOT_INO)
    abandoned.add([file(b"c")])
    assert names(catalog) == [b"a", b"b", b"c"]
    assert list_all(catalog, [file(b"a"), file(b"b")])[1] == [b"c"]


def test_names_put_during_a_listing_stay(catalog):
    listing = catalog.begin_listing(ROOT_INO)
    put(catalog, file(b"fresh"))
    assert listing.finish(NOW) == []
    assert names(catalog) == [b"fresh"]


def test_overlapping_listings_do_not_undo_each_other(catalog):
    early = catalog.begin_listing(ROOT_INO)
    late = catalog.begin_listing(ROOT_INO)
    late.add([file(b"a")])
    early.add([file(b"a"), file(b"b")])
    assert late.finish(NOW) == [b"b"]
    assert early.finish(NOW) == []
    assert names(catalog) == [b"a"]


def test_listing_of_an_earlier_run_is_older(path):
    catalog = open_catalog(path)
    list_all(catalog, [file(b"a"), file(b"b")])
    catalog.close(clean=False)
    catalog = open_catalog(path)
    assert list_all(catalog, [file(b"b")])[1] == [b"a"]
    catalog.close(clean=True)


def test_forgotten_listing_keeps_the_names(catalog):
    list_all(catalog, [file(b"a")])
    catalog.forget_listing(ROOT_INO)
    assert catalog.listed_at(ROOT_INO) is None
    assert names(catalog) == [b"a"]
    catalog.forget_listing(ROOT_INO)


def test_listing_confirms_the_time(path):
    clock = [10.0]
    catalog = open_catalog(path, now=lambda: clock[0])
    put(catalog, file(b"a"))
    clock[0] = 20.0
    list_all(catalog, [file(b"a")])
    assert catalog.child(ROOT_INO, b"a").seen_at == 20.0
    catalog.close(clean=True)


BOTH = [
    [[file(b"x"), directory(b"x")]],
    [[directory(b"x"), file(b"x")]],
    [[file(b"x")], [directory(b"x")]],
    [[directory(b"x")], [file(b"x")]],
]


@pytest.mark.parametrize("pages", BOTH)
@pytest.mark.parametrize("before", [None, file(b"x"), directory(b"x")])
def test_directory_wins_over_the_file_of_its_name(catalog, pages, before):
    if before is not None:
        put(catalog, before)
    list_all(catalog, *pages)
    assert [(name, inode.kind) for name, inode in catalog.children(1)] == [(b"x", Kind.DIRECTORY)]


@pytest.mark.parametrize("pages", BOTH)
def test_file_appears_when_the_directory_of_its_name_is_gone(catalog, pages):
    list_all(catalog, *pages)
    changed, gone = list_all(catalog, [file(b"x")])
    assert (changed, gone) == ([b"x"], [])
    assert catalog.child(ROOT_INO, b"x").inode.kind is Kind.FILE


def test_100k_children(path):
    catalog = open_catalog(path)
    count = 100_000
    listing = catalog.begin_listing(ROOT_INO)
    for start in range(0, count, 1000):
        listing.add([file(b"%06d" % n) for n in range(start, start + 1000)])
    slices = list(listing.finish_in_slices(NOW))
    assert len(slices) == 100
    assert not any(slices)
    assert names(catalog) == [b"%06d" % n for n in range(count)]
    assert len({inode.ino for _, inode in catalog.children(1)}) == count
    assert catalog.stats()["names"] == count

    gone = [name for part in catalog.begin_listing(1).finish_in_slices(NOW) for name in part]
    assert len(gone) == count
    assert names(catalog) == []
    catalog.close(clean=True)


def test_listing_counts_only_when_all_slices_are_done(catalog):
    list_all(catalog, [file(b"%04d" % n) for n in range(1500)])
    catalog.forget_listing(ROOT_INO)
    slices = catalog.begin_listing(ROOT_INO).finish_in_slices(NOW)
    assert len(next(slices)) == 1000
    assert catalog.listed_at(ROOT_INO) is None
    assert [len(part) for part in slices] == [500]
    assert catalog.listed_at(ROOT_INO) == NOW


# -- directory times -------------------------------------------------------------------------------


def test_j02_directory_is_as_old_as_its_newest_child(catalog):
    folder = put(catalog, directory(b"d"))
    assert folder.mtime_ns == NOW_NS
    put(catalog, file(b"a", mtime_ns=100), folder.ino)
    assert catalog.inode(folder.ino).mtime_ns == 100
    put(catalog, file(b"b", mtime_ns=90), folder.ino)
    assert catalog.inode(folder.ino).mtime_ns == 100
    list_all(catalog, [file(b"a", mtime_ns=100)], [file(b"c", mtime_ns=300)], parent=folder.ino)
    assert catalog.inode(folder.ino).mtime_ns == 300


def test_j02_directory_is_never_of_1970(catalog):
    folder = put(catalog, directory(b"d"))
    put(catalog, file(b"a", mtime_ns=0), folder.ino)
    put(catalog, directory(b"e"), folder.ino)
    assert catalog.inode(folder.ino).mtime_ns == NOW_NS
    assert catalog.inode(ROOT_INO).mtime_ns == NOW_NS


def test_directory_time_given_by_the_origin_counts(catalog):
    first = put(catalog, directory(b"d", mtime_ns=50))
    assert first.mtime_ns == 50
    again = put(catalog, directory(b"d", mtime_ns=70))
    assert (again.ino, again.mtime_ns) == (first.ino, 70)
    assert put(catalog, directory(b"d")).mtime_ns == 70
    assert put(catalog, directory(b"d", mtime_ns=60)).mtime_ns == 70


# -- key-value space -------------------------------------------------------------------------------


def test_kv_stores_and_deletes(catalog):
    catalog.kv.put_many([(b"a", b"1"), (b"b", b""), (b"a", b"2"), (b"gone", None)])
    assert (catalog.kv.get(b"a"), catalog.kv.get(b"b"), catalog.kv.get(b"c")) == (b"2", b"", None)
    catalog.kv.put_many([(b"a", None)])
    assert catalog.kv.get(b"a") is None


def test_kv_scan_is_in_key_order_and_may_be_mixed_with_writes(catalog):
    catalog.kv.put_many((b"p%04d" % n, b"%d" % n) for n in range(2500))
    catalog.kv.put_many([(b"o", b""), (b"q", b"")])
    seen = []
    for key, value in catalog.kv.scan(b"p"):
        seen.append((key, value))
        catalog.kv.put_many([(key, None)])
    assert seen == [(b"p%04d" % n, b"%d" % n) for n in range(2500)]
    assert [key for key, _ in catalog.kv.scan(b"")] == [b"o", b"q"]
    assert list(catalog.kv.scan(b"zz")) == []


def test_kv_write_is_whole_or_not_at_all(catalog):
    def broken():
        yield b"a", b"1"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        catalog.kv.put_many(broken())
    assert catalog.kv.get(b"a") is None


def test_kv_lasts(path):
    catalog = open_catalog(path)
    catalog.kv.put_many([(b"a", bytes(range(256)) * 100)])
    catalog.close(clean=True)
    catalog = open_catalog(path, boot_id="another")
    assert catalog.kv.get(b"a") == bytes(range(256)) * 100
    catalog.close(clean=True)


# -- sweep -----------------------------------------------------------------------------------------


def sweep(catalog, held=()):
    return [ino for part in catalog.sweep(lambda ino: ino in held) for ino in part]


def test_sweep_forgets_what_no_name_points_to(catalog):
    old, new = put(catalog, file(b"x", "e1")), put(catalog, file(b"x", "e2"))
    removed = put(catalog, file(b"y"))
    catalog.remove(ROOT_INO, b"y")
    folder = put(catalog, directory(b"d"))
    inner = put(catalog, file(b"f"), folder.ino)
    assert sweep(catalog) == [old.ino, removed.ino]
    assert catalog.inode(old.ino) is None
    for inode in (new, folder, inner):
        assert catalog.inode(inode.ino) is not None
    assert put(catalog, file(b"y")).ino > inner.ino


def test_sweep_keeps_what_is_held(catalog):
    old = put(catalog, file(b"x", "e1"))
    put(catalog, file(b"x", "e2"))
    assert sweep(catalog, {old.ino}) == []
    assert catalog.inode(old.ino) == old


def test_sweep_takes_a_whole_tree(catalog):
    folder = put(catalog, directory(b"d"))
    inner = put(catalog, directory(b"e"), folder.ino)
    list_all(catalog, [file(b"%04d" % n) for n in range(2500)], parent=inner.ino)
    catalog.remove(ROOT_INO, b"d")
    assert len(sweep(catalog)) == 2502
    assert catalog.stats()["names"] == 0
    assert catalog.stats()["inodes"] == 1
    assert catalog.listed_at(inner.ino) is None


def test_sweep_rests_even_when_nothing_goes(catalog):
    list_all(catalog, [file(b"%04d" % n) for n in range(2500)])
    assert list(catalog.sweep(lambda _ino: False)) == [[], [], []]


# -- lasting ---------------------------------------------------------------------------------------


async def test_run_syncs_off_the_loop(path, autojump_clock, monkeypatch):
    threads = []
    sync = Store.sync

    def noted_sync(store):
        threads.append(threading.get_ident())
        sync(store)

    monkeypatch.setattr(Store, "sync", noted_sync)
    catalog = open_catalog(path)
    put(catalog, file(b"x"))
    with trio.move_on_after(1):
        await catalog.run()
    assert threads
    assert threading.get_ident() not in threads
    catalog.close(clean=True)


async def test_close_waits_for_a_running_sync(path):
    catalog = open_catalog(path)
    for _ in range(20):
        put(catalog, file(b"x", os.urandom(8).hex()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, catalog.sync)
            await trio.lowlevel.checkpoint()
            catalog.close(clean=False)
            nursery.cancel_scope.cancel()
        catalog = open_catalog(path)
    assert catalog.rebuilt is None
    catalog.close(clean=True)


def test_stats(catalog):
    put(catalog, file(b"x", "e1"))
    put(catalog, file(b"x", "e2"))
    stats = catalog.stats()
    assert (stats["names"], stats["inodes"]) == (1, 3)
    assert stats["bytes"] > 0
