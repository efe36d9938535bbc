"""Orders about single files on a real mount: pin, unpin, evict, where."""

from __future__ import annotations

import json
import subprocess

import pytest

from tiercache.testing.data import check
from tiercache.testing.mounting import COMMAND
from tiercache.types import MIB

pytestmark = pytest.mark.mount


def tiercache(*arguments):
    """Exit status, output, errors of a command."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def where(*paths):
    status, out, errors = tiercache("where", *paths, "--json")
    assert status == 0, errors
    return json.loads(out)


@pytest.fixture
def mount(bucket):
    for n in range(6):
        bucket.put(f"data/f{n}", 2 * MIB, n)
    bucket.put("data/deep/g", 100, 9)
    return bucket.mount("--cache-size", "8MiB", "-o", "reserve_free=0,policy=lru")


def read(mount, n):
    check((mount.mountpoint / f"data/f{n}").read_bytes(), 0, n)


def test_pinned_files_stay_over_a_remount_whatever_is_read(mount):
    root = mount.mountpoint
    read(mount, 0)
    status, out, errors = tiercache("pin", root / "data/f0", root / "data/f1", "--json")
    assert (status, json.loads(out)["objects"]) == (0, 2), errors
    read(mount, 1)
    for n in (2, 3, 4, 5, 2, 3, 4, 5):
        read(mount, n)
    mount.unmount()
    mount.mount()
    for n in (2, 3, 4, 5):
        read(mount, n)
    one, two = where(root / "data/f0", root / "data/f1")
    assert one["pinned"] and two["pinned"]
    assert one["resident_bytes"] == two["resident_bytes"] == 2 * MIB
    assert (one["reason"], one["tier"]) == ("pinned", "cache")
    assert one["passthrough"], one["passthrough_reason"]
    gets = mount.status()["counters"]["origin_gets"]
    read(mount, 0)
    read(mount, 1)
    assert mount.status()["counters"]["origin_gets"] == gets


def test_more_than_fits_is_refused_with_the_numbers_and_pins_nothing(mount):
    root = mount.mountpoint
    status, _out, errors = tiercache("pin", root / "data/f*")
    assert status == 1
    assert errors.count("\n") == 1
    assert "tier cache has 8MiB of 8MiB left for pins" in errors
    assert not any(file["pinned"] for file in where(root / "data/f*"))
    assert tiercache("pin", root / "data/f0", "--tier", "tape")[0] == 1


def test_evict_removes_what_is_not_pinned_and_with_force_all(mount):
    root = mount.mountpoint
    read(mount, 0)
    read(mount, 1)
    assert tiercache("pin", root / "data/f0")[0] == 0
    status, _out, errors = tiercache("evict", root / "data/f[01]")
    assert status == 1
    assert "data/f0" in errors
    assert tiercache("evict", root / "data/f1")[0] == 0
    assert [file["tier"] for file in where(root / "data/f[01]")] == ["cache", None]
    assert tiercache("evict", root / "data/f0", "--force")[0] == 0
    assert [file["pinned"] for file in where(root / "data/f0")] == [False]
    read(mount, 0)
    read(mount, 1)


def test_directories_need_recursive_and_patterns_stay_at_their_level(mount):
    root = mount.mountpoint
    status, _out, errors = tiercache("where", root / "data")
    assert status == 1
    assert "--recursive" in errors
    status, out, _errors = tiercache("where", "-r", root / "data", "--json")
    assert sorted(file["path"] for file in json.loads(out)) == [
        "data/deep/g",
        *(f"data/f{n}" for n in range(6)),
    ]
    assert len(where(root / "data/*")) == 6
    assert len(where(root / "**/g")) == 1
    assert tiercache("where", root / "data/none")[0] == 1
    assert tiercache("where")[0] == 2
    status, out, _errors = tiercache("where", root / "data/f0")
    assert status == 0
    assert "not read lately" in out


def test_file_that_was_deleted_can_be_unpinned(mount, bucket):
    path = mount.mountpoint / "data/f0"
    assert tiercache("pin", path)[0] == 0
    bucket.delete("data/f0")
    mount.unmount()
    mount.mount()
    assert mount.status()["tiers"][0]["promised"] > 0
    assert tiercache("unpin", path)[0] == 0
    assert mount.status()["tiers"][0]["promised"] == 0


def test_unpinned_files_may_leave_again(mount):
    root = mount.mountpoint
    assert tiercache("pin", root / "data/f0")[0] == 0
    read(mount, 0)
    status, out, _errors = tiercache("unpin", root / "data/f0", "--json")
    assert (status, json.loads(out)) == (0, {"objects": 1})
    for n in (1, 2, 3, 4, 5):
        read(mount, n)
    assert where(root / "data/f0")[0]["tier"] is None


def test_k06_warming_more_than_fits_displaces_neither_pinned_nor_hot_files(mount):
    root = mount.mountpoint
    assert tiercache("pin", root / "data/f0")[0] == 0
    read(mount, 0)
    for _ in range(4):
        read(mount, 1)
    for _again in range(2):
        status, out, errors = tiercache("warm", root / "data", "--json")
        assert status == 1, "not all of it fits"
        assert "Traceback" not in errors
        assert json.loads(out)["complete"] is False
        pinned, hot = where(root / "data/f[01]")
        assert pinned["resident_bytes"] == hot["resident_bytes"] == 2 * MIB
        [tier] = mount.status()["tiers"]
        assert tier["used"] <= tier["capacity"]
    for n in range(6):
        read(mount, n)
