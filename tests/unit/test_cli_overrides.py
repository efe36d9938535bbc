"""Flags and fstab options as settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiercache.config import TierConfig
from tiercache.config_fields import settings
from tiercache.config_file import SECTIONS
from tiercache.errors import ConfigError
from tiercache_cli.mount import SETTINGS, read_given
from tiercache_cli.overrides import Overrides, places

PLACES = ("s3://bucket", "/mnt/data")


def config(*options, flags=None, places=PLACES):
    return read_given(places, None, options, flags or {}).load()


def problems(*options, flags=None):
    with pytest.raises(ConfigError) as caught:
        config(*options, flags=flags)
    return caught.value.problems


def test_no_two_settings_share_a_name():
    total = sum(not s.required for kind in SECTIONS.values() for s in settings(kind).values())
    outside_tiers = [place for place in places().values() if place.section not in ("tier", "")]
    assert len(outside_tiers) == total
    assert (
        places()
        .keys()
        .isdisjoint(settings(TierConfig).keys() - {"reserve_free", "policy", "verify"})
    )


def test_what_says_too_little_alone_is_qualified():
    found = config("move.bandwidth=1MiB,bandwidth=2MiB,heat.half_life=1h")
    assert (found.move.bandwidth, found.transfer.bandwidth) == (1 << 20, 2 << 20)
    assert found.heat.half_life_s == 3600


def test_every_flag_is_a_setting():
    assert {name.replace("-", "_") for name, _, _ in SETTINGS} <= places().keys()


def test_flags_and_options_name_the_same_settings():
    by_flags = config(
        flags={
            "cache_dir": "/c",
            "cache_size": "1GB",
            "allow_other": True,
            "uid": "7",
            "umask": "077",
            "profile": None,
        }
    )
    by_options = config("cache_dir=/c,cache-size=1GB,allow_other,uid=7,umask=077")
    assert by_flags == by_options
    assert by_flags.tiers == (TierConfig(paths=(Path("/c"),), capacity=10**9),)
    assert (by_flags.mount.uid, by_flags.mount.umask) == (7, 0o077)


def test_every_setting_can_be_an_option():
    found = config("metadata_ttl=5m,connections=64,retry_budget=0.25,passthrough=no,part=4MiB")
    assert found.mount.metadata_ttl_s == 300
    assert found.transfer.connections == 64
    assert found.transfer.retry_budget == 0.25
    assert found.mount.passthrough is False
    assert found.transfer.part == 4 << 20


def test_generic_mount_options_are_ignored():
    generic = (
        "ro,nosuid,nodev,noexec,_netdev,nofail,noauto,user,defaults,exec,dev,noatime,"
        "x-systemd.automount,x-systemd.requires=network-online.target,comment=hello"
    )
    assert config(generic) == config()


def test_flags_win_over_options_and_later_options_over_earlier():
    assert config("region=a", "region=b").origin.region == "b"
    assert config("region=a", flags={"region": "c"}).origin.region == "c"


def test_a_backslash_keeps_a_comma():
    assert config(r"cache_dir=/a\,b").cache_dir == Path("/a,b")


def test_relative_places_count_from_here():
    found = config("cache_dir=c", places=("s3://b", "m"))
    assert found.cache_dir == Path.cwd() / "c"
    assert found.mount.mountpoint == Path(os.getcwd(), "m")


def test_rw_is_refused():
    assert problems("rw") == ["-o rw: the tree is read-only; leave it out or write ro"]


def test_unknown_options_are_all_named():
    assert problems("metadta_ttl=5,allow_root,rw") == [
        '-o metadta_ttl: unknown option; did you mean "metadata_ttl"?',
        '-o allow_root: unknown option; did you mean "allow_other"?',
        "-o rw: the tree is read-only; leave it out or write ro",
    ]


def test_wrong_values_are_named_as_they_were_given():
    found = problems(
        "connections=many,allow_other=maybe", flags={"cache_size": "x", "driver": "kernl"}
    )
    assert [line.partition(":")[0] for line in found] == [
        "--driver",
        "-o allow_other",
        "-o connections",
        "--cache-size",
    ]


@pytest.mark.parametrize("name", ["url", "mountpoint", "paths", "capacity", "tier", "origin"])
def test_what_has_an_argument_of_its_own_is_no_option(name):
    overrides = Overrides()
    overrides.add_options(f"{name}=x")
    with pytest.raises(ConfigError, match=f"-o {name}: unknown option"):
        overrides.check()


def test_the_file_may_give_either_place(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('[origin]\nurl = "s3://from-file"\n[mount]\nmountpoint = "/from/file"\n')
    both = read_given((), file, (), {}).load()
    assert (both.origin.url, both.mount.mountpoint) == ("s3://from-file", Path("/from/file"))
    assert read_given(("/m",), file, (), {}).load().mount.mountpoint == Path("/m")
    assert read_given(("file:///d",), file, (), {}).load().origin.url == "file:///d"
