"""Cold reads through a real mount of a store that misbehaves."""

from __future__ import annotations

import errno
import faulthandler
import mmap
import multiprocessing
import os
import signal
import subprocess
import threading
import time

import pytest

from tiercache.testing.data import check
from tiercache.testing.faultproxy import Fault, s3_error
from tiercache.types import KIB, MIB

pytestmark = pytest.mark.mount

#: How many requests are sent must not depend on how busy the machine is.
SINGLE = ("-o", "hedge_budget=0,backoff_base=10ms,backoff_max=50ms")


def wait_for(condition):
    """Until the background has done it."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def outcome(read, *arguments):
    """What a read gives: its result, or its errno."""
    try:
        return read(*arguments)
    except OSError as error:
        return error.errno


FAILURES = [
    Fault(status=503, body=s3_error("SlowDown")),
    Fault(status=429, body=s3_error("TooManyRequests")),
    Fault(status=500, body=s3_error("InternalError")),
    Fault(status=502),
    Fault(status=504),
    Fault(reset_before=True),
]


@pytest.mark.parametrize("fault", FAILURES, ids=lambda fault: f"{fault.status or 'reset'}")
def test_g01_trouble_with_names_is_never_absence(bucket, proxy, fault):
    bucket.put("d/f", KIB)
    mount = bucket.mount(*SINGLE, "-o", "attempts=3")
    rule = proxy.rule(fault)
    place = mount.mountpoint / "d"
    for _ in range(2):
        assert outcome(os.stat, place / "f") == errno.EIO
        assert outcome(os.listdir, place) == errno.EIO
    assert rule.hits >= 6
    proxy.clear()
    assert os.listdir(place) == ["f"]
    check((place / "f").read_bytes())


def test_g02_a_store_that_throttles_is_obeyed_and_all_reads_succeed(bucket, proxy, driver):
    count = 120
    for i in range(count):
        bucket.put(f"d/{i:03}", 20 * KIB, i)
    # Eight fetches may meet all forty refusals: each needs as many attempts to get through.
    mount = bucket.mount(*SINGLE, "-o", "attempts=50", driver=driver)
    os.listdir(mount.mountpoint / "d")
    slow_down = Fault(status=503, body=s3_error("SlowDown"), headers={"Retry-After": "0"})
    rule = proxy.rule(slow_down, method="GET", path="/d/", times=40)
    readers = [
        threading.Thread(
            target=lambda n=n: [
                check((mount.mountpoint / f"d/{i:03}").read_bytes(), 0, i)
                for i in range(n, count, 8)
            ]
        )
        for n in range(8)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    status = mount.status()
    assert rule.hits == 40
    assert status["counters"]["origin_retries"] >= 40
    assert status["counters"]["origin_throttled"] >= 40
    assert status["counters"]["origin_failures"] == 0
    for i in range(count):
        check((mount.mountpoint / f"d/{i:03}").read_bytes(), 0, i)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(reset_after=300_000),
        Fault(truncate_after=300_000),
        Fault(truncate_after=300_000, chunked=True),
        Fault(truncate_after=0),
    ],
    ids=["reset", "early", "chunks", "empty"],
)
def test_g03_a_body_cut_short_goes_on_behind_its_last_good_byte(bucket, proxy, driver, fault):
    bucket.put("f", 20 * MIB, 3)
    mount = bucket.mount(*SINGLE, driver=driver)
    rule = proxy.rule(fault, method="GET", path="/f$", times=5)
    data = (mount.mountpoint / "f").read_bytes()
    assert len(data) == 20 * MIB
    check(data, 0, 3)
    assert rule.hits == 5
    sent = sum(r.sent for r in proxy.matching(method="GET", path="/f$"))
    assert sent <= 21 * MIB, "what had come is not asked for again"
    assert all("if-match" in r.headers for r in proxy.matching(method="GET", path="/f$"))


def read_apart(path):
    # Whoever runs the tests in the background has them ignore Ctrl-C.
    command = ["env", "--default-signal=INT", "cksum", path]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def test_g04_a_stalled_body_is_left_for_another_connection(bucket, proxy, driver):
    bucket.put("f", 12 * MIB, 3)
    mount = bucket.mount(*SINGLE, "-o", "stall_timeout=300ms", driver=driver)
    rule = proxy.rule(Fault(stall_after=700_000), method="GET", path="/f$", times=2)
    check((mount.mountpoint / "f").read_bytes(), 0, 3)
    assert rule.hits == 2


def test_g04_a_reader_can_be_killed_and_others_go_on_while_the_store_is_silent(
    bucket, proxy, driver
):
    bucket.put("f", 12 * MIB, 3)
    bucket.put("g", MIB, 4)
    mount = bucket.mount(*SINGLE, driver=driver)
    rule = proxy.rule(Fault(hang=True), method="GET", path="/f$")
    for how in (signal.SIGINT, signal.SIGKILL):
        reader = read_apart(mount.mountpoint / "f")
        wait_for(lambda: rule.hits)
        reader.send_signal(how)
        assert reader.wait(30) != 0, "it ended, though no byte came"
    check((mount.mountpoint / "g").read_bytes(), 0, 4)
    proxy.release(rule)
    check((mount.mountpoint / "f").read_bytes(), 0, 3)


def test_g04_silence_without_end_is_an_error_and_not_for_ever(bucket, proxy):
    bucket.put("f", MIB, 3)
    mount = bucket.mount(*SINGLE, "-o", "stall_timeout=200ms,attempts=2")
    rule = proxy.rule(Fault(stall_after=1000), method="GET", path="/f$")
    assert outcome((mount.mountpoint / "f").read_bytes) == errno.EIO
    proxy.release(rule)
    proxy.clear()
    check((mount.mountpoint / "f").read_bytes(), 0, 3)


def test_g05_stuck_gets_are_asked_again_within_the_budget(bucket, proxy, driver):
    count = 400
    for i in range(count):
        bucket.put(f"d/{i:03}", 4 * KIB, i)
    mount = bucket.mount("-o", "hedge_delay_min=20ms,stall_timeout=100s", driver=driver)
    stuck = [
        proxy.rule(Fault(hang=True), method="GET", path=f"/d/{i}$", times=1)
        for i in (200, 257, 301, 350)
    ]
    for i in range(count):  # without a second request it would not end
        check((mount.mountpoint / f"d/{i:03}").read_bytes(), 0, i)
    counters = mount.status()["counters"]
    assert [rule.hits for rule in stuck] == [1] * 4
    assert counters["origin_hedges_won"] >= 4
    assert counters["origin_hedges"] <= 0.03 * count + 4


def touch(path, blocks):
    """A page of each block, by a mapping that the kernel does not read ahead."""
    faulthandler.disable()  # SIGBUS is an answer here
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        mapping.madvise(mmap.MADV_RANDOM)
        for block in blocks:
            check(mapping[block * MIB : block * MIB + 4096], block * MIB, 7)


def run_apart(run, *arguments):
    process = multiprocessing.get_context("fork").Process(target=run, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def test_d04_trouble_under_a_mapping_is_retried_and_what_stays_bad_is_bad_alone(
    bucket, proxy, driver
):
    bucket.put("f", 16 * MIB, 7)
    mount = bucket.mount(*SINGLE, "-o", "attempts=4", driver=driver)
    path, fine = mount.mountpoint / "f", [11, 3, 14, 7, 0, 9]
    proxy.rule(Fault(status=503, body=s3_error("SlowDown")), method="GET", path="/f$", times=3)
    proxy.rule(Fault(reset_after=100_000), method="GET", path="/f$", times=2)
    proxy.rule(Fault(status=500), method="GET", range="bytes=5242880-")
    assert run_apart(touch, path, fine) == 0
    assert run_apart(touch, path, [5]) == -signal.SIGBUS
    assert run_apart(touch, path, [4, 6, *fine]) == 0
    proxy.clear()
    assert run_apart(touch, path, [5]) == 0


def test_e11_a_killed_reader_strands_nobody_and_a_failure_is_retried_once_for_all(bucket, proxy):
    bucket.put("f", 900_000, 5)
    mount = bucket.mount(*SINGLE)
    os.stat(mount.mountpoint / "f")
    held = proxy.rule(Fault(hang=True), method="GET", path="/f$", times=1)
    failed = proxy.rule(Fault(status=500), method="GET", path="/f$", times=2)
    leader = read_apart(mount.mountpoint / "f")
    wait_for(lambda: held.hits)
    followers = [read_apart(mount.mountpoint / "f") for _ in range(16)]
    wait_for(lambda: mount.status()["counters"]["opens"] == 17)
    leader.kill()
    leader.wait()
    proxy.reset_connections()  # the one request fails, and so does its retry, twice
    assert [follower.wait(60) for follower in followers] == [0] * 16
    assert failed.hits == 2
    assert len(proxy.matching(method="GET", path="/f$")) == 4


def test_g17_an_archived_object_is_refused_without_retries(bucket, proxy, driver):
    for i in range(8):
        bucket.put(f"d/{i}", 4 * KIB, i)
    mount = bucket.mount(*SINGLE, driver=driver)
    os.listdir(mount.mountpoint / "d")
    rule = proxy.rule(
        Fault(status=403, body=s3_error("InvalidObjectState")), method="GET", path="/d/7$"
    )
    assert outcome((mount.mountpoint / "d/7").read_bytes) == errno.EACCES
    assert rule.hits <= 2, "the kernel asks again for the page that its readahead did not bring"
    proxy.clear()
    for i in range(7):
        check((mount.mountpoint / f"d/{i}").read_bytes(), 0, i)
