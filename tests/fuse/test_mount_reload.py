"""A real mount whose config file changes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tiercache.testing.data import check
from tiercache.testing.mounting import COMMAND
from tiercache.types import MIB

pytestmark = pytest.mark.mount


class Configured:
    """A mount made from a config file, and the file."""

    def __init__(self, bucket, folder, driver, options=()):
        self.file = folder / "mount.toml"
        self.settings = {
            "mount": {"stop_timeout": "60s"},
            "transfer": {},
            "": {"log_level": "info"},
        }
        self.cache = folder / "cache"
        self.capacity = "64MiB"
        given = ("--config", str(self.file), "--endpoint-url", bucket.server.endpoint_url)
        prepared = bucket.prepare(driver=driver)
        self.mount = replace(prepared, options=(*given, "--driver", driver, *options))
        self.write()

    def write(self):
        """What the file says now."""
        lines = [f'log_level = "{self.settings[""]["log_level"]}"']
        for section in ("mount", "transfer"):
            lines += [f"[{section}]", *(f'{k} = "{v}"' for k, v in self.settings[section].items())]
        lines += ["[[tier]]", f'paths = ["{self.cache}"]', 'policy = "lru"', "reserve_free = 0"]
        lines += [f'capacity = "{self.capacity}"']
        self.file.write_text("\n".join(lines) + "\n")

    def reload(self, *arguments):
        """Exit status and the answer of `tiercache reload --json`."""
        done = self.command("reload", str(self.mount.mountpoint), "--json", *arguments)
        return done.returncode, json.loads(done.stdout)

    def command(self, *arguments):
        return subprocess.run(
            [*COMMAND, *arguments],
            env={**os.environ, **self.mount.env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def tier(self):
        # On a busy machine the worker may not answer in time; those who wait ask again.
        return (self.mount.status()["tiers"] or [{"capacity": None}])[0]

    def holder(self):
        return self.mount.status()["holder"]["pid"]

    def log(self):
        return Path(self.mount.status()["log"]).read_text()

    def until(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.05)


@pytest.fixture
def configured(bucket, tmp_path, driver):
    def make(*options):
        made = Configured(bucket, tmp_path, driver, options)
        made.mount.mount()
        return made

    return make


def names(found):
    return [change["name"] for change in found]


def test_what_is_live_is_applied_and_what_is_not_is_named(bucket, configured):
    for i in range(24):
        bucket.put(f"f{i:02}", MIB, i)
    mounted = configured("-o", "metadata_ttl=5m")
    for i in range(24):
        check((mounted.mount.mountpoint / f"f{i:02}").read_bytes(), 0, i)
    mounted.capacity = "8MiB"
    mounted.settings["transfer"]["bandwidth"] = "64MiB/s"
    mounted.settings["mount"] |= {"umask": "077", "metadata_ttl": "1s"}
    mounted.write()
    status, answer = mounted.reload()
    assert status == 0
    # The command line still wins over the file: metadata_ttl did not change.
    assert names(answer["applied"]) == ["tier[0].capacity", "transfer.bandwidth"]
    assert answer["remount"] == [{"name": "mount.umask", "before": '"0o022"', "after": '"0o077"'}]
    mounted.until(lambda: mounted.tier().get("used", 64 * MIB) <= 8 * MIB)
    assert mounted.tier()["capacity"] == 8 * MIB
    check((mounted.mount.mountpoint / "f03").read_bytes(), 0, 3)
    status, answer = mounted.reload()
    assert (status, answer["applied"], names(answer["remount"])) == (0, [], ["mount.umask"])


def test_a_bad_file_changes_nothing_and_everything_wrong_is_said(configured):
    mounted = configured()
    mounted.capacity = "8MiB"
    mounted.settings["transfer"] |= {"bandwith": "64MiB/s", "attempts": "many"}
    mounted.write()
    status, answer = mounted.reload()
    assert status == 2
    assert [line.partition(": ")[0] for line in answer["problems"]] == [
        "transfer.bandwith",
        "transfer.attempts",
    ]
    assert (answer["applied"], answer["remount"]) == ([], [])
    done = mounted.command("reload", str(mounted.mount.mountpoint))
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2
    mounted.file.unlink()
    assert mounted.reload()[0] == 2
    assert mounted.tier()["capacity"] == 64 * MIB
    assert mounted.mount.status()["state"] == "serving"


def test_a_capacity_above_the_disk_is_refused(configured):
    mounted = configured()
    mounted.capacity = "8PiB"
    mounted.write()
    status, answer = mounted.reload()
    assert status == 2
    assert answer["problems"][0].startswith("tier[0].capacity: 8PiB is more than its disks hold")
    assert mounted.tier()["capacity"] == 64 * MIB


def test_sighup_reloads_and_a_later_worker_keeps_it(bucket, configured):
    bucket.put("f", MIB, 5)
    mounted = configured()
    mounted.capacity = "16MiB"
    mounted.settings[""]["log_level"] = "debug"
    mounted.write()
    os.kill(mounted.holder(), signal.SIGHUP)
    mounted.until(lambda: mounted.tier()["capacity"] == 16 * MIB)
    mounted.file.write_text("nonsense")
    os.kill(mounted.holder(), signal.SIGHUP)
    mounted.until(lambda: "is refused and nothing was changed" in mounted.log())
    os.kill(mounted.mount.status()["worker"]["pid"], signal.SIGKILL)
    mounted.until(lambda: mounted.mount.status()["worker"]["restarts"] == 1)
    mounted.until(lambda: mounted.mount.status()["state"] == "serving")
    assert mounted.tier()["capacity"] == 16 * MIB
    check((mounted.mount.mountpoint / "f").read_bytes(), 0, 5)


def test_the_log_level_changes(configured):
    mounted = configured()
    mounted.settings[""]["log_level"] = "error"
    mounted.write()
    assert names(mounted.reload()[1]["applied"]) == ["log_level"]
    lines = len(mounted.log().splitlines())
    mounted.capacity = "8MiB"
    mounted.write()
    mounted.reload()
    assert len(mounted.log().splitlines()) == lines
    mounted.settings[""]["log_level"] = "info"
    mounted.write()
    mounted.reload()
    assert len(mounted.log().splitlines()) > lines


def test_the_time_that_readers_get_changes_in_the_holder(bucket, configured):
    bucket.put("f", MIB, 5)
    mounted = configured()
    mounted.settings["mount"]["stop_timeout"] = "200ms"
    mounted.write()
    assert names(mounted.reload()[1]["applied"]) == ["mount.stop_timeout"]
    processes = mounted.mount.processes()
    file = os.open(mounted.mount.mountpoint / "f", os.O_RDONLY)
    check(os.read(file, 4096), 0, 5)
    processes[0].terminate()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive
    with contextlib.suppress(OSError):  # its connection is gone
        os.close(file)


def test_another_file_becomes_the_mounts_own(configured, tmp_path):
    mounted = configured()
    mounted.capacity = "16MiB"
    mounted.file = tmp_path / "other.toml"
    mounted.write()
    status, answer = mounted.reload("--config", str(mounted.file))
    assert (status, answer["file"]) == (0, str(mounted.file))
    mounted.capacity = "32MiB"
    mounted.write()
    os.kill(mounted.holder(), signal.SIGHUP)
    mounted.until(lambda: mounted.tier()["capacity"] == 32 * MIB)


def test_as_the_systemd_unit_does_it(bucket, tmp_path):
    """Mount point and all in the file, `reload` with nothing but the file."""
    mount = replace(bucket.prepare(), options=())
    file = tmp_path / "unit.toml"
    text = (
        f'[origin]\nurl = "{mount.source}"\nendpoint_url = "{bucket.server.endpoint_url}"\n'
        f'[mount]\nmountpoint = "{mount.mountpoint}"\n'
        f'[[tier]]\npaths = ["{tmp_path}/cache"]\ncapacity = "%s"\nreserve_free = 0\n'
    )

    def run(*command):
        return subprocess.run(
            [*COMMAND, *command, "--config", str(file)],
            env={**os.environ, **mount.env},
            capture_output=True,
            text=True,
            check=False,
        )

    file.write_text(text % "8MiB")
    assert run("mount").returncode == 0
    try:
        file.write_text(text % "16MiB")
        done = run("reload")
        assert done.stdout == 'applied: tier[0].capacity = "16MiB" (was "8MiB")\n', done.stderr
        assert mount.status()["config_file"] == str(file)
        assert run("reload").stdout == "nothing changed\n"
        file.write_text(text % "many")
        done = run("reload")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("tiercache: tier[0].capacity: ")
        assert mount.status()["tiers"][0]["capacity"] == 16 * MIB
    finally:
        mount.end()


def test_a_mount_without_a_file_says_so(bucket):
    mount = bucket.mount()
    done = subprocess.run(
        [*COMMAND, "reload", str(mount.mountpoint)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "without a config file" in done.stderr


def test_a_tier_on_a_file_system_that_hangs_holds_nobody_up(bucket, tmp_path):
    mount = bucket.mount()
    worker = psutil.Process(mount.status()["worker"]["pid"])
    file = tmp_path / "other.toml"
    file.write_text(
        '[origin]\nurl = "s3://b"\n'
        f'[mount]\nmountpoint = "{tmp_path}/other"\n'
        f'[[tier]]\npaths = ["{mount.mountpoint}/cache"]\n'
    )
    worker.suspend()
    try:
        running = [
            subprocess.Popen([*COMMAND, *command], stderr=subprocess.PIPE, text=True)
            for command in (["config", "check", str(file)], ["mount", "--config", str(file)])
        ]
        for process in running:
            said = process.communicate(timeout=60)[1]
            assert process.returncode == 2
            assert f"{mount.mountpoint}/cache: no answer within 10 s" in said
    finally:
        worker.resume()
