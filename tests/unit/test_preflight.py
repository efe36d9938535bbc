"""Each thing that can be wrong before a mount has one line that says what to do."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from tiercache.errors import MountError
from tiercache.fuse import fusermount, preflight, syscalls
from tiercache.fuse.mountpoint import FSTYPE, Health, Mount, mount_table

needs_root = pytest.mark.skipif(not syscalls.privileged(), reason="needs CAP_SYS_ADMIN")


@pytest.fixture
def unprivileged(monkeypatch):
    """As an ordinary user sees the system."""
    monkeypatch.setattr(syscalls, "privileged", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def test_h13_no_device(tmp_path):
    with pytest.raises(MountError, match=r"does not exist: .*modprobe fuse.*--device"):
        preflight.check_device(tmp_path / "fuse")


def test_h13_no_permission_on_the_device(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MountError, match=r"no permission to open .*--cap-add SYS_ADMIN"):
        preflight.check_device(tmp_path / "fuse")


def test_h13_root_without_the_capability(monkeypatch):
    monkeypatch.setattr(syscalls, "privileged", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(MountError, match="--cap-add SYS_ADMIN --device /dev/fuse"):
        preflight.check_privileges(allow_other=False)


@pytest.mark.usefixtures("unprivileged")
def test_h13_no_fusermount(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MountError, match=r"fusermount3 not found: .*apt install fuse3"):
        preflight.check_privileges(allow_other=False)


@pytest.mark.usefixtures("unprivileged")
def test_j01_allow_other_without_permission(tmp_path, monkeypatch):
    program = tmp_path / "fusermount3"
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    conf = tmp_path / "fuse.conf"
    conf.write_text("#user_allow_other\nmount_max = 10\n")
    with pytest.raises(MountError, match=f"add a line 'user_allow_other' to {conf}"):
        preflight.check_privileges(allow_other=True, conf=conf)
    preflight.check_privileges(allow_other=False, conf=conf)
    conf.write_text("mount_max = 10\n  user_allow_other \n")
    preflight.check_privileges(allow_other=True, conf=conf)
    with pytest.raises(MountError):
        preflight.check_privileges(allow_other=True, conf=tmp_path / "missing")


@pytest.mark.parametrize("names", [["fusermount3"], ["fusermount"], ["fusermount", "fusermount3"]])
def test_h01_either_name_of_the_helper_is_found(tmp_path, names):
    for name in names:
        (tmp_path / name).touch(mode=0o755)
    found = fusermount.find_program(f"/nonexistent::{tmp_path}")
    assert found == f"{tmp_path}/{names[-1]}"


def test_missing_mount_point(tmp_path):
    with pytest.raises(MountError, match=r"does not exist: mkdir -p"):
        preflight.check_mountpoint(tmp_path / "missing")


def test_mount_point_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MountError, match="is not a directory"):
        preflight.check_mountpoint(tmp_path / "file")


def test_h08_mount_point_not_empty(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MountError, match=r"not empty: .*-o nonempty"):
        preflight.check_mountpoint(tmp_path)
    preflight.check_mountpoint(tmp_path, nonempty=True)
    preflight.check_mountpoint(Path(tmp_path / "file").parent, nonempty=True)


def mount_of(mountpoint: Path, fstype: str = FSTYPE) -> Mount:
    return Mount(mountpoint, "s3://b", 1, fstype, Path("/"))


def test_h08_inside_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "find_mounts", lambda: [mount_of(tmp_path)])
    with pytest.raises(MountError, match=f"is inside the tiercache mount {tmp_path}"):
        preflight.check_mountpoint(tmp_path / "sub")


@pytest.mark.parametrize(
    ("fstype", "health", "message"),
    [
        (FSTYPE, Health.OK, "already a tiercache mount of s3://b"),
        (FSTYPE, Health.DENIED, "already a tiercache mount"),
        (FSTYPE, Health.HUNG, "does not answer: tiercache umount --force"),
        ("fuse.sshfs", Health.DEAD, r"a dead fuse.sshfs mount: umount -l"),
        ("nfs4", Health.HUNG, r"a hung nfs4 mount: umount -l"),
    ],
)
def test_h01_what_is_not_our_own_corpse_is_never_removed(
    tmp_path, monkeypatch, fstype, health, message
):
    monkeypatch.setattr(preflight, "top_mount", lambda path: mount_of(path, fstype))
    monkeypatch.setattr(preflight, "health", lambda _path: health)
    monkeypatch.setattr(fusermount, "unmount", None)
    with pytest.raises(MountError, match=message):
        preflight.clear_dead_mounts(tmp_path)


def test_h01_our_corpses_are_cleared_down_to_a_healthy_stranger(tmp_path, monkeypatch):
    stack = [mount_of(tmp_path, "ext4"), mount_of(tmp_path), mount_of(tmp_path)]
    monkeypatch.setattr(preflight, "top_mount", lambda _path: stack[-1])
    monkeypatch.setattr(
        preflight, "health", lambda _: Health.DEAD if stack[-1].fstype == FSTYPE else Health.OK
    )
    monkeypatch.setattr(fusermount, "unmount", lambda _path, lazy: stack.pop() if lazy else None)
    preflight.clear_dead_mounts(tmp_path)
    assert [mount.fstype for mount in stack] == ["ext4"]


class TestPlaces:
    @pytest.fixture
    def mnt(self, tmp_path):
        path = tmp_path / "mnt"
        path.mkdir()
        return path

    @pytest.mark.parametrize(
        ("cache", "message"),
        [
            ("mnt", "is the mount point itself"),
            ("mnt/sub", "is inside the mount point"),
            (".", "which belongs to tiercache alone"),
            ("link", "is the mount point itself"),
            ("link/sub", "is inside the mount point"),
        ],
    )
    def test_f11_cache_and_mount_point_meet(self, mnt, tmp_path, cache, message):
        (tmp_path / "link").symlink_to("mnt")
        with pytest.raises(MountError, match=message):
            preflight.check_places(mnt, [tmp_path / cache], None)

    def test_f11_log_file_inside(self, mnt, tmp_path):
        (tmp_path / "link").symlink_to("mnt")
        for log in (mnt / "log", tmp_path / "link" / "sub" / "log"):
            with pytest.raises(MountError, match=r"log file .* is inside the mount point"):
                preflight.check_places(mnt, [], log)

    def test_neighbours_are_fine(self, mnt, tmp_path):
        preflight.check_places(mnt, [tmp_path / "mnt2", tmp_path / "cache"], tmp_path / "mnt.log")

    @needs_root
    @pytest.mark.mount
    @pytest.mark.parametrize("part", ["", "sub"])
    def test_f11_through_a_bind_mount(self, mnt, tmp_path, part):
        (mnt / "sub").mkdir()
        alias = tmp_path / "alias"
        alias.mkdir()
        syscalls.mount(str(mnt / part), alias, "none", 4096, "")
        try:
            with pytest.raises(MountError, match="mount point"):
                preflight.check_places(mnt, [alias], None)
            with pytest.raises(MountError, match="log file"):
                preflight.check_places(mnt, [], alias / "log")
        finally:
            syscalls.umount(alias)


def test_location_ignores_mounts_that_are_covered(tmp_path):
    table = [
        Mount(Path("/"), "/dev/a", 1, "ext4", Path("/")),
        Mount(Path("/data/set"), "x", 2, "ext4", Path("/")),
        Mount(Path("/data"), "/dev/b", 3, "xfs", Path("/vol")),
        Mount(Path("/data"), "/dev/c", 4, "xfs", Path("/vol2")),
    ]
    assert preflight.location(Path("/data/nope/f"), table) == (4, Path("/vol2/nope/f"))
    assert preflight.location(Path("/data/set/f"), table) == (2, Path("/f"))
    assert preflight.location(Path("/nope"), table) == (1, Path("/nope"))
    assert preflight.location(tmp_path, mount_table())[1] != Path("/")


def test_h10_soft_limit_of_open_files_is_raised():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        preflight.raise_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_device_of_this_system_is_a_character_device():
    if not preflight.DEVICE.exists():
        pytest.skip("no /dev/fuse here")
    assert stat.S_ISCHR(preflight.DEVICE.stat().st_mode)
