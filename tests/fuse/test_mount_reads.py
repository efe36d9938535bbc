"""Bytes through a real mount, whatever way they are read."""

import ctypes
import mmap
import multiprocessing
import os
import random
import shutil
import subprocess
from dataclasses import replace

import pytest

from tiercache.testing.data import check, pattern
from tiercache.types import BLOCK_SIZE, MIB

pytestmark = pytest.mark.mount

SIZES = [0, 1, 4095, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 7 * BLOCK_SIZE // 2, 30 * MIB + 7]


def read_all(path):
    with open(path, "rb", buffering=0) as file:
        return file.read()


def test_every_size_cold_warm_and_after_a_remount(bucket, driver):
    for seed, size in enumerate(SIZES):
        bucket.put(f"f{size}", size, seed)
    for _ in range(2):
        mount = bucket.mount(driver=driver)
        for _ in range(2):
            for seed, size in enumerate(SIZES):
                path = mount.mountpoint / f"f{size}"
                data = read_all(path)
                assert len(data) == size == path.stat().st_size
                check(data, seed=seed)
                assert path.stat().st_blocks == -(-size // 512)
        counters = mount.status()["counters"]
        mount.unmount()
    assert counters["origin_gets"] == 0  # the second mount found everything in the cache


def _random_reader(root, seed, failures):
    chance = random.Random(seed)
    try:
        for _ in range(60):
            number = chance.randrange(len(SIZES))
            size = SIZES[number]
            fd = os.open(f"{root}/f{size}", os.O_RDONLY)
            offset = chance.randrange(size + 1)
            length = chance.choice([1, 4096, 100_000, MIB, 2 * MIB])
            data = os.pread(fd, length, offset)
            assert len(data) == max(0, min(length, size - offset))
            check(data, offset, number)
            os.close(fd)
    except BaseException as error:
        failures.put(repr(error))
        raise


def test_d16_random_preads_by_eight_processes(bucket, driver):
    for seed, size in enumerate(SIZES):
        bucket.put(f"f{size}", size, seed)
    root = bucket.mount(driver=driver).mountpoint
    context = multiprocessing.get_context("fork")
    failures = context.SimpleQueue()
    readers = [context.Process(target=_random_reader, args=(root, i, failures)) for i in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert failures.empty(), failures.get()
    assert [reader.exitcode for reader in readers] == [0] * 8


@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, mmap.MAP_PRIVATE])
def test_d01_mmap_cold_and_warm(bucket, driver, flags):
    size = 5 * MIB + 123
    bucket.put("f", size, 9)
    path = bucket.mount(driver=driver).mountpoint / "f"
    for _ in range(3):
        fd = os.open(path, os.O_RDONLY)
        with mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ) as mapped:
            os.close(fd)
            for offset in random.Random(1).sample(range(0, size, 4096), 200):
                check(mapped[offset : offset + 4096], offset, 9)
            check(mapped[:], 0, 9)


def test_d05_direct_io(bucket, driver):
    size = 3 * MIB + 4096
    bucket.put("f", size, 4)
    path = bucket.mount(driver=driver).mountpoint / "f"
    for _ in range(3):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, MIB)
        for offset in (0, 4096, MIB - 4096, 2 * MIB, 3 * MIB, size):
            got = os.preadv(fd, [buffer], offset)
            assert got == min(MIB, size - offset)
            check(buffer[:got], offset, 4)
        os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 65536, 65537, 3 * MIB + 1])
def test_d08_zero_copy_tools(bucket, driver, tmp_path, size):
    bucket.put("f", size, 8)
    path = bucket.mount(driver=driver).mountpoint / "f"
    want = pattern(0, size, 8)
    for _ in range(2):
        assert _by_sendfile(path, tmp_path / "sent", size) == want
        assert _by_splice(path) == want
        assert _by_copy_file_range(path, tmp_path / "ranged", size) == want
        shutil.copyfile(path, tmp_path / "copied")
        assert (tmp_path / "copied").read_bytes() == want
        for command in (
            ["cp", path, tmp_path / "cp"],
            ["cp", "--reflink=auto", path, tmp_path / "cp"],
        ):
            subprocess.run(command, check=True)
            assert (tmp_path / "cp").read_bytes() == want
        assert subprocess.run(["cat", path], check=True, capture_output=True).stdout == want


def _by_sendfile(path, target, size):
    with open(path, "rb") as source, open(target, "wb") as sink:
        sent = 0
        while (n := os.sendfile(sink.fileno(), source.fileno(), sent, 1 << 20)) > 0:
            sent += n
    return target.read_bytes()


def _by_copy_file_range(path, target, size):
    with open(path, "rb") as source, open(target, "wb") as sink:
        done = 0
        while done < size:
            try:
                n = os.copy_file_range(source.fileno(), sink.fileno(), size - done, done, done)
            except OSError:  # another file system, and neither side offers it: copy instead
                n = os.pwrite(sink.fileno(), os.pread(source.fileno(), MIB, done), done)
            if not n:
                break
            done += n
    return target.read_bytes()


def _by_splice(path):
    libc = ctypes.CDLL(None, use_errno=True)
    reader, writer = os.pipe()
    fd, out = os.open(path, os.O_RDONLY), bytearray()
    try:
        while (n := libc.splice(fd, None, writer, None, 65536, 0)) > 0:
            while n:
                part = os.read(reader, n)
                out += part
                n -= len(part)
        assert n == 0, os.strerror(ctypes.get_errno())
    finally:
        for each in (fd, reader, writer):
            os.close(each)
    return bytes(out)


def test_a01_overwritten_during_a_read(bucket, driver):
    bucket.put("f", 24 * MIB, 1)
    mount = bucket.mount("-o", "metadata_ttl=1s", driver=driver)
    path = mount.mountpoint / "f"
    fd = os.open(path, os.O_RDONLY)
    check(os.pread(fd, 4096, 0), 0, 1)
    bucket.put("f", 24 * MIB, 2)
    outcome = _rest(fd, 1)
    assert outcome in ("whole", "stale")
    os.close(fd)
    _until_new(path, 24 * MIB, 2)


def _rest(fd, seed):
    offset = 0
    while True:
        try:
            data = os.pread(fd, MIB, offset)
        except OSError as error:
            assert error.errno in (116, 5)  # noqa: PT017 - either is a clean end
            return "stale"
        if not data:
            return "whole"
        check(data, offset, seed)
        offset += len(data)


def _until_new(path, size, seed):
    """Open until the new version shows: each open is wholly one version or a clean error."""
    for _ in range(400):
        try:
            data = read_all(path)
        except OSError as error:
            assert error.errno in (116, 2)  # noqa: PT017
            continue
        if len(data) == size and data[:4096] == pattern(0, 4096, seed):
            check(data, 0, seed)
            return
        os.sched_yield()
        subprocess.run(["sleep", "0.02"], check=True)
    raise AssertionError("the new version never showed")


def test_a02_a_long_ttl_does_not_keep_the_old_version(bucket, driver):
    bucket.put("f", 10, 1)
    path = bucket.mount("-o", "metadata_ttl=1h", driver=driver).mountpoint / "f"
    assert path.stat().st_size == 10
    bucket.put("f", 100, 2)
    outcomes = []
    for _ in range(3):
        try:
            outcomes.append(read_all(path))
        except OSError as error:
            outcomes.append(error.errno)
    assert outcomes[0] in (116, pattern(0, 100, 2))
    assert outcomes[-1] == pattern(0, 100, 2)


def test_a03_deleted_with_a_long_ttl(bucket, driver):
    bucket.put("f", 2 * MIB, 1)
    mount = bucket.mount("-o", "metadata_ttl=1h", driver=driver)
    path = mount.mountpoint / "f"
    with open(path, "rb", buffering=0) as file:
        file.read(4096)
    bucket.delete("f")
    for _ in range(3):
        try:
            data = read_all(path)
        except OSError as error:
            assert error.errno in (2, 116)  # noqa: PT017
        else:
            check(data, 0, 1)  # wholly fetched before it went away
            assert len(data) == 2 * MIB


def test_a06_versions_do_not_share_pages(bucket, driver):
    bucket.put("f", MIB, 1)
    path = bucket.mount("-o", "metadata_ttl=1s", driver=driver).mountpoint / "f"
    old = os.open(path, os.O_RDONLY)
    check(os.pread(old, 4096, 0), 0, 1)
    mapped = mmap.mmap(old, 0, prot=mmap.PROT_READ)
    check(mapped[:8192], 0, 1)
    bucket.put("f", MIB, 2)
    _until_new(path, MIB, 2)
    _rest(old, 1)
    check(mapped[:8192], 0, 1)
    check(read_all(path), 0, 2)
    mapped.close()
    os.close(old)


def test_d10_a_large_sparse_object(make_mount, tmp_path, driver):
    """Offsets beyond 2^32, from a directory so that no server has to hold them."""
    source = tmp_path / "data"
    source.mkdir()
    size = (6 << 30) + 5
    places = [
        0,
        (1 << 31) - 1,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        (1 << 32) + 1,
        5 << 30,
        size - 4096,
    ]
    with open(source / "f", "wb") as file:
        file.truncate(size)
        for place in places:
            os.pwrite(
                file.fileno(), pattern(place, 8192 if place + 8192 < size else size - place), place
            )
    mount = make_mount(f"file://{source}", driver=driver)
    mount.mount()
    path = mount.mountpoint / "f"
    assert path.stat().st_size == size
    for _ in range(2):
        fd = os.open(path, os.O_RDONLY)
        for place in places:
            check(os.pread(fd, 4096, place), place)
        os.close(fd)


def test_e11_many_processes_cause_one_get(bucket):
    bucket.put("f", 900_000, 5)
    mount = bucket.mount()
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(24)

    def reader():
        barrier.wait()
        check(read_all(mount.mountpoint / "f"), 0, 5)

    readers = [context.Process(target=reader) for _ in range(24)]
    for each in readers:
        each.start()
    for each in readers:
        each.join()
    assert [each.exitcode for each in readers] == [0] * 24
    assert mount.status()["counters"]["origin_gets"] == 1


def test_passthrough_is_used_once_a_file_is_complete(bucket):
    bucket.put("f", 3 * MIB, 5)
    mount = bucket.mount()
    check(read_all(mount.mountpoint / "f"), 0, 5)
    before = mount.status()
    assert before["passthrough"], before["passthrough_reason"]
    reads = before["counters"]["reads"]
    for _ in range(5):
        check(read_all(mount.mountpoint / "f"), 0, 5)
    after = mount.status()
    assert after["worker_facts"]["passthrough_opens"] >= 4
    assert after["counters"]["reads"] == reads


def test_large_replies_come_from_the_page_cache_without_a_copy(bucket):
    bucket.put("f", 3 * MIB + 5, 5)
    mount = bucket.mount("-o", "passthrough=false")
    path = mount.mountpoint / "f"
    check(read_all(path), 0, 5)
    before = mount.status()["worker_facts"]["spliced_replies"]
    page_cache_is_bypassed = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with open(page_cache_is_bypassed, "rb", buffering=0) as file, mmap.mmap(-1, 4 * MIB) as memory:
        got = 0
        while count := file.readinto(memoryview(memory)[got:]):
            got += count
        check(memory[:got], 0, 5)
    assert got == 3 * MIB + 5
    assert mount.status()["worker_facts"]["spliced_replies"] - before == 7


def test_verify_always_turns_passthrough_off(bucket, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text(
        f'[[tier]]\nname = "t"\npaths = ["{tmp_path / "cache"}"]\n'
        'capacity = "1GiB"\nverify = "always"\n'
    )
    bucket.put("f", 3 * MIB, 5)
    options = ("--config", str(config), "--endpoint-url", bucket.server.endpoint_url)
    mount = replace(bucket.prepare(), options=options)
    mount.mount()
    for _ in range(3):
        check(read_all(mount.mountpoint / "f"), 0, 5)
    assert mount.status()["worker_facts"]["passthrough_opens"] == 0
