"""Full maps, full disks, killed processes, forks."""

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import threading

import lmdb
import pytest

from tiercache.catalog import Catalog, NewEntry
from tiercache.catalog.store import Store
from tiercache.config import CatalogConfig
from tiercache.errors import CatalogError
from tiercache.types import KIB, MIB, ROOT_INO, Kind

NOW = 1_800_000_000.0


def entry(n):
    return NewEntry(b"%06d" % n, Kind.FILE, n, n + 1, f"etag-{n}", False)


def open_catalog(path, **config):
    config = CatalogConfig(**{"map_size": 64 * MIB, **config})
    return Catalog.open(path, config, identity="s3://bucket", boot_id="boot", now=lambda: NOW)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "catalog"


@pytest.fixture
def catalog(path):
    catalog = open_catalog(path)
    yield catalog
    catalog.close(clean=True)


# -- the map grows ---------------------------------------------------------------------------------


def test_f16_full_map_grows_unseen(path):
    catalog = open_catalog(path, map_size=128 * KIB)
    listing = catalog.begin_listing(ROOT_INO)
    for start in range(0, 20_000, 1000):
        listing.add([entry(n) for n in range(start, start + 1000)])
        catalog.kv.put_many([(b"%d" % start, b"v" * 5000)])
    assert listing.finish(NOW) == []
    assert [name for name, _ in catalog.children(1)] == [b"%06d" % n for n in range(20_000)]
    assert catalog.stats()["bytes"] > 128 * KIB
    catalog.close(clean=True)
    catalog = open_catalog(path, map_size=128 * KIB)
    assert len(list(catalog.children(ROOT_INO))) == 20_000
    for n in range(20_000, 21_000):
        catalog.put(ROOT_INO, entry(n), NOW)
    assert len(list(catalog.kv.scan(b""))) == 20
    catalog.close(clean=True)


def test_map_grows_under_an_iterator(path):
    catalog = open_catalog(path, map_size=512 * KIB)
    catalog.begin_listing(ROOT_INO).add([entry(n) for n in range(1500)])
    children = catalog.children(ROOT_INO)
    first = [next(children) for _ in range(10)]
    catalog.kv.put_many([(b"k", b"v" * (2 * MIB))])
    assert len(first) + len(list(children)) == 1500
    catalog.close(clean=True)


# -- full disk -------------------------------------------------------------------------------------


@contextlib.contextmanager
def files_no_longer_than(size):
    """Writes past *size* fail, as they do on a full disk. Python ignores SIGXFSZ."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(catalog, start):
    """Put names until one fails; returns how far it came."""
    for n in range(start, start + 100_000):
        try:
            catalog.put(ROOT_INO, entry(n), NOW)
        except CatalogError:
            return n
    raise AssertionError("never failed")


@pytest.mark.allow_warnings
def test_f16_full_disk_fails_new_names_only_and_heals(catalog, caplog):
    catalog.begin_listing(ROOT_INO).add([entry(n) for n in range(100)])
    before = {name: inode.ino for name, inode in catalog.children(ROOT_INO)}
    with files_no_longer_than(catalog.stats()["bytes"]):
        failed = fill(catalog, 100)
        assert fill(catalog, failed) == failed
        assert catalog.child(ROOT_INO, entry(failed).name) is None
        with pytest.raises(CatalogError) as caught:
            catalog.kv.put_many([(b"k", b"v" * MIB)])
        assert caught.value.errno == errno.EIO
        assert catalog.kv.get(b"k") is None
        for name, ino in before.items():
            assert catalog.child(ROOT_INO, name).inode.ino == ino
        assert len([r for r in caplog.records if "cannot be written" in r.message]) == 1
    catalog.put(ROOT_INO, entry(failed), NOW)
    assert catalog.child(ROOT_INO, entry(failed).name) is not None
    assert len(list(catalog.children(ROOT_INO))) == failed + 1
    assert [r.message for r in caplog.records][-1] == "the catalog can be written again"


def write_without_end(path):
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 16 MiB."""
    mountpoint = tmp_path / "disk"
    mountpoint.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tiercache-test", str(mountpoint)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root and the right to mount")
    yield mountpoint
    subprocess.run(["umount", "-l", str(mountpoint)], check=True)


@pytest.mark.allow_warnings
def test_f16_disk_that_is_really_full(small_disk):
    path = small_disk / "catalog"
    catalog = open_catalog(path, free_min=MIB)
    catalog.put(ROOT_INO, entry(0), NOW)
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space"):
        write_without_end(filler)
    failed = fill(catalog, 1)
    assert catalog.child(ROOT_INO, entry(failed - 1).name) is not None
    catalog.close(clean=False)

    catalog = open_catalog(path, free_min=MIB)
    assert catalog.rebuilt is None
    assert len(list(catalog.children(ROOT_INO))) == failed
    filler.unlink()
    catalog.put(ROOT_INO, entry(failed), NOW)
    catalog.close(clean=True)


@pytest.mark.allow_warnings
def test_full_disk_at_the_end_is_no_clean_end(path):
    catalog = open_catalog(path)
    catalog.put(ROOT_INO, entry(1), NOW)
    with files_no_longer_than(0):
        catalog.close(clean=True)
    config = CatalogConfig(map_size=64 * MIB)
    catalog = Catalog.open(path, config, identity="s3://bucket", boot_id="next")
    assert catalog.rebuilt is not None
    catalog.close(clean=True)


@pytest.mark.allow_warnings
def test_numbers_that_cannot_be_reserved(path):
    open_catalog(path).close(clean=True)
    with files_no_longer_than(0), pytest.raises(CatalogError):
        open_catalog(path)
    open_catalog(path).close(clean=True)


def test_store_goes_on_after_it_was_opened_again(tmp_path):
    (tmp_path / "db").mkdir()
    store = Store(tmp_path / "db", MIB)
    store.write(lambda txn: txn.put(b"a", b"1", db=store.others))
    store.reopen()
    assert store.read(lambda txn: txn.get(b"a", db=store.others)) == b"1"
    store.write(lambda txn: txn.put(b"a", b"2", db=store.others))
    assert store.read(lambda txn: txn.get(b"a", db=store.others)) == b"2"
    store.close()


def test_closed_catalog_says_so(path):
    catalog = open_catalog(path)
    catalog.close(clean=True)
    with pytest.raises(CatalogError):
        catalog.inode(ROOT_INO)
    catalog.sync()


# -- processes -------------------------------------------------------------------------------------


def test_f15_use_in_a_forked_child_is_refused(catalog):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for use in (
                lambda: catalog.inode(ROOT_INO),
                lambda: catalog.put(ROOT_INO, entry(1), NOW),
                catalog.stats,
                catalog.sync,
                lambda: catalog.kv.get(b"x"),
                lambda: catalog.close(clean=True),
            ):
                with contextlib.suppress(RuntimeError):
                    use()
                    break
            else:
                code = 0
        finally:
            os._exit(code)
    os.close(reading)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0
    catalog.put(ROOT_INO, entry(1), NOW)


LOOKER = """
import sys, lmdb
env = lmdb.open(sys.argv[1], max_dbs=8, readonly=True)
txns = [env.begin() for _ in range(20)]
print("holding", flush=True)
sys.stdin.readline()
"""


def test_f14_readers_that_died_are_cleared(catalog, path):
    for _ in range(3):
        looker = subprocess.Popen(
            [sys.executable, "-c", LOOKER, str(path / "db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert looker.stdout.readline() == b"holding\n"
        looker.kill()
        looker.communicate()
    catalog.put(ROOT_INO, entry(1), NOW)
    catalog.sync()
    for _ in range(50):
        catalog.kv.put_many([(b"k", os.urandom(64 * KIB))])
    assert catalog.stats()["bytes"] < MIB


WRITER = """
import os, sys
from pathlib import Path
from tiercache.catalog import Catalog, NewEntry
from tiercache.config import CatalogConfig
from tiercache.types import Kind
path, start = Path(sys.argv[1]), int(sys.argv[2])
catalog = Catalog.open(path, CatalogConfig(), identity="s3://bucket", boot_id="boot")
assert catalog.rebuilt is None, catalog.rebuilt
for n in range(start, start + 1_000_000):
    name = b"%09d" % n
    if n % 7:
        catalog.put(1, NewEntry(name, Kind.FILE, n, n, str(n), False), 1.0)
    else:
        page = [NewEntry(name, Kind.FILE, n, n, str(n), False)]
        page += [NewEntry(b"~%d" % (i * n % 5000), Kind.FILE, n, n, str(n), False)
                 for i in range(300)]
        catalog.begin_listing(1).add(page)
    ino = catalog.child(1, name).inode.ino
    os.write(1, b"%d %d\\n" % (n, ino))
    if n % 50 == 0:
        catalog.sync()
"""


def test_killed_while_writing_loses_no_number_that_was_told(path, tmp_path):
    told, start = {}, 0
    for round_ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(start)], stdout=subprocess.PIPE
        )
        lines = [process.stdout.readline() for _ in range(20 + 37 * round_)]
        # From another thread, so that the kill does not always follow a line.
        killer = threading.Thread(target=process.send_signal, args=(signal.SIGKILL,))
        killer.start()
        lines += process.stdout.read().splitlines(keepends=True)
        killer.join()
        process.stdout.close()
        assert process.wait() == -signal.SIGKILL
        fresh = dict(map(int, line.split()) for line in lines if line.endswith(b"\n"))
        assert len(fresh) >= 20
        assert not set(told.values()) & set(fresh.values())
        told |= fresh
        start = max(told) + 2

    catalog = open_catalog(path)
    assert catalog.rebuilt is None
    for n, ino in told.items():
        inode = catalog.child(ROOT_INO, b"%09d" % n).inode
        assert (inode.ino, inode.size, inode.etag) == (ino, n, str(n))
        assert catalog.inode(ino) == inode
    assert len(set(told.values())) == len(told)
    numbers = [inode.ino for _, inode in catalog.children(ROOT_INO)]
    assert len(set(numbers)) == len(numbers)
    catalog.close(clean=True)


def test_lmdb_is_of_the_file_format_that_is_checked(path):
    """The check of the file before opening knows one format; another would be rebuilt for ever."""
    open_catalog(path).close(clean=True)
    assert lmdb.version() < (1, 0, 0)
    again = open_catalog(path)
    assert again.rebuilt is None
    again.close(clean=True)
