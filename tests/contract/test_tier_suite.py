"""What every arrangement of tiers must do."""

import os
import stat
import threading

import pytest

from tiercache.testing.tiers import SIZES, Cache, body, file
from tiercache.types import BLOCK_SIZE, MIB

LAYOUTS = {"one": (1,), "two-paths": (2,), "two-tiers": (1, 1)}


@pytest.fixture(params=LAYOUTS.values(), ids=LAYOUTS)
def cache(request, tmp_path):
    cache = Cache(tmp_path, request.param)
    yield cache
    cache.store.close()


def test_unknown_object_is_all_missing(cache):
    obj = file(7, 4 * MIB)
    assert cache.store.missing(obj, 0, 4) == [(0, 4)]
    assert not cache.store.has(obj, 0)
    assert not cache.store.complete(obj)
    assert not cache.get_now(obj)
    assert cache.store.backing_fd(obj) is None


@pytest.mark.parametrize("size", SIZES)
async def test_round_trip(cache, size):
    obj = file(7, size)
    assert cache.put(obj)
    assert cache.store.complete(obj)
    assert cache.get_now(obj)
    assert await cache.get(obj)
    assert await cache.get(obj, size // 2)
    assert cache.backing_matches(obj)


def test_missing_names_maximal_runs(cache):
    obj = file(7, 10 * MIB)
    for first, end in ((1, 2), (4, 7), (9, 10)):
        assert cache.put(obj, first, end)
    assert cache.store.missing(obj, 0, 10) == [(0, 1), (2, 4), (7, 9)]
    assert cache.store.missing(obj, 5, 8) == [(7, 8)]
    assert cache.store.missing(obj, 4, 7) == []


async def test_partial_object_is_read_where_it_is_and_is_no_backing(cache):
    obj = file(7, 3 * MIB)
    cache.put(obj, 1, 2)
    assert cache.get_now(obj, BLOCK_SIZE, BLOCK_SIZE)
    assert await cache.get(obj, BLOCK_SIZE + 5, 100)
    assert not cache.get_now(obj, BLOCK_SIZE - 1, 2)
    assert not await cache.get(obj, BLOCK_SIZE - 1, 2)
    assert cache.store.backing_fd(obj) is None


def test_mirror_is_as_long_as_the_object_from_the_start(cache):
    obj = file(7, 5 * MIB + 3)
    cache.put(obj, 2, 3)
    (mirror,) = cache.files()
    assert mirror.stat().st_size == obj.size
    assert mirror.stat().st_blocks * 512 <= BLOCK_SIZE + 8192


def test_blocks_are_resident_from_commit_on(cache):
    obj = file(7, 2 * MIB)
    reservation = cache.store.reserve(obj, 0, 2)
    assert reservation.write(0, body(obj, 0))
    assert not cache.store.has(obj, 0)
    reservation.commit()
    assert cache.store.has(obj, 0)
    assert reservation.write(1, body(obj, 1))
    reservation.commit()
    reservation.close()
    assert cache.store.complete(obj)


def test_close_commits_what_was_written_and_gives_the_rest_back(cache):
    obj = file(7, 2 * MIB)
    reservation = cache.store.reserve(obj, 0, 2)
    promised = cache.used
    assert reservation.write(0, body(obj, 0))
    reservation.close()
    reservation.close()
    assert cache.store.missing(obj, 0, 2) == [(1, 2)]
    assert cache.used == promised - MIB
    assert cache.on_disk() <= cache.used


def test_reservation_is_counted_before_and_given_back_after(cache):
    obj = file(7, 8 * MIB)
    before = cache.used
    reservation = cache.store.reserve(obj, 0, 8)
    assert cache.used - before >= 8 * MIB
    reservation.close()
    assert cache.used == before


def test_threads_write_blocks_of_one_reservation(cache):
    obj = file(7, 16 * MIB)
    reservation = cache.store.reserve(obj, 0, 16)
    threads = [
        threading.Thread(target=lambda b=b: reservation.write(b, body(obj, b))) for b in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reservation.commit()
    reservation.close()
    assert cache.backing_matches(obj)


def test_reservations_of_one_object_overlap(cache):
    obj = file(7, 4 * MIB)
    one, two = cache.store.reserve(obj, 0, 3), cache.store.reserve(obj, 1, 4)
    for reservation, blocks in ((one, range(3)), (two, range(1, 4))):
        for block in blocks:
            assert reservation.write(block, body(obj, block))
    two.commit()
    one.commit()
    one.close()
    two.close()
    assert cache.backing_matches(obj)
    assert cache.on_disk() <= cache.used <= cache.on_disk() + 64 * 1024


def test_evict_frees_and_tells(cache):
    obj = file(7, 3 * MIB)
    before = cache.used
    cache.put(obj)
    assert cache.store.evict(obj.ino) >= 3 * MIB
    assert cache.used == before
    assert cache.files() == []
    assert cache.evicted == [obj.ino]
    assert cache.store.missing(obj, 0, 3) == [(0, 3)]
    assert cache.store.evict(obj.ino) == 0


async def test_evicted_object_can_come_back(cache):
    obj = file(7, 3 * MIB)
    cache.put(obj)
    cache.store.evict(obj.ino)
    assert cache.put(obj)
    assert await cache.get(obj)
    cache.restart()
    assert await cache.get(obj)


def test_dropped_block_is_missing_and_can_be_written_again(cache):
    obj = file(7, 3 * MIB)
    cache.put(obj)
    used = cache.used
    cache.store.drop_block(obj, 1)
    cache.store.drop_block(obj, 1)
    assert cache.store.missing(obj, 0, 3) == [(1, 2)]
    assert cache.evicted == [obj.ino]
    assert cache.put(obj, 1, 2)
    assert cache.backing_matches(obj)
    assert cache.used == used


def test_empty_object_is_complete_and_needs_no_file(cache):
    obj = file(7, 0)
    assert cache.store.complete(obj)
    assert cache.store.missing(obj, 0, 0) == []
    assert cache.store.backing_fd(obj) is None
    assert cache.store.reserve(obj, 0, 0) is None
    assert cache.files() == []


def test_object_larger_than_any_tier_bypasses(cache):
    assert cache.store.reserve(file(7, 1 << 40), 0, 1) is None
    assert all(tier["bypassed"] for tier in cache.store.status())


async def test_reopen_in_the_same_boot_trusts_complete_files(cache):
    obj = file(7, 3 * MIB)
    cache.put(obj)
    cache.restart()
    assert cache.store.complete(obj)
    assert cache.backing_matches(obj)
    assert cache.get_now(obj)


async def test_reopen_in_the_same_boot_verifies_partial_files(cache):
    obj = file(7, 3 * MIB)
    cache.put(obj, 0, 2)
    cache.restart()
    assert cache.store.missing(obj, 0, 3) == [(2, 3)]
    assert not cache.get_now(obj, 0, 10)
    assert await cache.get(obj, 0, 10)
    assert cache.get_now(obj, 0, BLOCK_SIZE)
    assert cache.put(obj, 2, 3)
    assert cache.store.backing_fd(obj) is None, "block 1 was not verified"
    assert await cache.get(obj)
    assert cache.backing_matches(obj)


async def test_reopen_in_another_boot_verifies_everything(cache):
    obj = file(7, 3 * MIB)
    cache.put(obj)
    cache.restart(boot="boot-2")
    assert cache.store.complete(obj)
    assert not cache.get_now(obj)
    assert await cache.get(obj)
    assert cache.get_now(obj)
    assert cache.backing_matches(obj)
    cache.restart()
    assert cache.backing_matches(obj), "verified in this boot already"


async def test_crash_forgets_what_was_not_flushed_and_keeps_what_was(cache):
    old, new = file(7, 2 * MIB), file(8, 2 * MIB)
    cache.put(old)
    cache.store.flush()
    cache.put(new)
    cache.crash()
    assert await cache.get(old)
    assert cache.store.missing(new, 0, 2) == [(0, 2)]
    assert cache.put(new)
    assert await cache.get(new)


@pytest.mark.parametrize(
    "key", [b"x" * 250, b"d/" + b"y" * 1022, b"a\n/\xff\x01", b"../../etc", "é".encode() * 100]
)
async def test_b10_any_key_is_cached_under_a_short_name(cache, key):
    obj = file(7, 1000, key=key)
    assert cache.put(obj)
    cache.restart()
    assert await cache.get(obj)
    (mirror,) = cache.files()
    assert len(mirror.name) == 45


def test_versions_of_a_key_have_files_of_their_own(cache):
    one, two = file(7, 1000, key=b"k", etag="a"), file(8, 1000, key=b"k", etag="b")
    cache.put(one)
    cache.put(two)
    assert cache.backing_matches(one)
    assert cache.backing_matches(two)
    assert len(cache.files()) == 2


def test_f10_origins_share_a_directory_without_meeting(cache, tmp_path):
    obj = file(7, 1000)
    cache.put(obj)
    cache.store.close()
    other = Cache(tmp_path, [len(c.paths) for c in cache.configs], identity="s3://other")
    assert other.store.missing(obj, 0, 1) == [(0, 1)]
    foreign = file(7, 1000, key=obj.key)
    assert other.put(foreign)
    assert len(cache.files()) == 2
    other.store.close()
    cache.open()
    assert cache.backing_matches(obj)


def test_only_the_owner_may_look(cache):
    cache.put(file(7, 1000))
    for mirror in cache.files():
        assert stat.S_IMODE(mirror.stat().st_mode) == 0o600
        for directory in list(mirror.parents)[:4]:
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_status_counts(cache):
    objects = [file(ino, 2 * MIB) for ino in (7, 8, 9)]
    for obj in objects:
        cache.put(obj)
    cache.get_now(objects[0])
    cache.store.served(objects[1], 5)
    cache.store.touch(objects[1])
    cache.store.evict(9)
    tiers = cache.store.status()
    assert sum(tier["objects"] for tier in tiers) == 2
    assert sum(tier["blocks"] for tier in tiers) == 4
    assert sum(tier["hit_bytes"] for tier in tiers) == 2 * MIB + 5
    assert {tier["state"] for tier in tiers} == {"ok"}
    assert {tier["passthrough"] for tier in tiers} == {True}
    cache.restart()
    assert sum(tier["blocks"] for tier in cache.store.status()) == 4


def test_backing_descriptor_is_read_only_and_the_callers(cache):
    obj = file(7, 1000)
    cache.put(obj)
    fd = cache.store.backing_fd(obj)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(fd, b"x", 0)
    os.close(fd)
    assert cache.get_now(obj)
