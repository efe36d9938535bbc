"""What cold reads through a real mount ask the store for."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import random
import subprocess
import threading
import time

import psutil
import pytest

from tiercache.testing.data import check
from tiercache.testing.faultproxy import Fault
from tiercache.types import BLOCK_SIZE, KIB, MIB

pytestmark = pytest.mark.mount

#: How many requests are sent must not depend on how busy the machine is.
SINGLE = ("-o", "hedge_budget=0")


def asked(proxy, kind):
    """Requests of *kind* the store got: GET (of bytes), HEAD or LIST."""
    kinds = {"GET": ("GET", True), "LIST": ("GET", False), "HEAD": ("HEAD", False)}
    method, ranged = kinds[kind]
    return [r for r in proxy.matching(method=method) if (r.range is not None) is ranged]


def asked_bytes(proxy):
    return sum(end + 1 - start for start, end in map(span, asked(proxy, "GET")))


def span(request):
    start, end = request.range.removeprefix("bytes=").split("-")
    return int(start), int(end)


def wait_for(condition):
    """Until the background has done it."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def wait_until_quiet(mount):
    """The status once nothing is on its way any more."""
    found = {}

    def quiet():
        found.update(mount.status())
        return not found["in_flight"] and not found["queued"]

    wait_for(quiet)
    return found


def blocks(offset, size):
    return range(offset // BLOCK_SIZE, (offset + size - 1) // BLOCK_SIZE + 1)


def by_pread(path, offsets, size, flags=0):
    fd = os.open(path, os.O_RDONLY | flags)
    buffer = mmap.mmap(-1, size)
    for offset in offsets:
        assert os.preadv(fd, [buffer], offset) == size
        check(buffer[:size], offset)
    os.close(fd)


def by_direct(path, offsets, size):
    by_pread(path, offsets, size, os.O_DIRECT)


def by_mapping(path, offsets, size):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        for offset in offsets:
            check(mapping[offset : offset + size], offset)


def by_random_mapping(path, offsets, size):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        mapping.madvise(mmap.MADV_RANDOM)
        for offset in offsets:
            check(mapping[offset : offset + size], offset)


def apart(run, *arguments):
    """Run in a process of its own: a fault of a mapping would stop the proxy in this one."""
    process = multiprocessing.get_context("fork").Process(target=run, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize(
    ("how", "size"), [(by_pread, 128 * KIB), (by_direct, 4 * KIB), (by_random_mapping, 4 * KIB)]
)
def test_e01_d15_random_reads_fetch_the_blocks_they_touch(bucket, proxy, driver, how, size):
    whole, chance = 128 * MIB, random.Random(5)
    bucket.put("f", whole)
    mount = bucket.mount(*SINGLE, driver=driver)
    offsets = [chance.randrange((whole - size) // 4096) * 4096 for _ in range(40)]
    apart(how, mount.mountpoint / "f", offsets, size)
    wait_until_quiet(mount)
    touched = {block for offset in offsets for block in blocks(offset, size)}
    fetched = [
        block
        for start, end in map(span, asked(proxy, "GET"))
        for block in blocks(start, end + 1 - start)
    ]
    assert len(fetched) == len(set(fetched)), "no block is fetched twice"
    assert set(fetched) == touched


@pytest.mark.parametrize("readahead", [128 * KIB, 2 * MIB])
def test_e01_faults_of_a_mapping_fetch_no_more_than_the_kernel_reads_around_them(
    bucket, proxy, driver, readahead
):
    """Without MADV_RANDOM the kernel reads half its readahead to either side of each fault."""
    whole, chance = 256 * MIB, random.Random(6)
    bucket.put("f", whole)
    mount = bucket.mount(*SINGLE, "-o", f"readahead={readahead}", driver=driver)
    offsets = [chance.randrange(whole // 4096) * 4096 for _ in range(20)]
    apart(by_mapping, mount.mountpoint / "f", offsets, 4 * KIB)
    status = wait_until_quiet(mount)
    around = {
        block
        for offset in offsets
        for block in blocks(max(0, offset - readahead // 2), readahead + 4 * KIB)
    }
    assert status["counters"]["fetched_demand_bytes"] <= len(around) * BLOCK_SIZE
    assert status["counters"]["fetched_readahead_bytes"] <= 2 * MIB * (readahead > MIB) * 20


@pytest.mark.parametrize("readahead", [MIB, 4 * MIB])
def test_k07_one_hint_reaches_as_far_as_the_readahead(bucket, proxy, driver, readahead):
    bucket.put("f", 64 * MIB)
    mount = bucket.mount(*SINGLE, "-o", f"readahead={readahead}", driver=driver)
    fd = os.open(mount.mountpoint / "f", os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 32 * MIB, 16 * MIB, os.POSIX_FADV_WILLNEED)
        wait_for(lambda: mount.status()["counters"]["bytes_read"] >= readahead)
        counters = wait_until_quiet(mount)["counters"]
        assert counters["bytes_read"] == readahead
        assert counters["fetched_demand_bytes"] + counters["fetched_readahead_bytes"] >= readahead
        # All of what was hinted at comes by a hint for each piece.
        for offset in range(32 * MIB, 48 * MIB, readahead):
            os.posix_fadvise(fd, offset, readahead, os.POSIX_FADV_WILLNEED)
        wait_for(lambda: mount.status()["counters"]["bytes_read"] >= 16 * MIB)
        wait_until_quiet(mount)
        before = len(asked(proxy, "GET"))
        check(os.pread(fd, 16 * MIB, 32 * MIB), 32 * MIB)
        assert len(asked(proxy, "GET")) == before
    finally:
        os.close(fd)


@pytest.mark.parametrize("suffix", ["parquet", "bin"])
def test_e02_headers_and_tails_cost_a_block_each(bucket, proxy, driver, suffix):
    count, whole = 12, 20 * MIB
    for i in range(count):
        bucket.put(f"{i:02}.{suffix}", whole, i)
    mount = bucket.mount(*SINGLE, driver=driver)
    for i in range(count):
        with open(mount.mountpoint / f"{i:02}.{suffix}", "rb", buffering=0) as file:
            check(file.read(4 * KIB), 0, i)
            file.seek(whole - 64 * KIB)
            check(file.read(64 * KIB), whole - 64 * KIB, i)
    wait_until_quiet(mount)
    assert asked_bytes(proxy) == count * 2 * MIB
    assert len(asked(proxy, "GET")) == count * 2
    assert not asked(proxy, "HEAD")


def test_e03_streams_of_the_kernel_are_followed_without_a_reset(bucket, proxy, driver):
    """Its readahead comes in pieces and out of order, of several files at a time."""
    whole = 48 * MIB
    for i in range(3):
        bucket.put(f"f{i}", whole, i)
    mount = bucket.mount(*SINGLE, driver=driver)
    cats = [
        subprocess.Popen(["cksum", mount.mountpoint / f"f{i}"], stdout=subprocess.DEVNULL)
        for i in range(3)
    ]
    assert [cat.wait() for cat in cats] == [0, 0, 0]
    status = wait_until_quiet(mount)
    assert status["counters"]["prefetch_wasted_bytes"] == 0
    assert asked_bytes(proxy) == 3 * whole
    assert len(asked(proxy, "GET")) <= 3 * 16, "parts, not pieces"
    for i in range(3):
        check((mount.mountpoint / f"f{i}").read_bytes(), 0, i)


def staggered(path, start, whole):
    fd = os.open(path, os.O_RDONLY)
    for offset in [*range(start, whole, 256 * KIB), *range(0, start, 256 * KIB)]:
        check(os.pread(fd, 256 * KIB, offset), offset)
    os.close(fd)


def test_e05_processes_on_the_same_file_fetch_it_once(bucket, proxy, driver):
    whole = 96 * MIB
    bucket.put("f", whole)
    mount = bucket.mount(*SINGLE, driver=driver)
    context = multiprocessing.get_context("fork")
    readers = [
        context.Process(target=staggered, args=(mount.mountpoint / "f", i * 3 * MIB, whole))
        for i in range(4)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0] * 4
    wait_until_quiet(mount)
    assert asked_bytes(proxy) == whole


@pytest.mark.parametrize("shuffled", [False, True])
def test_e08_small_files_cost_one_get_each_once(bucket, proxy, driver, shuffled):
    count = 250
    for i in range(count):
        bucket.put(f"train/n{i % 5}/{i:04}.jpg", 100 * KIB + i, i)
    mount = bucket.mount(*SINGLE, driver=driver)
    proxy.clear()
    order = list(range(count))
    if shuffled:
        random.Random(3).shuffle(order)

    def epoch(mount):
        for i in order:
            check((mount.mountpoint / f"train/n{i % 5}/{i:04}.jpg").read_bytes(), 0, i)
        wait_until_quiet(mount)

    epoch(mount)
    assert len(asked(proxy, "GET")) == count
    assert len(asked(proxy, "HEAD")) == 0
    assert len(asked(proxy, "LIST")) <= 7, "the root, the folder, and each class"
    # What the next epoch asks for, over a restart that leaves the kernel without any page.
    mount.unmount()
    mount.mount()
    proxy.clear()
    epoch(mount)
    assert not asked(proxy, "GET") + asked(proxy, "HEAD") + asked(proxy, "LIST")


def test_e09_one_reader_has_many_requests_under_way(bucket, proxy, driver):
    whole = 256 * MIB
    bucket.put("f", whole)
    mount = bucket.mount(*SINGLE, "-o", "window_max=64MiB", driver=driver)
    with open(mount.mountpoint / "f", "rb", buffering=0) as file:
        for offset in range(0, 96 * MIB, MIB):
            check(file.read(MIB), offset)
        status = wait_until_quiet(mount)
        assert status["counters"]["bytes_read"] / status["counters"]["reads"] >= 512 * KIB
        stuck = proxy.rule(Fault(hang=True), method="GET")
        rest = threading.Thread(target=file.readall)
        rest.start()
        wait_for(lambda: stuck.hits >= 5)
        proxy.release(stuck)
        rest.join()
    assert asked_bytes(proxy) == whole


def test_e10_a_path_costs_a_listing_per_folder_and_leaves_cost_nothing_more(bucket, proxy, driver):
    for i in range(6):
        for j in range(6):
            bucket.put(f"deep/{i}/{j}/leaf", KIB, i * j)
    bucket.put("a/b/c/f", KIB, 77)
    mount = bucket.mount(*SINGLE, driver=driver)
    proxy.clear()
    for _ in range(10):
        assert (mount.mountpoint / "a/b/c/f").stat().st_size == KIB
        check((mount.mountpoint / "a/b/c/f").read_bytes(), 0, 77)
    assert [len(asked(proxy, kind)) for kind in ("LIST", "HEAD", "GET")] == [4, 0, 1]
    leaves = [(i, j) for i in range(6) for j in range(6)] * 8
    random.Random(4).shuffle(leaves)
    for i, j in leaves:
        check((mount.mountpoint / f"deep/{i}/{j}/leaf").read_bytes(), 0, i * j)
    assert len(asked(proxy, "LIST")) == 4 + 1 + 6 + 36
    assert len(asked(proxy, "HEAD")) == 0
    assert len(asked(proxy, "GET")) == 1 + 36


def test_e15_names_and_first_bytes_pass_bulk(bucket, proxy, driver):
    bucket.put("bulk", 200 * MIB)
    bucket.put("d/new", 40 * KIB, 1)
    mount = bucket.mount(
        *SINGLE,
        "-o",
        "connections=6,connections_reserved=2,part=8MiB,window_max=64MiB",
        driver=driver,
    )
    with open(mount.mountpoint / "bulk", "rb", buffering=0) as file:
        for _ in range(32):
            file.read(MIB)
        stuck = proxy.rule(Fault(hang=True), method="GET", path="/bulk$")
        rest = threading.Thread(target=file.readall)
        rest.start()
        wait_for(lambda: mount.status()["queued"] > 0)
        # Everything that bulk may have is taken and does not move.
        assert os.listdir(mount.mountpoint / "d") == ["new"]
        check((mount.mountpoint / "d/new").read_bytes(), 0, 1)
        proxy.release(stuck)
        rest.join()


@pytest.mark.slow
def test_i03_memory_of_long_and_of_random_reads_is_bounded_and_comes_back(bucket, driver):
    size, chance = 192 * MIB, random.Random(3)
    bucket.put("f", size)
    options = ("--cache-size", "64MiB", "-o", "memory=32MiB,budget=24MiB,part=8MiB,reserve_free=0")
    mount = bucket.mount(*options, driver=driver)
    worker = psutil.Process(mount.status()["worker"]["pid"])
    with open(mount.mountpoint / "f", "rb", buffering=0) as file:
        check(os.pread(file.fileno(), KIB, 0))
        wait_for(lambda: mount.status()["memory_bytes"] == 0)
        idle = most = worker.memory_info().rss
        for offset in range(0, size, MIB):
            check(os.pread(file.fileno(), MIB, offset), offset)
            most = max(most, worker.memory_info().rss)
        for _ in range(100):
            offset = chance.randrange(size // BLOCK_SIZE) * BLOCK_SIZE
            check(os.pread(file.fileno(), 64 * KIB, offset), offset)
            most = max(most, worker.memory_info().rss)
        assert most - idle < (32 + 32) * MIB
        wait_for(lambda: mount.status()["memory_bytes"] == 0)
        assert worker.memory_info().rss < 1.3 * idle


def test_e07_i04_open_files_that_nobody_reads_hold_nothing(bucket, proxy, driver):
    count = 1000
    for i in range(8):
        bucket.put(f"large{i}", 12 * MIB, i)
    for i in range(count):
        bucket.put(f"small/{i}", KIB, i)
    mount = bucket.mount(*SINGLE, "-o", "memory=32MiB,budget=24MiB", driver=driver)
    worker = psutil.Process(mount.status()["worker"]["pid"])
    with contextlib.ExitStack() as stack:
        for i in range(8):
            file = stack.enter_context(open(mount.mountpoint / f"large{i}", "rb", buffering=0))
            for _ in range(6):
                file.read(MIB)
        wait_until_quiet(mount)
        before, descriptors = worker.memory_info().rss, worker.num_fds()
        for i in range(count):
            file = stack.enter_context(open(mount.mountpoint / f"small/{i}", "rb", buffering=0))
            check(file.read(), 0, i)
        wait_until_quiet(mount)
        assert worker.memory_info().rss - before < count * 10 * KIB
        asked_before = len(proxy.requests)
        wait_for(lambda: mount.status()["memory_bytes"] == 0)
        assert len(proxy.requests) == asked_before
        assert worker.num_fds() - descriptors < 0.6 * count, "a bounded number, not one each"
