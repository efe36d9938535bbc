"""Disks that fail at every possible moment: a reader never sees it, and bytes are never wrong."""

import contextlib
import errno
import os
import subprocess
from dataclasses import replace

import pytest
import trio

from tiercache.testing.tiers import Cache, FaultySystem, body, file
from tiercache.tier.store import Limits
from tiercache.tier.system import System
from tiercache.types import BLOCK_SIZE, MIB

pytestmark = pytest.mark.allow_warnings

#: More calls than the scenario makes.
CALLS_MAX = 400

QUICK = Limits(
    flush_interval_s=0.01,
    probe_min_s=0.01,
    probe_max_s=0.05,
    unlink_inline=MIB,
    verify_bytes_per_s=1e12,
)


async def until(condition):
    """Let the background work until *condition* holds."""
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - the store announces nothing
            await trio.sleep(0.005)


async def scenario(cache):
    """A bit of everything. Only what the disk lost may be missing; nothing may raise."""
    big, small, other = file(7, MIB + 5000), file(8, 1000), file(9, MIB + 1)
    for obj in (big, small):
        cache.put(obj)
        await read_all(cache, obj)
        cache.backing_matches(obj)
    cache.put(other, 1, 2)
    cache.store.evict(big.ino)
    cache.store.flush()
    cache.fill(other)
    await read_all(cache, other)
    cache.store.close()
    cache.open()
    for obj in (big, small, other):
        await read_all(cache, obj)
        cache.fill(obj)
        await read_all(cache, obj)
    cache.store.close()
    return big, small, other


async def read_all(cache, obj):
    for offset in range(0, obj.size, BLOCK_SIZE):
        size = min(BLOCK_SIZE, obj.size - offset)
        cache.get_now(obj, offset, size)
        await cache.get(obj, offset, size)


@pytest.mark.parametrize(
    "error",
    [
        "EIO",
        *(pytest.param(e, marks=pytest.mark.slow) for e in ("ENOSPC", "EROFS", "EMFILE", "ENOENT")),
    ],
)
async def test_every_call_fails_once(tmp_path, error):
    for n in range(1, CALLS_MAX):
        system = FaultySystem(n, getattr(errno, error))
        cache = Cache(tmp_path / str(n), system=system, limits=QUICK)
        objects = await scenario(cache)
        cache.system = System()
        cache.open()
        for obj in objects:
            await read_all(cache, obj)
            assert cache.fill(obj)
            await read_all(cache, obj)
            assert cache.backing_matches(obj)
        assert cache.on_disk() <= cache.used
        cache.store.close()
        assert open_files_below(tmp_path) == []
        if system.failed is None:
            return
    pytest.fail("the scenario makes more calls than expected")


def open_files_below(root):
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith(str(root)):
            links.append(target)
    return links


@pytest.mark.parametrize(
    ("error", "state"),
    [("ENOSPC", "full"), ("EDQUOT", "full"), ("EROFS", "read-only"), ("EIO", "failed")],
)
async def test_f01_tier_that_cannot_be_written_is_bypassed_and_taken_back(tmp_path, error, state):
    system = FaultySystem(error=getattr(errno, error))
    cache = Cache(tmp_path, system=system, limits=QUICK)
    old, new = file(7, 2 * MIB), file(8, 2 * MIB)
    cache.put(old)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        system.broken = {"pwrite"}
        assert not cache.put(new)
        (tier,) = cache.store.status()
        assert tier["state"] == state
        assert tier["reason"] == os.strerror(getattr(errno, error))
        assert cache.store.reserve(new, 0, 1) is None
        assert await cache.get(old) == (state != "failed")
        assert cache.store.missing(old, 0, 2) == ([(0, 2)] if state == "failed" else [])
        cache.clock.now += 1
        probes = system.made["fdatasync"]
        await until(lambda: cache.store.status()[0]["state"] == state)
        assert system.made["fdatasync"] == probes
        system.broken = set()
        cache.clock.now += 60
        await until(lambda: cache.store.status()[0]["state"] == "ok")
        assert cache.put(new)
        assert await cache.get(old)
        assert await cache.get(new)
        nursery.cancel_scope.cancel()
    cache.store.close()


async def test_probes_are_spaced_out(tmp_path):
    system = FaultySystem(error=errno.EIO)
    cache = Cache(tmp_path, system=system, limits=Limits(probe_min_s=1, probe_max_s=4))
    system.broken = {"pwrite"}
    cache.put(file(7, 1000))
    health = cache.store.tiers[0].health
    due = []
    for second in range(20):
        cache.clock.now += 1
        if health.probe_due:
            due.append(second)
            health.probed(OSError(errno.EIO, "still"))
    assert due == [0, 2, 6, 10, 14, 18]
    cache.store.close()


async def test_read_error_is_a_miss_of_that_block(tmp_path):
    system = FaultySystem(error=errno.EIO)
    cache = Cache(tmp_path, system=system)
    obj = file(7, 2 * MIB)
    cache.put(obj)
    system.broken = {"preadv"}
    assert not cache.get_now(obj, 0, 10)
    assert not await cache.get(obj, 0, 10)
    system.broken = set()
    assert cache.store.missing(obj, 0, 2) == [(0, 1)]
    assert cache.put(obj, 0, 1)
    assert cache.backing_matches(obj)
    cache.store.close()


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


async def test_f01_disk_filled_by_others(small_disk):
    foreign = small_disk / "foreign"
    cache = Cache(small_disk, capacity=64 * MIB, limits=QUICK)
    one, two = file(7, 2 * MIB), file(8, 4 * MIB)
    cache.put(one)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        fill(foreign)
        cache.clock.now += 2
        assert not cache.put(two)
        assert await cache.get(one)
        foreign.unlink()
        cache.clock.now += 120
        await until(lambda: cache.store.status()[0]["state"] == "ok")
        cache.clock.now += 2
        assert cache.put(two)
        assert await cache.get(one)
        assert await cache.get(two)
        nursery.cancel_scope.cancel()
    cache.store.close()


def fill(path):
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as out:
        while out.write(bytes(1 << 16)):
            pass


async def test_f01_disk_that_fills_between_reservation_and_write(small_disk):
    cache = Cache(small_disk, capacity=64 * MIB, limits=QUICK)
    obj = file(7, 4 * MIB)
    reservation = cache.store.reserve(obj, 0, 4)
    assert reservation.write(0, body(obj, 0))
    fill(small_disk / "foreign")
    assert not reservation.write(1, body(obj, 1))
    reservation.commit()
    reservation.close()
    assert cache.store.missing(obj, 0, 4) == [(1, 4)]
    assert await cache.get(obj, 0, BLOCK_SIZE)
    assert cache.store.status()[0]["state"] == "full"
    cache.store.close()


async def test_reserve_free_is_left_to_others(small_disk):
    cache = Cache(small_disk, capacity=64 * MIB, reserve_free=4 * MIB, policy="lru")
    for ino in range(7, 17):
        assert cache.put(file(ino, MIB))
    stat = os.statvfs(small_disk)
    assert stat.f_bavail * stat.f_frsize >= 4 * MIB
    assert cache.store.status()[0]["evictions"] > 0
    cache.store.close()


async def test_capacity_zero_is_what_the_disk_has_free(small_disk):
    cache = Cache(small_disk, capacity=0, reserve_free=2 * MIB)
    capacity = cache.store.status()[0]["capacity"]
    assert 5 * MIB < capacity <= 6 * MIB
    cache.put(file(7, 3 * MIB))
    cache.restart()
    assert abs(cache.store.status()[0]["capacity"] - capacity) < 64 * 1024
    cache.store.close()


async def test_evicted_file_stays_whole_and_counted_while_the_kernel_holds_it(tmp_path):
    cache = Cache(tmp_path)
    obj = file(7, 3 * MIB)
    cache.put(obj)
    fd = cache.store.backing_fd(obj)
    cache.store.kept(obj.ino)
    assert cache.store.evict(obj.ino) >= 3 * MIB
    assert cache.used >= 3 * MIB
    assert os.pread(fd, MIB, 2 * MIB) == bytes(body(obj, 2))
    assert cache.files() == []
    cache.put(obj)
    assert cache.used >= 6 * MIB
    os.close(fd)
    cache.store.gone(obj.ino)
    assert 3 * MIB <= cache.used < 4 * MIB
    cache.store.close()


async def test_kept_file_is_counted_across_a_crash(tmp_path):
    cache = Cache(tmp_path)
    obj = file(7, 3 * MIB)
    cache.put(obj)
    cache.store.kept(obj.ino)
    cache.store.evict(obj.ino)
    cache.store.flush()
    cache.crash()
    cache.store.kept(obj.ino)
    assert cache.used >= 3 * MIB
    cache.store.gone(obj.ino)
    assert cache.used == 0
    cache.store.close()


async def test_kept_file_nobody_claims_is_not_counted_for_ever(tmp_path):
    limits = Limits(claim_s=0.01)
    cache = Cache(tmp_path, limits=limits)
    obj = file(7, 3 * MIB)
    cache.put(obj)
    cache.store.kept(obj.ino)
    cache.store.evict(obj.ino)
    cache.restart()
    assert cache.used >= 3 * MIB
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        await until(lambda: cache.used == 0)
        nursery.cancel_scope.cancel()
    cache.restart()
    assert cache.used == 0
    cache.store.close()


async def test_eviction_during_a_write_leaves_nothing(tmp_path):
    cache = Cache(tmp_path)
    obj = file(7, 3 * MIB)
    reservation = cache.store.reserve(obj, 0, 3)
    assert reservation.write(0, body(obj, 0))
    reservation.commit()
    cache.store.evict(obj.ino)
    assert reservation.write(1, body(obj, 1))
    reservation.commit()
    assert cache.store.missing(obj, 0, 3) == [(0, 3)]
    assert cache.put(obj)
    reservation.close()
    assert cache.backing_matches(obj)
    cache.store.evict(obj.ino)
    assert cache.used == 0
    assert cache.files() == []
    cache.store.close()


async def test_h10_out_of_descriptors_is_a_miss_not_an_error(tmp_path):
    system = FaultySystem(error=errno.EMFILE)
    cache = Cache(tmp_path, system=system, limits=replace(QUICK, fds=2))
    objects = [file(ino, 1000) for ino in range(7, 12)]
    for obj in objects:
        cache.put(obj)
    assert len(open_files_below(tmp_path)) <= 2
    system.broken = {"open"}
    for obj in objects:
        assert not await cache.get(obj)
        assert cache.store.missing(obj, 0, 1) == [(0, 1)]
        assert not cache.put(obj)
    assert cache.store.status()[0]["state"] == "ok"
    system.broken = set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.store.run)
        await until(lambda: all(cache.store.complete(obj) for obj in objects))
        nursery.cancel_scope.cancel()
    for obj in objects:
        assert await cache.get(obj)
    cache.store.close()


@pytest.fixture
def overlay(tmp_path):
    """A directory on overlayfs."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    options = ",".join(
        f"{o}={tmp_path / d}"
        for o, d in (("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work"))
    )
    merged = tmp_path / "merged"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, merged], check=True)
    yield merged
    subprocess.run(["umount", "-l", merged], check=True)


async def test_overlay_is_refused_as_backing(overlay):
    cache = Cache(overlay)
    obj = file(7, 1000)
    cache.put(obj)
    assert await cache.get(obj)
    assert cache.store.backing_fd(obj) is None
    (tier,) = cache.store.status()
    assert not tier["passthrough"]
    assert "overlay" in tier["passthrough_reason"]
    cache.store.close()
