"""`tiercache warm`, `tiercache plan` and the kernel's own hints, on real mounts."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import time

import pytest

from tiercache.testing.data import check
from tiercache.testing.mounting import COMMAND
from tiercache.types import KIB, MIB

pytestmark = pytest.mark.mount


def tiercache(*arguments, timeout=100):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def warm(*arguments):
    done = tiercache("warm", *arguments, "--json")
    assert done.stderr == "", done
    return done.returncode, json.loads(done.stdout)


def wait_for(condition):
    """Until the background has done it."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def plan_status(mount):
    return json.loads(tiercache("plan", "--status", mount.mountpoint, "--json").stdout)


def kill_worker(mount):
    restarts = mount.status()["worker"]["restarts"]
    os.kill(mount.status()["worker"]["pid"], signal.SIGKILL)
    wait_for(lambda: mount.status()["worker"]["restarts"] == restarts + 1)


def gets(mount):
    return mount.status()["counters"]["origin_gets"]


def test_warm_then_read_without_the_origin(bucket, driver):
    for i in range(20):
        bucket.put(f"a/{i:02}", 100 * KIB, i)
    bucket.put("a/large", 10 * MIB + 3, 99)
    mount = bucket.mount("-o", "price_per_get=0.5", driver=driver)
    place = mount.mountpoint / "a"
    assert warm(place, "--check")[0] == 1
    assert gets(mount) == 0
    done = tiercache("warm", place)
    assert (done.returncode, done.stdout) == (0, ""), done
    lines = done.stderr.splitlines()
    assert lines[0] == "tiercache: 21 files, 12.0 MiB; 0 B local"
    assert "21 files" in lines[1]
    assert ", cost 1" in lines[1]
    assert lines[-1] == "tiercache: all of it is local"
    before = gets(mount)
    for i in range(20):
        check((place / f"{i:02}").read_bytes(), 0, i)
    check((place / "large").read_bytes(), 0, 99)
    assert gets(mount) == before
    status, report = warm(f"{place}/*", "--check")
    assert (status, report["complete"], report["survey"]["objects"]) == (0, True, 21)


def test_a_manifest_and_what_is_not_there(bucket, tmp_path):
    bucket.put("x", MIB)
    mount = bucket.mount()
    manifest = tmp_path / "list"
    manifest.write_text(f"x\n{mount.mountpoint}/gone\n")
    status, report = warm("--manifest", manifest, "--mount", mount.mountpoint)
    assert (status, report["survey"]["unknown"], report["fetched_bytes"]) == (1, 1, MIB)
    manifest.write_text("x\n\tbad\n")
    done = tiercache("warm", "--manifest", manifest, "--mount", mount.mountpoint)
    assert done.returncode == 1
    assert f"{manifest}: line 2: " in done.stderr


def test_pinned_files_are_counted(bucket):
    bucket.put("d/x", MIB)
    mount = bucket.mount()
    assert warm(mount.mountpoint / "d", "--pin")[0] == 0
    assert mount.status()["tiers"][0]["pinned"] >= MIB


def test_in_the_background_until_it_is_cancelled(bucket):
    bucket.put("x", 32 * MIB)
    mount = bucket.mount()
    started = warm(mount.mountpoint / "x", "--background", "--rate", "1MiB/s")[1]
    [found] = warm(mount.mountpoint, "--status")[1]
    assert (found["job"], found["state"]) == (started["job"], "fetching")
    assert warm(mount.mountpoint, "--cancel") == (0, {"cancelled": 1})
    wait_for(lambda: warm(mount.mountpoint, "--status")[1][0]["state"] == "cancelled")


def test_interrupted_and_run_again(bucket):
    bucket.put("x", 40 * MIB)
    mount = bucket.mount("-o", "part=1MiB")
    with subprocess.Popen(
        ["env", "--default-signal=INT", *COMMAND, "warm", mount.mountpoint / "x", "--rate=4MiB/s"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for(lambda: gets(mount) >= 4)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    wait_for(lambda: warm(mount.mountpoint, "--status")[1][0]["state"] == "cancelled")
    wait_for(lambda: mount.status()["in_flight"] == 0)
    assert warm(mount.mountpoint / "x")[0] == 0
    assert gets(mount) == 40


def test_a_killed_worker_is_told_and_the_fill_goes_on(bucket):
    bucket.put("x", 16 * MIB)
    mount = bucket.mount("-o", "part=1MiB")
    with subprocess.Popen(
        ["env", "--default-signal=INT", *COMMAND, "warm", mount.mountpoint / "x", "--rate=4MiB/s"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for(lambda: gets(mount) >= 4)
        os.kill(mount.status()["worker"]["pid"], signal.SIGKILL)
        _, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    assert "the worker of the mount restarted; resuming" in said
    check((mount.mountpoint / "x").read_bytes())


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "give PATHs inside a mount, or --manifest FILE"),
        (("/tmp",), 1, "is not inside a tiercache mount"),
        (("--rate", "fast", "/tmp"), 2, "fast"),
    ],
)
def test_misuse_is_told(arguments, status, words):
    done = tiercache("warm", *arguments)
    assert done.returncode == status
    assert words in done.stderr


def test_a_plan_is_followed_over_a_restart_and_cleared(bucket, tmp_path, driver):
    order = [f"d/{i * 7 % 30:02}" for i in range(30)]
    for i, name in enumerate(order):
        bucket.put(name, 200 * KIB, i)
    mount = bucket.mount("-o", "plan_window=1MiB", driver=driver)
    file = tmp_path / "plan"
    file.write_text("".join(f"{name}\n" for name in order))
    done = tiercache("plan", file, mount.mountpoint)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{file}: 0 of 30 read\n"

    wait_for(lambda: mount.status()["counters"]["fetched_plan_bytes"] >= MIB)
    for i in range(10):
        check((mount.mountpoint / order[i]).read_bytes(), 0, i)
    assert plan_status(mount)["position"] == 10
    if driver == "kernel":
        wait_for(lambda: plan_status(mount)["kept_position"] == 10)
        kill_worker(mount)
        wait_for(lambda: str(file) in tiercache("plan", "--status", mount.mountpoint).stdout)
        # What was written last may not have reached the disk, what was written before has.
        assert 1 <= plan_status(mount)["position"] <= 10
    for i in range(30):
        check((mount.mountpoint / order[i]).read_bytes(), 0, i)
    wait_for(lambda: plan_status(mount)["done"])
    assert tiercache("plan", "--clear", mount.mountpoint).stdout == "no plan\n"
    assert plan_status(mount) == {"file": None}


def test_k07_a_plan_of_ranges_follows_files_that_are_all_local(bucket, tmp_path, driver):
    for i in range(3):
        bucket.put(f"{i}.bin", 3 * MIB, i)
    mount = bucket.mount(driver=driver)
    assert warm(mount.mountpoint)[0] == 0
    file = tmp_path / "plan"
    file.write_text("".join(f"{i}.bin\t{r * MIB}\t{MIB}\n" for i in range(3) for r in range(3)))
    assert tiercache("plan", file, mount.mountpoint).returncode == 0

    def position():
        return plan_status(mount)["position"]

    check((mount.mountpoint / "0.bin").read_bytes(), 0, 0)
    wait_for(lambda: position() == 3)
    with (mount.mountpoint / "1.bin").open("rb") as shard:
        check(shard.read(64 * KIB), 0, 1)
        if driver == "kernel":  # which reads by itself: there is an open to see, and a close
            wait_for(lambda: position() == 4)
        check(shard.read(), 64 * KIB, 1)
    wait_for(lambda: position() == 6)
    assert gets(mount) == 3


def test_k07_a_changed_plan_is_followed_from_its_start_after_a_restart(bucket, tmp_path):
    for i in range(10):
        bucket.put(f"{i}", KIB, i)
    mount = bucket.mount()
    file = tmp_path / "plan"
    file.write_text("".join(f"{i}\n" for i in range(10)))
    assert tiercache("plan", file, mount.mountpoint).returncode == 0

    for i in range(5):
        check((mount.mountpoint / f"{i}").read_bytes(), 0, i)
    wait_for(lambda: plan_status(mount)["kept_position"] == 5)
    file.write_text("".join(f"{i}\n" for i in reversed(range(10))))
    kill_worker(mount)
    wait_for(lambda: str(file) in tiercache("plan", "--status", mount.mountpoint).stdout)
    assert plan_status(mount)["position"] == 0


def test_a_bad_plan_is_told_and_the_one_before_stays(bucket, tmp_path):
    bucket.put("x", KIB)
    mount = bucket.mount()
    file = tmp_path / "plan"
    file.write_text("x\n")
    assert tiercache("plan", file, mount.mountpoint).returncode == 0
    bad = tmp_path / "bad"
    bad.write_text("x\nx\t1\n")
    done = tiercache("plan", bad, mount.mountpoint)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{bad}: line 2: " in done.stderr
    assert str(file) in tiercache("plan", "--status", mount.mountpoint).stdout


def test_a_plan_from_the_configuration(bucket, tmp_path):
    bucket.put("x", MIB)
    file = tmp_path / "plan"
    file.write_text("x\n")
    mount = bucket.mount("-o", f"plan_file={file}")
    wait_for(lambda: mount.status()["counters"]["fetched_plan_bytes"] == MIB)


# -- hints of programs ----------------------------------------------------------------------------


def _fadvise(fd, offset, size):
    os.posix_fadvise(fd, offset, size, os.POSIX_FADV_WILLNEED)


def _madvise(fd, offset, size):
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapping:
        mapping.madvise(mmap.MADV_WILLNEED, offset, size)


def _readahead(fd, offset, size):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.readahead(fd, ctypes.c_long(offset), ctypes.c_size_t(size)) == 0


@pytest.mark.parametrize("hint", [_fadvise, _madvise, _readahead])
def test_k07_hints_arrive_as_reads(bucket, driver, hint):
    """Cached mode: the kernel reads what is hinted at, and that is demand for us."""
    bucket.put("f", 32 * MIB)
    mount = bucket.mount(driver=driver)
    fd = os.open(mount.mountpoint / "f", os.O_RDONLY)
    try:
        before = mount.status()["counters"]
        hint(fd, 8 * MIB, 2 * MIB)
        wait_for(lambda: mount.status()["counters"]["bytes_read"] - before["bytes_read"] >= 2 * MIB)
        assert mount.status()["counters"]["fetched_demand_bytes"] >= 2 * MIB
        check(os.pread(fd, MIB, 8 * MIB), 8 * MIB)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("hint", "arrives"), [(_fadvise, True), (_madvise, False), (_readahead, True)]
)
def test_k07_hints_in_passthrough_fetch_nothing(bucket, hint, arrives):
    """The file is local. Two of the hints fill the page cache of the mount, which nobody reads."""
    bucket.put("f", 8 * MIB)
    mount = bucket.mount()
    if not mount.status()["passthrough"]:
        pytest.skip("no passthrough here")
    assert warm(mount.mountpoint / "f")[0] == 0
    fd = os.open(mount.mountpoint / "f", os.O_RDONLY)
    try:
        before = mount.status()["counters"]
        hint(fd, 0, 4 * MIB)
        check(os.pread(fd, 4 * MIB, 0))
        if arrives:
            wait_for(lambda: mount.status()["counters"]["reads"] > before["reads"])
        after = mount.status()["counters"]
        assert (after["reads"] > before["reads"]) is arrives
        assert after["origin_gets"] == before["origin_gets"]
        os.pread(fd, 4 * MIB, 4 * MIB)
        assert mount.status()["counters"]["origin_gets"] == before["origin_gets"]
    finally:
        os.close(fd)
