"""What disks and links rule out."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tiercache import disk_probe
from tiercache.config import Config, MountConfig, OriginConfig, TierConfig
from tiercache.config_disks import check_disks
from tiercache.errors import ConfigError


def config(*tiers: TierConfig) -> Config:
    return Config(
        origin=OriginConfig(url="s3://b"), mount=MountConfig(mountpoint=Path("/m")), tiers=tiers
    )


def tier(name, *paths, capacity=0):
    return TierConfig(name=name, paths=paths, capacity=capacity, reserve_free=0)


def test_one_tier_that_fits_has_no_problem_though_it_is_not_there_yet(tmp_path):
    assert check_disks(config(tier("a", tmp_path / "later" / "cache", capacity=4096))) == []


def test_two_tiers_on_one_device_are_only_a_warning(tmp_path):
    [warning] = check_disks(config(tier("a", tmp_path / "a"), tier("b", tmp_path / "b")))
    assert "tier[0] a and tier[1] b share a device" in warning


@pytest.mark.parametrize("below", ["", "inner"])
def test_links_that_lead_to_one_place_are_found(tmp_path, below):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError) as caught:
        check_disks(config(tier("a", tmp_path / "real"), tier("b", tmp_path / "link" / below)))
    [line] = caught.value.problems
    assert line.startswith("tier[1].paths: ")
    assert "overlaps" in line


def test_all_problems_come_at_once(tmp_path):
    total = os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    (tmp_path / "link").symlink_to(tmp_path / "a")
    first = tier("a", tmp_path / "a", tmp_path / "c", capacity=total + 1)
    with pytest.raises(ConfigError) as caught:
        check_disks(config(first, tier("b", tmp_path / "link", capacity=2 * total)))
    names = [line.partition(":")[0] for line in caught.value.problems]
    assert names == ["tier[1].paths", "tier[0].capacity", "tier[1].capacity"]


def test_the_whole_disk_is_allowed_less_what_is_reserved(tmp_path):
    total = os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    check_disks(config(tier("a", tmp_path, capacity=total)))
    reserved = TierConfig(paths=(tmp_path,), capacity=total, reserve_free=1)
    with pytest.raises(ConfigError, match=f"at most {total - 1} bytes"):
        check_disks(config(reserved))


@pytest.fixture
def hung(tmp_path, monkeypatch):
    """A directory that never answers, as far as the probe can tell."""
    place = tmp_path / "hung"
    monkeypatch.setattr(
        disk_probe,
        "_PROBE",
        f"import sys, time\nif sys.argv[1] == {str(place)!r}: time.sleep(1000)\n"
        + disk_probe._PROBE,
    )
    return place


def children():
    return psutil.Process().children()


def test_a_disk_that_hangs_is_named_and_the_others_are_judged(tmp_path, hung):
    before = children()
    total = os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    tiers = tier("a", hung, capacity=1 << 60), tier("b", tmp_path / "b", capacity=2 * total)
    with pytest.raises(ConfigError) as caught:
        check_disks(config(*tiers), timeout_s=2.0)
    first, second = caught.value.problems
    assert first == f"tier[0].paths: {hung}: no answer within 2 s"
    assert second.startswith("tier[1].capacity: ")
    _, alive = psutil.wait_procs([each for each in children() if each not in before], timeout=10)
    assert not alive


def test_no_descriptor_is_left_open(tmp_path, hung):
    before = sorted(os.listdir("/proc/self/fd"))
    check_disks(config(tier("a", tmp_path / "a")))
    with pytest.raises(ConfigError):
        check_disks(config(tier("a", hung)), timeout_s=0.1)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_path_through_a_file_is_judged_by_what_is_above(tmp_path):
    (tmp_path / "file").write_text("x")
    assert check_disks(config(tier("a", tmp_path / "file" / "cache"))) == []


def test_names_that_are_no_text(tmp_path):
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    place.mkdir()
    [answer] = disk_probe.ask_disks([place])
    assert answer.real == place
    assert answer.device == place.stat().st_dev
