"""A real mount over a small fast tier and a large slow one: data moves as the rules say."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tiercache.testing.data import check
from tiercache.types import MIB

pytestmark = pytest.mark.mount


@pytest.fixture
def tiered(bucket, tmp_path):
    """`tiered(nvme_mib, **move)`: a mount of the bucket over two tiers."""

    def mount(nvme_mib, policy="lru", **move):
        lines = []
        for name, mib in (("nvme", nvme_mib), ("hdd", 256)):
            lines += [
                "[[tier]]",
                f'name = "{name}"',
                f'paths = ["{tmp_path / name}"]',
                f'capacity = "{mib}MiB"',
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
    mount = tiered(20)
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
    mount = tiered(20, dry_run=True)
    for n in range(19):
        read(mount, f"f{n:02}", n)
    time.sleep(0.5)
    assert tiers(mount)["nvme"]["demotions"] == 0
    assert tiers(mount)["hdd"]["objects"] == 0
