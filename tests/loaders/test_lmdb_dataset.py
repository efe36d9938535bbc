"""An LMDB dataset on the mount (D06): works without locks, and never hangs with them."""

import subprocess
import sys

import pytest

from tiercache.testing.data import pattern
from tiercache.types import GIB

lmdb = pytest.importorskip("lmdb", reason="the dataset is made with lmdb")

pytestmark = pytest.mark.mount

#: A process of its own: an environment is not opened twice in one, and a hang can be ended.
OPEN = """
import sys, lmdb
try:
    with lmdb.open(sys.argv[1], readonly=sys.argv[2] == "r", lock=True) as env:
        print("opened", env.begin().stat()["entries"])
except lmdb.Error as error:
    print(type(error).__name__, str(error))
"""


@pytest.mark.parametrize("map_size", [10 << 20, 8 * GIB], ids=["usual", "larger than the file"])
def test_d06_readonly_without_lock_reads_everything(root, map_size):
    path = str(root / "lmdb")
    with (
        lmdb.open(path, readonly=True, lock=False, map_size=map_size, readahead=False) as env,
        env.begin() as txn,
    ):
        found = dict(txn.cursor())
    assert found == {b"%06d" % n: pattern(0, 5000, n) for n in range(300)}


def test_d06_several_processes(root):
    count = (
        "import lmdb, sys\n"
        "with lmdb.open(sys.argv[1], readonly=True, lock=False) as env, env.begin() as txn:\n"
        "    print(sum(len(value) for _, value in txn.cursor()))"
    )
    arguments = [sys.executable, "-c", count, str(root / "lmdb")]
    readers = [subprocess.Popen(arguments, stdout=subprocess.PIPE) for _ in range(4)]
    assert [reader.communicate(timeout=60)[0].strip() for reader in readers] == [b"1500000"] * 4


@pytest.mark.parametrize("mode", ["r", "w"])
def test_d06_lock_gives_a_clear_answer(root, mode):
    """LMDB itself does without a lock file on a read-only file system if it only reads."""
    arguments = [sys.executable, "-c", OPEN, str(root / "lmdb"), mode]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert "not implemented" not in done.stdout.lower()
    if mode == "r":
        assert done.stdout.strip() == "opened 300"
    else:
        assert "Read-only file system" in done.stdout or "Permission denied" in done.stdout
