"""The mount table, names with odd bytes, and questions to mounts that may not answer."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.fuse import mountpoint
from tiercache.fuse.mountpoint import Health, canonical, mount_table, stat_errno

LINE = b"36 35 0:52 / %s rw,relatime shared:1 master:2 - fuse.tiercache %s rw,user_id=0\n"


def escaped(name: bytes) -> bytes:
    """As the kernel writes names into mountinfo."""
    for byte in b"\\ \t\n#":
        name = name.replace(bytes([byte]), b"\\%03o" % byte)
    return name


def test_a_line_is_understood_with_and_without_optional_fields():
    text = LINE % (b"/mnt/data", b"s3://b/p") + b"22 1 8:1 /sub / rw - ext4 /dev/sda1 rw\n"
    ours, root = mount_table(text)
    assert ours == (Path("/mnt/data"), "s3://b/p", os.makedev(0, 52), "fuse.tiercache", Path("/"))
    assert root == (Path("/"), "/dev/sda1", os.makedev(8, 1), "ext4", Path("/sub"))


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4))
def test_any_name_comes_back(parts):
    name = b"/" + b"/".join(part.replace(b"\0", b"0").replace(b"/", b"-") for part in parts)
    name = os.fsencode(Path(os.fsdecode(name)))
    (mount,) = mount_table(LINE % (escaped(name), b"x"))
    # Other line borders, like a carriage return, are written as they are.
    assert os.fsencode(mount.mountpoint) == name


def test_this_system_has_a_root_mount():
    assert any(mount.mountpoint == Path("/") for mount in mount_table())


def test_stat_errno_tells_success_failure_and_silence(tmp_path):
    assert stat_errno(tmp_path) == 0
    assert stat_errno(tmp_path / "missing") == errno.ENOENT
    assert stat_errno(tmp_path, timeout_s=0) is None


@pytest.mark.parametrize(
    ("answer", "health"),
    [
        (0, Health.OK),
        (errno.EIO, Health.OK),
        (errno.ENOTCONN, Health.DEAD),
        (errno.ECONNABORTED, Health.DEAD),
        (errno.EACCES, Health.DENIED),
        (None, Health.HUNG),
    ],
)
def test_health_reads_the_answer(answer, health, monkeypatch, tmp_path):
    monkeypatch.setattr(mountpoint, "stat_errno", lambda _path, _timeout_s: answer)
    assert mountpoint.health(tmp_path) is health


def test_canonical_follows_links_but_not_what_is_missing(tmp_path):
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "far").symlink_to(tmp_path / "link")
    assert canonical(tmp_path / "far") == real
    assert canonical(tmp_path / "link" / "sub" / "..") == real
    assert canonical(tmp_path / "link" / "new") == real / "new"
    assert canonical(Path("/")) == Path("/")


def test_canonical_gives_up_on_a_ring(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        canonical(tmp_path / "a")


def test_runtime_dir_is_the_same_for_every_way_to_the_mount_point(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    name = mountpoint.runtime_dir(tmp_path / "real").name
    assert mountpoint.runtime_dir(tmp_path / "link").name == name
    assert mountpoint.runtime_dir(tmp_path / "other").name != name
    assert len(name) == 16
    assert set(name) <= set("0123456789abcdef")


def test_readahead_of_a_device_without_a_knob_is_reported():
    problem = mountpoint.set_readahead(os.makedev(0, 1 << 19), 1 << 20)
    assert problem is not None
    assert "read_ahead_kb" in problem
