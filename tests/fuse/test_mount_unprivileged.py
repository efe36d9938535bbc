"""An ordinary user mounts through fusermount3, in a mount namespace of its own.

The device there is open to everybody, as most distributions leave it. The user may read everything,
because the interpreter of the tests may belong to root alone; it may do nothing else.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tiercache.fuse import syscalls
from tiercache.testing.data import check, pattern
from tiercache.testing.mounting import COMMAND
from tiercache.types import MIB

NOBODY = 65534
SIZE = 3 * MIB + 5
READ_ALL = "cap_dac_read_search"

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(
        not (syscalls.privileged() and shutil.which("unshare") and shutil.which("setpriv")),
        reason="needs CAP_SYS_ADMIN, unshare and setpriv",
    ),
    pytest.mark.skipif(shutil.which("fusermount3") is None, reason="needs fusermount3"),
]

AS_ROOT = """
set -e
mknod -m 666 "$1/fuse" c 10 229
mount --bind "$1/fuse" /dev/fuse
shift
exec "$@"
"""

AS_USER = """
import json, os, signal, subprocess, sys, time

def command(*words):
    words = [*json.loads(sys.argv[1]), *words]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout

def status():
    return json.loads(command("status", "mnt", "--json"))

def read():
    with open("mnt/f", "rb") as file:
        return file.read()

command("mount", "file://" + os.getcwd() + "/source", "mnt", "--driver", sys.argv[2],
        "--cache-dir", "cache")
first = read()
facts = status()
if facts["driver"] == "kernel":
    os.kill(facts["worker"]["pid"], signal.SIGKILL)
again = read()
command("umount", "mnt")
sys.stdout.buffer.write(json.dumps(facts).encode() + b"\\n" + first + again)
"""


@pytest.fixture
def home():
    """A directory of the user's own: those of pytest are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        for folder in ("source", "mnt", "run"):
            (path / folder).mkdir()
        (path / "source" / "f").write_bytes(pattern(0, SIZE, 4))
        for each in (path, *path.rglob("*")):
            os.chown(each, NOBODY, NOBODY)
        yield path


def test_h13_an_ordinary_user_mounts_without_passthrough(home, tmp_path, driver):
    caps = f"+{READ_ALL.removeprefix('cap_')}"
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    user += [f"--inh-caps=-all,{caps}", f"--ambient-caps=-all,{caps}"]
    script = [sys.executable, "-P", "-c", AS_USER, json.dumps(COMMAND), driver]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", AS_ROOT, "sh", tmp_path, *user, *script],
        cwd=home,
        env={**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run")},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    line, _, data = done.stdout.partition(b"\n")
    facts = json.loads(line)
    assert (facts["driver"], facts["passthrough"]) == (driver, False)
    if driver == "kernel":
        assert "CAP_SYS_ADMIN" in facts["passthrough_reason"]
    assert len(data) == 2 * SIZE
    check(data[:SIZE], 0, 4)
    check(data[SIZE:], 0, 4)
