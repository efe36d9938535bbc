"""A real mount over a small fast tier and a large slow one: data moves as the rules say."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tiercache.testing.data import check
from tiercache.testing.mounting import COMMAND
from tiercache.types import KIB, MIB

pytestmark = pytest.mark.mount


@pytest.fixture
def tiered(bucket, tmp_path):
    """`tiered(nvme_kib, hdd_kib, ...)`: a mount of the bucket over one tier or two."""

    def mount(nvme, hdd=256 * KIB, policy="lru", half_life="6h", **move):
        # Little memory: what no tier takes is otherwise found there again, as in the page cache.
        lines = ["[transfer]", 'memory = "4MiB"', 'part = "1MiB"']
        lines += ["[heat]", f'half_life = "{half_life}"']
        for name, kib in (("nvme", nvme), ("hdd", hdd)):
            if kib:
                lines += [
                    "[[tier]]",
                    f'name = "{name}"',
                    f'paths = ["{tmp_path / name}"]',
                    f'capacity = "{kib}KiB"',
                    'reserve_free = "0"',
                    f'policy = "{policy}"',
                ]
        move = {"interval": "100ms", "backoff": "never", "residence": "0s", **move}
        lines += ["[move]", *(f"{key} = {_toml(value)}" for key, value in move.items())]
        config = tmp_path / "tiers.toml"
        config.write_text("\n".join(lines) + "\n")
        options = ("--config", str(config), "--endpoint-url", bucket.server.endpoint_url)
        prepared = replace(bucket.prepare(), options=options)
        prepared.mount()
        return prepared

    return mount


def _toml(value):
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'


def read(mount, name, seed):
    check((mount.mountpoint / name).read_bytes(), 0, seed)


def tiers(mount):
    return {tier["name"]: tier for tier in mount.status()["tiers"]}


def wait_for(mount, condition):
    """Until the background has done it."""
    end = time.monotonic() + 30
    while not condition(tiers(mount)):
        assert time.monotonic() < end, tiers(mount)
        time.sleep(0.05)
    return tiers(mount)


def test_what_does_not_fit_above_goes_down_and_is_still_local(bucket, tiered):
    for n in range(19):
        bucket.put(f"f{n:02}", MIB, n)
    mount = tiered(20 * KIB)
    for n in range(19):
        read(mount, f"f{n:02}", n)
    found = wait_for(mount, lambda seen: seen["nvme"]["used"] <= seen["nvme"]["low_water"])
    assert found["nvme"]["demotions"] >= 1
    assert found["hdd"]["objects"] + found["nvme"]["objects"] == 19
    gets = mount.status()["counters"]["origin_gets"]
    for n in range(19):
        read(mount, f"f{n:02}", n)
    assert mount.status()["counters"]["origin_gets"] == gets


def test_a_dry_run_moves_nothing(bucket, tiered):
    for n in range(19):
        bucket.put(f"f{n:02}", MIB, n)
    mount = tiered(20 * KIB, dry_run=True)
    for n in range(19):
        read(mount, f"f{n:02}", n)
    log = Path(mount.status()["log"])
    wait_for(mount, lambda _seen: "would move" in log.read_text())
    assert tiers(mount)["nvme"]["demotions"] == 0
    assert tiers(mount)["hdd"]["objects"] == 0


def where(mount, name):
    command = [*COMMAND, "where", str(mount.mountpoint / name), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)[
        0
    ]


def test_what_was_demoted_and_becomes_hot_goes_up_whole_and_is_passed_through(bucket, tiered):
    for n in range(19):
        bucket.put(f"f{n:02}", MIB, n)
    mount = tiered(20 * KIB)
    for n in range(19):
        read(mount, f"f{n:02}", n)
    wait_for(mount, lambda seen: seen["nvme"]["used"] <= seen["nvme"]["low_water"])
    assert where(mount, "f00")["tier"] == "hdd"
    for _ in range(8):
        read(mount, "f00", 0)
    found = wait_for(mount, lambda seen: seen["hdd"]["promotions"] >= 1)
    assert found["hdd"]["promotions"] == 1
    for remount in (False, True):
        if remount:
            mount.unmount()
            mount.mount()
        facts = where(mount, "f00")
        assert (facts["tier"], facts["resident_bytes"]) == ("nvme", MIB)
        assert facts["passthrough"], facts["passthrough_reason"]
        before = mount.status()["counters"]
        read(mount, "f00", 0)
        after = mount.status()["counters"]
        assert after["opens"] == before["opens"] + 1
        assert after["reads"] == before["reads"], "the kernel read it without us"
        assert after["origin_bytes"] == before["origin_bytes"]


def warm(mount, *options):
    """Status and report of a fill of the whole mount."""
    done = subprocess.run(
        [*COMMAND, "warm", mount.mountpoint, *options, "--json"],
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.stderr == b"", done
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize("tier", ["nvme", "hdd"])
def test_k06_a_fill_of_one_tier_leaves_the_other_alone(bucket, tiered, tier):
    for n in range(8):
        bucket.put(f"f{n}", MIB, n)
    mount = tiered(64 * KIB)
    status, report = warm(mount, "--tier", tier)
    assert (status, report["complete"], report["where"]) == (0, True, {tier: 8 * MIB})
    objects = {name: found["objects"] for name, found in tiers(mount).items()}
    assert objects == {"nvme": 0, "hdd": 0, tier: 8}
    assert {where(mount, f"f{n}")["tier"] for n in range(8)} == {tier}
    gets = mount.status()["counters"]["origin_gets"]
    for n in range(8):
        read(mount, f"f{n}", n)
    assert mount.status()["counters"]["origin_gets"] == gets


def test_k06_a_fill_ends_where_its_tier_is_full(bucket, tiered):
    """What does not fit is reported and not fetched, though there is room in the other tier."""
    for n in range(24):
        bucket.put(f"f{n:02}", MIB, n)
    mount = tiered(16 * KIB, policy="pin")
    status, report = warm(mount, "--tier", "nvme")
    kept = tiers(mount)["nvme"]["objects"]
    assert (status, report["complete"]) == (1, False)
    assert 8 <= kept <= 16
    assert report["left"]["missing_bytes"] == report["bypassed_bytes"] == (24 - kept) * MIB
    assert report["fetched_bytes"] == kept * MIB
    assert tiers(mount)["hdd"]["objects"] == 0


def test_a_fill_of_a_tier_that_is_not_there_is_refused(bucket, tiered):
    bucket.put("x", MIB)
    mount = tiered(64 * KIB)
    command = [*COMMAND, "warm", mount.mountpoint, "--tier", "ssd"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line == f"tiercache: {mount.mountpoint}: there is no tier 'ssd'; tiers: nvme, hdd"


#: Files of 1 MiB in a dataset, and what one takes of a tier.
FILES = 40
ONE_KIB = KIB + 8


class Epochs:
    """Reads whole datasets in shuffled order and says what came from the origin."""

    def __init__(self, bucket):
        self.mount = None
        self._random = random.Random(7)
        for number, name in enumerate(("one", "two")):
            for n in range(FILES):
                bucket.put(f"{name}/{n:02}", MIB, 100 * number + n)

    def read(self, name, count=FILES):
        """Share of dataset *name* that the origin had to send."""
        order = self._random.sample(range(count), count)
        before = self.mount.status()["counters"]["origin_bytes"]
        for n in order:
            path = self.mount.mountpoint / name / f"{n:02}"
            with path.open("rb") as file:
                check(file.read(), 0, 100 * (name == "two") + n)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return (self.mount.status()["counters"]["origin_bytes"] - before) / (FILES * MIB)


@pytest.fixture
def epochs(bucket):
    return Epochs(bucket)


@pytest.mark.parametrize("hdd", [0, 10])
def test_e12_epochs_larger_than_the_tiers_miss_only_what_does_not_fit(tiered, epochs, hdd):
    epochs.mount = tiered(20 * ONE_KIB, hdd * ONE_KIB, policy="adaptive")
    fraction = (20 + hdd) * ONE_KIB / (FILES * KIB)
    epochs.read("one")
    shares = [epochs.read("one") for _ in range(3)]
    assert all(share <= (1 - fraction) * 1.03 for share in shares), shares


def test_one_pass_over_cold_data_does_not_displace_the_hot_set(tiered, epochs):
    epochs.mount = tiered(20 * ONE_KIB, 0, policy="adaptive")
    fraction = 20 * ONE_KIB / (FILES * KIB)
    for _ in range(3):
        epochs.read("one")
    epochs.read("two")
    share = epochs.read("one")
    assert share <= (1 - fraction) * 1.03


def test_dataset_that_becomes_hot_has_the_space_after_two_epochs(tiered, epochs):
    epochs.mount = tiered(20 * ONE_KIB, 0, policy="adaptive", half_life="1s")
    fraction = 20 * ONE_KIB / (FILES * KIB)
    for _ in range(2):
        epochs.read("one")
    time.sleep(3)  # three half-lives: an epoch here takes a fraction of one
    for _ in range(2):
        epochs.read("two")
    share = epochs.read("two")
    assert share <= (1 - fraction) * 1.03


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 MiB for the second tier, so that the index of names is on another."""
    disk = tmp_path / "hdd"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", disk], check=True)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_f01_full_disk_never_reaches_readers_and_caching_resumes(small_disk, bucket, tiered):
    for n in range(30):
        bucket.put(f"f{n:02}", 4 * MIB, n)
    mount = tiered(8 * KIB, 60 * KIB, policy="pin")
    foreign, free = small_disk / "foreign", os.statvfs(small_disk)
    with foreign.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
    for n in range(30):
        read(mount, f"f{n:02}", n)
    assert tiers(mount)["hdd"]["objects"] == 0
    foreign.unlink()

    def resumed(seen):
        for n in range(30):
            with (mount.mountpoint / f"f{n:02}").open("rb") as file:
                check(file.read(), 0, n)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return seen["hdd"]["objects"] > 8

    found = wait_for(mount, resumed)
    assert found["hdd"]["state"] == "ok"
    mount.unmount()
