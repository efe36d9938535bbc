"""From TOML and command line to a Config, with every problem named at once."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.config import (
    CatalogConfig,
    Config,
    MountConfig,
    OriginConfig,
    PrefetchConfig,
    RuleConfig,
    TierConfig,
    TransferConfig,
)
from tiercache.config_fields import settings
from tiercache.config_file import (
    SECTIONS,
    config_from_json,
    config_to_json,
    default_cache_dir,
    load_config,
    merge,
    parse_config,
)
from tiercache.errors import ConfigError

_LISTS = {"tiers", "rules", "policies"}

EXAMPLE = Path(__file__).parents[2] / "tiercache.example.toml"

MINIMAL = {"origin": {"url": "s3://bucket/prefix"}, "mount": {"mountpoint": "/mnt/data"}}


def parse(text: str, **sections):
    """A minimal document with the TOML *text* over it."""
    return parse_config(merge({**MINIMAL, **sections}, tomllib.loads(text)))


def problems(document):
    with pytest.raises(ConfigError) as caught:
        parse_config(document)
    return caught.value.problems


def problem(section, key, value):
    """The one problem of a minimal document with `section.key = value`."""
    document = merge(MINIMAL, {section: {key: value}})
    [line] = problems(document)
    name = f"tier[0].{key}" if section == "tier" else f"{section}.{key}"
    assert line.startswith(f"{name}: ")
    return line.removeprefix(f"{name}: ")


# ---------------------------------------------------------------- what is right


def test_defaults_are_those_of_the_dataclasses():
    config = parse_config(MINIMAL)
    assert config == Config(
        origin=OriginConfig(url="s3://bucket/prefix"),
        mount=MountConfig(mountpoint=Path("/mnt/data")),
        tiers=(TierConfig(paths=(default_cache_dir("s3://bucket/prefix"),)),),
    )


def test_every_kind_of_value():
    config = parse(
        """
        log_level = "debug"
        [origin]
        endpoint_url = "http://[::1]:9000"
        anonymous = true
        path_style = false
        ca_bundle = "/etc/ca.pem"
        [mount]
        umask = 0o027
        metadata_ttl = "5m"
        negative_ttl = 0
        uid = 1000
        [transfer]
        memory = "1GiB"
        part = 8388608
        retry_budget = 1
        """
    )
    assert config.log_level == "debug"
    assert config.origin.anonymous
    assert config.origin.path_style is False
    assert config.origin.ca_bundle == Path("/etc/ca.pem")
    assert config.mount.umask == 0o027
    assert (config.mount.metadata_ttl_s, config.mount.negative_ttl_s) == (300.0, 0.0)
    assert config.mount.uid == 1000
    assert (config.transfer.memory, config.transfer.part) == (1 << 30, 8 << 20)
    assert config.transfer.retry_budget == 1.0


def test_tiers_in_their_order():
    config = parse_config(
        {
            **MINIMAL,
            "tier": [
                {"name": "nvme", "paths": ["/a", "/b"], "capacity": "1TB", "verify": "always"},
                {"name": "hdd", "paths": ["/c"], "policy": "lru"},
            ],
        }
    )
    assert [tier.name for tier in config.tiers] == ["nvme", "hdd"]
    assert config.tiers[0].paths == (Path("/a"), Path("/b"))
    assert config.cache_dir == Path("/a")


def test_the_only_tier_may_leave_its_place_to_us():
    config = parse_config({**MINIMAL, "tier": [{"capacity": "1GB"}]})
    assert config.tiers[0].paths == (default_cache_dir("s3://bucket/prefix"),)
    assert config.tiers[0].capacity == 10**9


def test_default_cache_dirs_are_apart_for_each_origin():
    places = {
        default_cache_dir("s3://a"),
        default_cache_dir("s3://b"),
        default_cache_dir("s3://a/b"),
        default_cache_dir("s3://a", "http://localhost:9000"),
        default_cache_dir("s3://a", "http://localhost:9001"),
    }
    assert len(places) == 5
    assert default_cache_dir("s3://a/b/") == default_cache_dir("s3://a/b")
    assert all(re.fullmatch(r"[0-9a-f]{16}", place.name) for place in places)


def test_home_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    config = parse_config({**MINIMAL, "tier": [{"paths": ["~/cache"]}]})
    assert config.cache_dir == Path("/home/alice/cache")


def test_the_example_is_valid():
    config = load_config(EXAMPLE)
    assert [tier.name for tier in config.tiers] == ["nvme", "hdd"]


def test_the_example_names_every_setting_with_its_default():
    """Uncommenting every line changes nothing but what has no default."""
    text = EXAMPLE.read_text()
    everything = tomllib.loads(re.sub(r"(?m)^#(?=[a-z_]+ = |\[)", "", text))
    named = {
        "": settings(Config).keys() - SECTIONS.keys() - _LISTS,
        **{name: settings(kind).keys() for name, kind in SECTIONS.items()},
    }
    for section, keys in named.items():
        table = everything[section] if section else everything
        assert keys <= table.keys(), section
    assert settings(TierConfig).keys() == everything["tier"][0].keys()
    full, short = parse_config({**everything, "origin": {"url": "s3://x"}}), load_config(EXAMPLE)
    assert full.transfer == short.transfer == TransferConfig()
    assert dataclasses.replace(full.prefetch, plan_file=None) == short.prefetch == PrefetchConfig()
    assert full.catalog == short.catalog == CatalogConfig()
    assert dataclasses.replace(full.mount, uid=None, gid=None, log_file=None) == short.mount
    assert full.tiers == short.tiers
    assert [settings(RuleConfig).keys()] == [rule.keys() for rule in everything["rule"]]
    assert [dict(policy.params) for policy in full.policies] == [everything["policy"]["adaptive"]]


# ---------------------------------------------------------------- what is wrong


def test_all_problems_at_once():
    found = problems(
        {
            "orgin": {},
            "log_level": "loud",
            "origin": {"url": "ftp://x", "paht_style": True},
            "mount": {"driver": "kernl", "metadata_ttl": "soon"},
            "tier": [{"name": "a", "paths": ["rel"]}, {"name": "b"}],
            "transfer": {"threads": True},
        }
    )
    assert [line.partition(":")[0] for line in found] == [
        "orgin",
        "origin.paht_style",
        "mount.driver",
        "mount.metadata_ttl",
        "mount.mountpoint",
        "transfer.threads",
        "tier[0].paths",
        "tier[1].paths",
        "log_level",
    ]


def test_unknown_names_are_refused_with_the_nearest():
    assert problems({**MINIMAL, "mout": {}}) == [
        'mout: unknown section or setting; did you mean "mount"?'
    ]
    assert problem("mount", "metadata_ttl_s", 5) == (
        'unknown setting; did you mean "metadata_ttl"?'
    )
    assert "known: " in problem("catalog", "zzz", 1)


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("mount", "driver", "kernal", 'not one of auto, kernel, libfuse; did you mean "kernel"?'),
        ("mount", "consistency", "eventual", "not one of immutable, ttl, strict"),
        ("tier", "verify", "never", "not one of boot, always"),
        ("tier", "policy", "lruu", 'did you mean "lru"?'),
        ("transfer", "connections", 0, "0 is too small; at least 1"),
        ("transfer", "connections", True, "write a whole number"),
        ("transfer", "connections", "32", "write a whole number"),
        ("transfer", "connections", 1.5, "write a whole number"),
        ("transfer", "part", "8 apples", "64MiB"),
        ("transfer", "part", 1.5, "64MiB"),
        ("transfer", "part", "1TiB", "1TiB is too large; at most 5GiB"),
        ("transfer", "stall_timeout", "0s", "at least 0.1s"),
        ("transfer", "stall_timeout", float("nan"), "60s"),
        ("transfer", "retry_budget", "much", "write a finite number"),
        ("mount", "umask", "rwx", "octal"),
        ("mount", "umask", 0o1000, "0o1000 is too large; at most 0o777"),
        ("mount", "uid", -1, "-1 is too small"),
        ("mount", "uid", (1 << 32) - 1, "4294967295 is too large; at most 4294967294"),
        ("mount", "allow_other", 1, "write true or false"),
        ("mount", "allow_other", "yes", "write true or false"),
        ("mount", "mountpoint", "data", "absolute"),
        ("mount", "mountpoint", "", "is empty"),
        ("origin", "region", "eu\ncentral", "control characters"),
        ("origin", "region", 5, "is a number, not text"),
        ("origin", "url", "bucket", "s3://BUCKET"),
        ("origin", "url", "s3:///x", "names no bucket"),
        ("origin", "url", "file://data", "not an absolute directory"),
        ("origin", "endpoint_url", "localhost:9000", "http://HOST"),
        ("origin", "endpoint_url", "http://[::1", "http://HOST"),
        ("tier", "paths", "/cache", 'write ["/cache"]'),
        ("tier", "paths", [], "at least one directory"),
        ("tier", "paths", [5], "not text"),
        ("tier", "capacity", -1, "too small"),
        ("tier", "low_water", 0.95, "0.95 is not below high_water, which is 0.95"),
        ("move", "bandwidth", "500 apples/s", '"500MiB/s"'),
        ("transfer", "bandwidth", 1.5, '"500MiB/s"'),
    ],
)
def test_a_wrong_value_says_what_would_be_right(section, key, value, expected):
    assert expected in problem(section, key, value)


@pytest.mark.parametrize("value", [5, "x", [], tomllib.loads("d = 2026-01-01")["d"]])
def test_a_section_that_is_no_table(value):
    [line] = problems({**MINIMAL, "transfer": value})
    assert line.endswith("not a table; write [transfer]")


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        ([], "tier: is empty; leave it out for the default or write one [[tier]]"),
        ({"name": "x"}, "tier: is a table, not a list of tables; write [[tier]]"),
        ([5], "tier[0]: is a number, not a table; write [tier[0]]"),
        (
            [{"name": "a", "paths": ["/a"]}, {"name": "a", "paths": ["/b"]}],
            'tier[1].name: "a" is already the name of tier[0]',
        ),
        (
            [{"name": "a", "paths": ["/a"]}, {"name": "b", "paths": ["/b", "/x/../a"]}],
            "tier[1].paths: /a is already used by tier[0]",
        ),
        (
            [{"name": "a", "paths": ["/a/b"]}, {"name": "b", "paths": ["/a"]}],
            "tier[1].paths: /a overlaps /a/b of tier[0]; directories must be apart",
        ),
        ([{"paths": ["/a", "/a/"]}], "tier[0].paths: /a is already used by tier[0]"),
    ],
)
def test_tiers_that_cannot_be(tiers, expected):
    assert problems({**MINIMAL, "tier": tiers}) == [expected]


@pytest.mark.parametrize(
    ("mountpoint", "cache", "expected"),
    [
        ("/mnt/d", "/mnt/d", "tier[0].paths: /mnt/d is inside the mount point /mnt/d"),
        ("/mnt/d", "/mnt/d/cache", "tier[0].paths: /mnt/d/cache is inside the mount point /mnt/d"),
        ("/c/m", "/c", "mount.mountpoint: /c/m is inside the cache directory /c"),
    ],
)
def test_f11_cache_and_mount_point_inside_each_other(mountpoint, cache, expected):
    document = merge(MINIMAL, {"mount": {"mountpoint": mountpoint}, "tier": {"paths": [cache]}})
    assert problems(document) == [expected]


@pytest.mark.parametrize(
    ("section", "values", "key"),
    [
        ("transfer", {"connections": 4, "connections_reserved": 4}, "connections_reserved"),
        ("transfer", {"memory": "4MiB", "part": "8MiB"}, "part"),
        ("transfer", {"backoff_base": "9s", "backoff_max": "8s"}, "backoff_base"),
        ("prefetch", {"window_min": "8MiB", "window_max": "4MiB"}, "window_min"),
        ("origin", {"anonymous": True, "profile": "x"}, "anonymous"),
    ],
)
def test_settings_that_contradict_each_other(section, values, key):
    [line] = problems(merge(MINIMAL, {section: values}))
    assert line.startswith(f"{section}.{key}: ")


def test_a_problem_is_named_as_it_was_given():
    with pytest.raises(ConfigError) as caught:
        parse_config(
            merge(MINIMAL, {"tier": {"capacity": "x"}}), {"tier[0].capacity": "--cache-size"}
        )
    assert caught.value.problems[0].startswith("--cache-size: ")


# ---------------------------------------------------------------- file and command line


def test_the_command_line_wins_over_the_file(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(
        '[origin]\nurl = "s3://b"\nregion = "x"\n[mount]\nmountpoint = "/m"\n'
        '[[tier]]\npaths = ["/c"]\ncapacity = 5\n'
    )
    config = load_config(file, {"origin": {"region": "y"}, "tier": {"capacity": "1GB"}})
    assert config.origin.region == "y"
    assert config.tiers == (TierConfig(paths=(Path("/c"),), capacity=10**9),)


def test_one_cache_dir_cannot_stand_for_several_tiers():
    tiers = [{"name": "a", "paths": ["/a"]}, {"name": "b", "paths": ["/b"]}]
    with pytest.raises(ConfigError, match="2 tiers"):
        merge({**MINIMAL, "tier": tiers}, {"tier": {"paths": ["/c"]}})


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"[x", "is not TOML"), (b"\xff", "is not TOML"), (None, "No such file")],
)
def test_a_file_that_cannot_be_read(tmp_path, content, expected):
    file = tmp_path / "c.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        load_config(file)


# ---------------------------------------------------------------- JSON


def values(hint, meta):
    """Any value that a field of this type and metadata may hold."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return configs(hint)
    if typing.get_origin(hint) is tuple:
        return st.lists(values(typing.get_args(hint)[0], {}), min_size=1, max_size=3).map(tuple)
    if args := typing.get_args(hint):
        return st.one_of([st.none() if arm is type(None) else values(arm, meta) for arm in args])
    simple = {
        bool: st.booleans(),
        str: st.text(),
        int: st.integers(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        # Names are bytes: some are no UTF-8 and travel as surrogates.
        Path: st.binary(max_size=9).map(
            lambda b: Path("/", b.replace(b"\0", b"_").decode("utf-8", "surrogateescape"))
        ),
    }
    return simple[hint]


def configs(kind):
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind,
        **{item.name: values(hints[item.name], item.metadata) for item in dataclasses.fields(kind)},
    )


@given(configs(Config))
def test_json_round_trip_is_exact(config):
    assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config


@pytest.mark.parametrize(
    "document",
    [{}, {"origin": {}}, {"origin": 5}, {**config_to_json(parse_config(MINIMAL)), "extra": 1}],
)
def test_json_that_we_did_not_write_is_refused(document):
    with pytest.raises(ConfigError, match="not a configuration"):
        config_from_json(document)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from([*SECTIONS, "tier", "log_level", "x"]),
        st.one_of(
            junk,
            st.dictionaries(st.sampled_from(["url", "mountpoint", "paths", "part", "uid"]), junk),
        ),
    )
)
def test_whatever_is_written_is_read_or_refused(document):
    try:
        config = parse_config(document)
    except ConfigError:
        return
    assert isinstance(config, Config)
