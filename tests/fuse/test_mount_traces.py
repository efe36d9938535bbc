"""Recording the opens of a real mount, by the command."""

from __future__ import annotations

import json
import stat
import subprocess

import pytest

from tiercache.errors import MountError
from tiercache.simulation.traces import Trace
from tiercache.testing.mounting import COMMAND

pytestmark = pytest.mark.mount


def tiercache(*arguments):
    found = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    if found.returncode:
        raise MountError(found.stderr)
    return found.stdout


@pytest.fixture
def mount(make_mount, tmp_path, driver):
    source = tmp_path / "source"
    for name, size in (("a/x", 1000), ("a/y", 2000), ("b/z", 3000)):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    mount = make_mount(f"file://{source}", driver=driver)
    mount.mount()
    return mount


def read(mount, *names):
    for name in names:
        (mount.mountpoint / name).read_bytes()


def test_every_open_is_in_the_file(mount, tmp_path):
    path = tmp_path / "opens.tct"
    read(mount, "a/x")
    tiercache("trace", "start", mount.mountpoint, path)
    read(mount, "a/x", "a/y", "b/z", "a/x")
    assert mount.status()["worker_facts"]["trace"]["recording"]
    assert "trace        recording: 4 opens" in tiercache("status", mount.mountpoint)
    said = tiercache("trace", "stop", mount.mountpoint)
    read(mount, "b/z")
    assert said == f"{path}: 4 uses, {path.stat().st_size} bytes\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    uses = list(Trace(path))
    inodes = {name: (mount.mountpoint / name).stat().st_ino for name in ("a/x", "a/y", "b/z")}
    assert [use.item for use in uses] == [inodes[n] for n in ("a/x", "a/y", "b/z", "a/x")]
    assert [use.size for use in uses] == [1000, 2000, 3000, 1000]
    assert uses[0].group == uses[1].group == uses[3].group != uses[2].group
    assert json.loads(tiercache("trace", "info", path, "--json"))["repeats"] == 1


def test_what_was_recorded_survives_the_end_of_the_mount(mount, tmp_path):
    path = tmp_path / "opens.tct"
    tiercache("trace", "start", mount.mountpoint, path)
    read(mount, "a/x", "a/y")
    mount.unmount()
    assert [use.size for use in Trace(path)] == [1000, 2000]


def test_refusals_are_one_line(mount, tmp_path):
    path = tmp_path / "opens.tct"
    path.write_text("precious")
    for arguments, words in (
        (("start", mount.mountpoint, path), "File exists"),
        (("start", mount.mountpoint, mount.mountpoint / "t"), "Read-only file system"),
        (("start", mount.mountpoint, tmp_path / "t", "--limit", "1"), "at least"),
        (("start", mount.mountpoint, tmp_path / "t", "--limit", "x"), "--limit"),
        (("start", tmp_path, tmp_path / "t"), "is not a tiercache mount"),
        (("stop", mount.mountpoint), "no recording is running"),
    ):
        with pytest.raises(MountError, match=words) as error:
            tiercache("trace", *arguments)
        assert str(error.value).count("\n") == 1
        assert str(error.value).startswith("tiercache: ")
    assert path.read_text() == "precious"


def test_size_of_a_running_mount(mount):
    with pytest.raises(MountError, match="nothing was opened yet"):
        tiercache("size", mount.mountpoint)
    read(mount, *("a/x", "a/y") * 9, "b/z")
    report = json.loads(tiercache("size", mount.mountpoint, "--target", "90%", "--json"))
    assert report["footprint"] == 6000
    assert [dataset["nbytes"] for dataset in report["datasets"]] == [3000, 3000]
    assert [dataset["uses"] for dataset in report["datasets"]] == pytest.approx([18, 1], rel=0.01)
    (target,) = report["targets"]
    assert target["enough"]["capacity"] == pytest.approx(3000 * 0.9 * 19 / 18, rel=0.01)
