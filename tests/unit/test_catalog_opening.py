"""What is believed of a database found on the disk, and what happens to the rest."""

import os
import random
import shutil
import signal
import subprocess
import sys

import lmdb
import pytest

from tiercache.catalog import Catalog, NewEntry
from tiercache.catalog.numbers import RESERVED, Numbers
from tiercache.config import CatalogConfig
from tiercache.errors import CatalogError
from tiercache.types import MIB, ROOT_INO, Kind

CONFIG = CatalogConfig(map_size=64 * MIB)
NOW = 1_800_000_000.0
COUNT = 3000


def entry(n):
    return NewEntry(b"%06d" % n, Kind.FILE, n, n + 1, f"etag-{n}", False)


def open_catalog(path, identity="s3://bucket", boot_id="boot", config=CONFIG, now=lambda: NOW):
    return Catalog.open(path, config, identity=identity, boot_id=boot_id, now=now)


@pytest.fixture
def path(tmp_path):
    """A closed, unclean catalog of COUNT names."""
    path = tmp_path / "catalog"
    catalog = open_catalog(path)
    listing = catalog.begin_listing(ROOT_INO)
    listing.add([entry(n) for n in range(COUNT)])
    listing.finish(NOW)
    highest = max(inode.ino for _, inode in catalog.children(ROOT_INO))
    (tmp_path / "highest").write_text(str(highest))
    catalog.close(clean=False)
    return path


def assert_begun_anew(path, why, **kwargs):
    highest = int((path.parent / "highest").read_text())
    catalog = open_catalog(path, **kwargs)
    assert why in catalog.rebuilt
    assert list(catalog.children(ROOT_INO)) == []
    catalog.put(ROOT_INO, entry(1), NOW)
    assert catalog.child(ROOT_INO, entry(1).name).inode.ino > highest
    catalog.close(clean=False)
    catalog = open_catalog(path, **kwargs)
    assert catalog.rebuilt is None
    assert len(list(catalog.children(ROOT_INO))) == 1
    catalog.close(clean=False)
    assert (path / "db.old").is_dir()


def assert_believed(path, **kwargs):
    catalog = open_catalog(path, **kwargs)
    assert catalog.rebuilt is None
    assert len(list(catalog.children(ROOT_INO))) == COUNT
    catalog.close(clean=False)


def test_directory_is_ours_alone(path):
    assert path.stat().st_mode & 0o777 == 0o700
    modes = {file.stat().st_mode & 0o077 for file in path.rglob("*")}
    assert modes == {0}


def test_nothing_found_is_not_a_rebuild(tmp_path):
    catalog = open_catalog(tmp_path / "a" / "b")
    assert catalog.rebuilt is None
    catalog.close(clean=True)


def test_death_of_the_process_loses_nothing(path):
    assert_believed(path)


def test_clean_end_outlives_the_boot(path):
    open_catalog(path).close(clean=True)
    assert_believed(path, boot_id="another")


@pytest.mark.allow_warnings
def test_f07_machine_stop_without_clean_end(path):
    assert_begun_anew(path, "the machine stopped", boot_id="another")


@pytest.mark.allow_warnings
def test_clean_mark_holds_for_one_boot_only(path):
    open_catalog(path).close(clean=True)
    assert_believed(path, boot_id="another")
    assert_begun_anew(path, "the machine stopped", boot_id="third")


@pytest.mark.allow_warnings
def test_other_origin(path):
    assert_begun_anew(path, "another origin", identity="s3://other")


@pytest.mark.allow_warnings
def test_other_schema(path):
    with lmdb.open(str(path / "db"), max_dbs=8) as env, env.begin(write=True) as txn:
        txn.put(b"schema", b"0", db=env.open_db(b"meta", txn=txn))
    assert_begun_anew(path, "schema")


@pytest.mark.allow_warnings
def test_only_one_old_database_is_kept(path):
    for boot in ("b", "c", "d"):
        assert open_and_close(path, boot) is not None
    assert sorted(os.listdir(path)) == ["db", "db.old", "numbers"]


def open_and_close(path, boot_id="boot"):
    catalog = open_catalog(path, boot_id=boot_id)
    catalog.close(clean=False)
    return catalog.rebuilt


@pytest.mark.allow_warnings
@pytest.mark.parametrize("size", [0, 1, 4096, 8191, 8192, 100_000])
def test_f16_cut_file(path, size):
    os.truncate(path / "db" / "data.mdb", size)
    assert_begun_anew(path, "")


@pytest.mark.allow_warnings
@pytest.mark.parametrize("offset", [0, 16, 20, 40, 4096 + 16])
def test_f16_garbled_meta_page(path, offset):
    with (path / "db" / "data.mdb").open("r+b") as file:
        file.seek(offset)
        file.write(os.urandom(4) if offset else b"\xff" * 8192)
    assert_begun_anew(path, "")


@pytest.mark.allow_warnings
def test_f16_foreign_file(path):
    (path / "db" / "data.mdb").write_bytes(b"not a database" * 10_000)
    assert_begun_anew(path, "damaged")


@pytest.mark.allow_warnings
def test_damaged_root(path):
    with lmdb.open(str(path / "db"), max_dbs=8) as env, env.begin(write=True) as txn:
        txn.put((1).to_bytes(8, "big"), b"\0" * 60, db=env.open_db(b"inodes", txn=txn))
    assert_begun_anew(path, "root")


@pytest.mark.allow_warnings
def test_starts_that_died_while_opening(path):
    (path / "opening").write_bytes(b"..")
    assert_believed(path)
    assert not (path / "opening").exists()
    (path / "opening").write_bytes(b"...")
    assert_begun_anew(path, "did not end")


def test_healthy_file_is_never_taken_for_a_cut_one(tmp_path):
    """The file must be as long as its last page after every commit, whatever is freed in it."""
    path = tmp_path / "catalog"
    chance = random.Random(5)
    for _ in range(15):
        catalog = open_catalog(path)
        assert catalog.rebuilt is None
        for _ in range(10):
            items = [(b"%d" % chance.randrange(50), b"x" * chance.randrange(60_000))]
            catalog.kv.put_many(
                [(key, value if chance.random() < 0.7 else None) for key, value in items * 3]
            )
        catalog.close(clean=False)


def test_file_takes_no_more_disk_than_it_needs(path):
    stat = (path / "db" / "data.mdb").stat()
    assert stat.st_blocks * 512 < 4 * MIB


def test_full_disk_at_the_start_is_told_at_once(tmp_path):
    config = CatalogConfig(free_min=1 << 60)
    with pytest.raises(CatalogError, match="bytes free"):
        open_catalog(tmp_path / "new", config=config)


def test_full_disk_does_not_stop_a_restart(path):
    config = CatalogConfig(map_size=64 * MIB, free_min=1 << 60)
    assert_believed(path, config=config)


def test_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CatalogError, match="cannot be opened"):
        open_catalog(tmp_path / "file" / "catalog")


# -- damage that only shows later ------------------------------------------------------------------

READER = """
import sys
from pathlib import Path
from tiercache.catalog import Catalog
from tiercache.config import CatalogConfig
from tiercache.errors import CatalogError
catalog = Catalog.open(Path(sys.argv[1]), CatalogConfig(), identity="s3://bucket", boot_id="boot")
print("rebuilt" if catalog.rebuilt else "opened", flush=True)
sys.stdin.readline()
for n in range(int(sys.argv[2])):
    try:
        child = catalog.child(1, b"%06d" % n)
    except CatalogError:
        continue
    if child is not None:
        inode = child.inode
        assert (inode.key, inode.size, inode.etag) == (b"%06d" % n, n, f"etag-{n}"), inode
print("read", flush=True)
"""


class Reader:
    """A process that opens a catalog, waits for `go`, and reads every name."""

    def __init__(self, path):
        command = [sys.executable, "-c", READER, str(path), str(COUNT)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def opened(self):
        return self.process.stdout.readline().strip()

    def go(self):
        """Read; returns what it says and its exit code."""
        said, _ = self.process.communicate("\n", timeout=60)
        return said.strip(), self.process.returncode


def test_f16_file_cut_while_in_use(path):
    reader = Reader(path)
    assert reader.opened() == "opened"
    os.truncate(path / "db" / "data.mdb", 8192)
    said, code = reader.go()
    assert code == -signal.SIGBUS or said == "read"
    again = Reader(path)
    assert again.opened() == "rebuilt"
    assert again.go() == ("read", 0)


@pytest.mark.parametrize("seed", range(4))
def test_f16_garbled_pages_never_make_a_wrong_inode(path, tmp_path, seed):
    """Whatever it does to the process, a start after it succeeds and no name is wrong."""
    chance = random.Random(seed)
    data = path / "db" / "data.mdb"
    used = data.stat().st_blocks * 512
    with data.open("r+b") as file:
        for _ in range(20):
            file.seek(chance.randrange(8192, used))
            file.write(chance.randbytes(chance.choice((1, 8, 64, 4096))))
    outcomes = []
    for _ in range(6):
        reader = Reader(path)
        reader.opened()
        outcomes.append(reader.go())
        assert outcomes[-1][1] in (0, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
    assert outcomes[-1] == ("read", 0)


# -- numbers ---------------------------------------------------------------------------------------


def take_three(path, now_ns=0):
    numbers = Numbers(path, now_ns)
    taken = [numbers.take() for _ in range(3)]
    numbers.close()
    return taken


def test_numbers_never_repeat_over_restarts(tmp_path):
    taken = [n for _ in range(5) for n in take_three(tmp_path / "numbers")]
    assert taken == sorted(set(taken))
    assert taken[0] > ROOT_INO


def test_numbers_survive_a_clock_set_back(tmp_path):
    first = take_three(tmp_path / "numbers", 10**18)
    assert take_three(tmp_path / "numbers", 0)[0] > first[-1]


def test_numbers_survive_the_loss_of_their_file(tmp_path):
    first = take_three(tmp_path / "numbers", 10**18)
    (tmp_path / "numbers").write_bytes(b"garbage garbage ")
    assert take_three(tmp_path / "numbers", 10**18 + 10**9)[0] > first[-1]
    (tmp_path / "numbers").unlink()
    assert take_three(tmp_path / "numbers", 10**18 + 2 * 10**9)[0] > first[-1]


def test_numbers_reserve_more(tmp_path):
    numbers = Numbers(tmp_path / "numbers", 0)
    first = numbers.take()
    numbers.skip_past(first + RESERVED - 2)
    assert [numbers.take() for _ in range(3)] == [first + RESERVED + n for n in (-1, 0, 1)]
    numbers.close()
    assert take_three(tmp_path / "numbers")[0] > first + RESERVED + 1


def test_no_number_again_when_an_older_database_is_restored(path, tmp_path):
    shutil.copytree(path / "db", tmp_path / "backup")
    catalog = open_catalog(path)
    catalog.put(ROOT_INO, entry(COUNT), NOW)
    newest = catalog.child(ROOT_INO, entry(COUNT).name).inode.ino
    catalog.close(clean=False)
    shutil.rmtree(path / "db")
    shutil.copytree(tmp_path / "backup", path / "db")
    catalog = open_catalog(path)
    catalog.put(ROOT_INO, entry(COUNT + 1), NOW)
    assert catalog.child(ROOT_INO, entry(COUNT + 1).name).inode.ino > newest
    catalog.close(clean=False)
