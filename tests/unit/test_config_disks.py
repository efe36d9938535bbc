"""What disks and links rule out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
