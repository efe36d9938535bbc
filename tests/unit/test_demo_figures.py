"""What the demo says about an epoch, and its command line."""

import json

import click
import pytest
from click.testing import CliRunner

from tiercache_cli.demo.command import demo, missing_packages, size_in_bytes
from tiercache_cli.demo.figures import Counters, Epoch, Outcome


def status(**counters):
    return {
        "driver": "kernel",
        "passthrough": True,
        "passthrough_reason": "",
        "tiers": [{"hit_bytes": 5}, {"hit_bytes": counters.pop("tier", 0)}],
        "counters": {"origin_bytes": 0, "bytes_read": 0, "opens": 0, **counters},
        "worker_facts": {"passthrough_opens": 3},
    }


def test_counters_add_the_tiers_and_subtract():
    before = Counters.of(status(tier=10, origin_bytes=100, opens=1))
    after = Counters.of(status(tier=40, origin_bytes=150, bytes_read=7, opens=4))
    assert before.tier_bytes == 15
    assert after.since(before) == Counters(
        origin_bytes=50, tier_bytes=30, answered_bytes=7, opens=3, passthrough_opens=0
    )


def test_a_driver_without_passthrough_counts_none():
    plain = status() | {"worker_facts": {}}
    assert Counters.of(plain).passthrough_opens == 0


@pytest.mark.parametrize(("answered", "kernel"), [(0, 1000), (400, 600), (5000, 0)])
def test_kernel_bytes_are_what_the_daemon_did_not_answer(answered, kernel):
    epoch = Epoch(1, 10, 1000, 2.0, Counters(answered_bytes=answered))
    assert epoch.kernel_bytes == kernel
    found = epoch.as_json()
    assert (found["samples_per_s"], found["bytes_per_s"]) == (5.0, 500.0)


def test_problems_make_the_outcome_bad_and_are_not_repeated_for_ever():
    outcome = Outcome("s3://demo", "/mnt", 1, 1, 1)
    outcome.describe_mount(status())
    outcome.add_problems("epoch 1", {"wrong": [], "missing": []})
    assert json.loads(json.dumps(outcome.as_json()))["ok"]
    outcome.add_problems("epoch 2", {"wrong": [f"s{n}" for n in range(9)], "missing": ["x"]})
    assert not outcome.ok
    assert len(outcome.problems) == 5
    assert outcome.problems[3] == "epoch 2: 6 more not as stored"


def test_missing_packages_are_named_as_a_person_installs_them():
    assert missing_packages({"json": "json", "no_such_module": "no-such-package"}) == [
        "no-such-package"
    ]


def test_sizes_are_read_as_everywhere():
    context, option = click.Context(demo), demo.params[0]
    assert size_in_bytes(context, option, "200MB") == 200_000_000
    for text in ("many", "1KB"):
        with pytest.raises(click.BadParameter):
            size_in_bytes(context, option, text)


def test_help_starts_nothing():
    done = CliRunner().invoke(demo, ["--help"])
    assert done.exit_code == 0
    assert "--keep" in done.output
