"""What differs between two configurations, and how much of it a running mount takes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tiercache.config import (
    Config,
    MountConfig,
    MoveConfig,
    OriginConfig,
    TierConfig,
    TransferConfig,
)
from tiercache.config_changes import changes, take_over
from tiercache.config_file import load_config
from tiercache.config_given import Given

NVME = TierConfig(name="nvme", paths=(Path("/a"),), capacity=1000)
HDD = TierConfig(name="hdd", paths=(Path("/b"),), capacity=2000)


def config(*tiers, **sections):
    return Config(
        origin=OriginConfig(url="s3://b"),
        mount=MountConfig(mountpoint=Path("/m")),
        tiers=tiers or (NVME, HDD),
        **sections,
    )


def test_nothing_differs_from_itself():
    assert list(changes(config(), config())) == []
    assert take_over(config(), config()) == config()


def test_live_settings_are_taken_on_and_the_others_stay():
    after = config(
        replace(NVME, capacity=4096, io_slots=3),
        HDD,
        transfer=TransferConfig(bandwidth=500 << 20, threads=9),
        move=MoveConfig(dry_run=True),
        log_level="debug",
    )
    effective = take_over(config(), after)
    assert [tuple(change) for change in changes(config(), effective)] == [
        ("tier[0].capacity", '"1kB"', '"4KiB"'),
        ("transfer.bandwidth", '"0B/s"', '"500MiB/s"'),
        ("move.dry_run", "false", "true"),
        ("log_level", '"info"', '"debug"'),
    ]
    assert [tuple(change) for change in changes(effective, after)] == [
        ("tier[0].io_slots", "0", "3"),
        ("transfer.threads", "8", "9"),
    ]


@pytest.mark.parametrize(
    "tiers",
    [
        (HDD, NVME),
        (replace(NVME, capacity=9000),),
        (replace(NVME, capacity=9000), HDD, replace(HDD, name="c", paths=(Path("/c"),))),
        (replace(NVME, capacity=9000, paths=(Path("/z"),)), HDD),
    ],
)
def test_a_capacity_never_lands_in_another_tier(tiers):
    after = config(*tiers, transfer=TransferConfig(bandwidth=1))
    effective = take_over(config(), after)
    assert effective.tiers == (NVME, HDD)
    assert effective.transfer.bandwidth == 1
    assert {change.name.partition(".")[0] for change in changes(effective, after)} <= {
        "tier[0]",
        "tier[1]",
        "tier[2]",
    }


def test_a_tier_that_is_new_or_gone_is_named():
    assert ("tier[1].name", '"hdd"', "absent") in list(changes(config(), config(NVME)))
    assert ("tier[1].name", "absent", '"hdd"') in list(changes(config(NVME), config()))


def test_given_makes_the_same_configuration_again(tmp_path, monkeypatch):
    file = tmp_path / "c.toml"
    file.write_text('[origin]\nurl = "s3://b"\n[mount]\nmountpoint = "/m"\numask = "077"\n')
    monkeypatch.chdir(tmp_path)
    given = Given(Path("c.toml"), {"mount": {"umask": "027"}}, {"mount.umask": "--umask"})
    again = Given.from_json(given.to_json())
    monkeypatch.chdir("/")
    assert again == replace(given, file=file)
    assert again.load() == load_config(file, {"mount": {"umask": "027"}})
    assert again.load().mount.umask == 0o027
