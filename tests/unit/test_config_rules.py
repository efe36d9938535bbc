"""`[[rule]]` and `[policy.NAME]`: read exactly or refused in full."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from tiercache.config import HeatConfig, RuleConfig
from tiercache.config_file import config_from_json, config_to_json, parse_config
from tiercache.config_origins import effective
from tiercache.errors import ConfigError
from tiercache.policy import Param, Policy
from tiercache.stack import make_policy

BASE = {
    "origin": {"url": "s3://bucket"},
    "mount": {"mountpoint": "/mnt/data"},
    "tier": [{"name": "nvme", "paths": ["/a"]}, {"name": "hdd", "paths": ["/b"]}],
}


class Strange(Policy):
    """A stranger's policy."""

    params: ClassVar = {"depth": Param(3, 1, 9, "how deep")}

    def __init__(self, capacity, depth=3):
        self.given = capacity, depth


def problems(**tables):
    with pytest.raises(ConfigError) as caught:
        parse_config({**BASE, **tables})
    return caught.value.problems


def test_rules_and_parameters_are_read_and_travel():
    config = parse_config(
        {
            **BASE,
            "rule": [
                {"name": "idx", "suffixes": [".idx"], "pin": True},
                {"name": "big", "path": "raw/**", "min_size": "1GiB", "share": {"nvme": "1TiB"}},
            ],
            "policy": {"adaptive": {"margin": 2}},
        }
    )
    assert config.rules == (
        RuleConfig(name="idx", suffixes=(".idx",), pin=True),
        RuleConfig(name="big", path="raw/**", min_size=1 << 30, share=(("nvme", 1 << 40),)),
    )
    assert config_from_json(config_to_json(config)) == config
    rows = {row.name: row.text for row in effective(config, None, {})}
    assert rows["rule[1].share"] == '{nvme = "1TiB"}'
    assert rows["policy.adaptive.margin"] == "2"


def test_everything_that_is_wrong_is_said_at_once():
    found = problems(
        rule=[
            {"name": "a", "path": "x//y", "share": {"nvmee": "1TiB"}},
            {"name": "a", "suffix": [".x"]},
            {"name": "a", "suffixes": ".x"},
            {"name": "a"},
        ],
        policy={
            "adaptive": {"margin": 0.5, "half_live": 3},
            "lruu": {},
            "mine": {"entry_point": "no.such:Class"},
        },
    )
    assert [line.partition(":")[0] for line in found] == [
        "rule[1].suffix",
        "rule[2].suffixes",
        "policy.adaptive.margin",
        "policy.adaptive.half_live",
        "policy.lruu",
        "policy.mine",
        "rule[0].path",
        "rule[0].share",
        "rule[1].name",
    ]
    assert problems(rule={"name": "a"}) == [
        "rule: is a table, not a list of tables; write [[rule]]"
    ]
    assert len(problems(policy={"lru": 3}, rule=[{}])) == 2


def test_adaptive_is_the_default_and_forgets_as_heat_does():
    config = parse_config(BASE)
    assert {tier.policy for tier in config.tiers} == {"adaptive"}
    config = replace(config, heat=HeatConfig(half_life_s=77.0))
    assert make_policy(config, "adaptive", 1)._half_life == 77.0
    own = parse_config({**BASE, "policy": {"adaptive": {"half_life": 5}}})
    assert make_policy(own, "adaptive", 1)._half_life == 5
    assert make_policy(config, "lru", 1) is not None


def test_class_of_a_third_party_gets_its_parameters():
    place = f"{__name__}:Strange"
    tiers = [{"name": "nvme", "paths": ["/a"], "policy": "strange"}]
    table = {"strange": {"entry_point": place, "depth": 7}}
    config = parse_config({**BASE, "tier": tiers, "policy": table})
    assert make_policy(config, "strange", 42).given == (42, 7)
    with pytest.raises(ConfigError, match="depth: 10 is not from 1 to 9"):
        parse_config(
            {**BASE, "tier": tiers, "policy": {"strange": {"entry_point": place, "depth": 10}}}
        )
