"""What is taken from the page cache without a copy, and how blocks get there."""

import errno
import os

import pytest

from tiercache.testing.tiers import Cache, FaultySystem, body, check, file
from tiercache.tier import syscalls
from tiercache.tier.store import Limits
from tiercache.types import BLOCK_SIZE, KIB, MIB

SIZE = 3 * MIB + 12345


@pytest.fixture
def caches(tmp_path):
    """Makes caches that are closed in the end."""
    made = []

    def make(**options):
        made.append(Cache(tmp_path, **options))
        return made[-1]

    yield make
    for cache in made:
        cache.store.close()


def located(cache, obj, offset, size):
    """Whether the bytes lie in memory; wrong ones are an AssertionError."""
    fd = cache.store.locate(obj, offset, size)
    if fd < 0:
        return False
    check(memoryview(os.pread(fd, size, offset)), offset, obj.ino)
    return True


def drop_pages(cache):
    for path in cache.files():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 1), (4095, 2), (0, SIZE), (SIZE - 1, 1), (BLOCK_SIZE - 5, 10)]
)
def test_what_was_written_lies_in_memory(caches, offset, size):
    cache, obj = caches(), file(1, SIZE)
    assert cache.put(obj)
    assert located(cache, obj, offset, size)


def test_only_resident_blocks_are_located(caches):
    cache, obj = caches(), file(1, SIZE)
    assert cache.put(obj, 0, 1)
    assert located(cache, obj, 0, BLOCK_SIZE)
    assert not located(cache, obj, 0, BLOCK_SIZE + 1)
    assert not located(cache, obj, 2 * BLOCK_SIZE, 1)
    assert not located(cache, file(2, SIZE), 0, 1)


def test_what_would_have_to_come_from_the_disk_is_not_located(caches):
    """The loop must not wait for a disk."""
    cache, obj = caches(), file(1, SIZE)
    assert cache.put(obj)
    drop_pages(cache)
    assert not located(cache, obj, 0, 64 * KIB)


def test_what_is_not_verified_is_not_located(caches):
    cache, obj = caches(verify="always"), file(1, SIZE)
    assert cache.put(obj)
    assert not located(cache, obj, 0, 4096)


async def test_a_block_of_an_earlier_boot_is_located_once_it_was_verified(caches):
    cache, obj = caches(), file(1, SIZE)
    assert cache.put(obj)
    cache.restart(boot="boot-2")
    assert not located(cache, obj, 0, 4096)
    assert await cache.get(obj, 0, 4096)
    assert located(cache, obj, 0, 4096)


def test_a_kernel_that_does_not_tell_is_read_from_instead(caches, monkeypatch):
    monkeypatch.setattr("tiercache.tier.system.System.cached_pages", lambda *_: -1)
    cache, obj = caches(), file(1, SIZE)
    assert cache.put(obj)
    assert not located(cache, obj, 0, 4096)
    assert cache.get_now(obj, 0, 4096)


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_that_cannot_allocate_is_asked_once(caches, error):
    system = FaultySystem(error=error)
    system.broken.add("allocate")
    cache, obj = caches(system=system), file(1, SIZE)
    assert cache.put(obj)
    assert (system.made["allocate"], system.made["deallocate"]) == (1, 0)
    assert cache.get_now(obj, 0, BLOCK_SIZE)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_ahead_is_no_failed_write(caches, error):
    system = FaultySystem(error=error)
    system.broken.add("allocate")
    cache, obj = caches(system=system), file(1, SIZE)
    assert cache.put(obj)
    assert (system.made["allocate"], system.made["deallocate"]) == (1, 1), "what it got goes back"
    assert cache.get_now(obj)


@pytest.mark.allow_warnings
def test_a_disk_that_fails_to_allocate_is_a_failed_write(caches):
    system = FaultySystem(error=errno.EIO)
    system.broken.add("allocate")
    cache, obj = caches(system=system), file(1, SIZE)
    assert not cache.put(obj)
    assert cache.store.missing(obj, 0, obj.blocks) == [(0, obj.blocks)]


def test_blocks_that_could_not_be_opened_for_a_moment_are_not_punched(caches):
    system = FaultySystem(error=errno.EMFILE)
    cache = caches(system=system, limits=Limits(fds=1))
    obj, other = file(1, 16 * MIB), file(2, MIB)
    assert cache.put(obj, 0, 8)
    assert cache.put(other)
    assert cache.get_now(other)  # the only descriptor goes to it
    system.broken.add("open")
    assert not cache.get_now(obj, 2 * MIB, MIB)
    system.broken.clear()
    assert cache.store.missing(obj, 0, 16) == [(0, 16)]
    reservation = cache.store.reserve(obj, 0, 8)
    assert reservation.write(0, body(obj, 0))
    reservation.close()  # nothing of the rest came
    assert cache.get_now(obj, 0, 8 * MIB)


def test_space_is_allocated_for_some_blocks_at_a_time(caches):
    system = FaultySystem()
    cache, obj = caches(system=system), file(1, 11 * MIB + 5000)
    assert cache.put(obj)
    assert system.made["allocate"] == 3
    assert not system.made["deallocate"]


@pytest.mark.parametrize("error", [None, errno.EOPNOTSUPP])
@pytest.mark.parametrize("came", [1, 3, 6])
def test_space_for_blocks_that_did_not_come_is_given_back_or_counted(caches, came, error):
    system = FaultySystem(error=error or 0)
    cache, obj = caches(system=system), file(1, 12 * MIB)
    assert cache.put(obj, 8, 12)
    reservation = cache.store.reserve(obj, 0, 8)
    for block in range(came):
        assert reservation.write(block, body(obj, block))
    if error is not None:
        system.broken.add("deallocate")
    reservation.close()
    assert cache.on_disk() <= cache.used
    assert cache.used < (4 + came + (0 if error is None else 4)) * MIB + 64 * KIB
    assert located(cache, obj, 0, came * BLOCK_SIZE)
    assert located(cache, obj, 8 * BLOCK_SIZE, 4 * BLOCK_SIZE)
    assert cache.store.missing(obj, 0, 12) == [(came, 8)]


def test_a_block_that_is_fetched_anew_is_written_over_without_a_hole(caches):
    system = FaultySystem()
    cache, obj = caches(system=system), file(1, 6 * MIB)
    assert cache.put(obj)
    for block in (1, 2, 3):
        cache.store.drop_block(obj, block)
    made = system.made["allocate"]
    reservation = cache.store.reserve(obj, 1, 4)
    assert reservation.write(1, body(obj, 1))
    reservation.close()
    assert system.made["allocate"] == made
    assert not system.made["deallocate"]
    assert cache.store.missing(obj, 0, 6) == [(2, 4)]


def test_small_blocks_are_written_without_allocating(caches):
    system = FaultySystem()
    cache, obj = caches(system=system), file(1, 100 * KIB)
    assert cache.put(obj)
    assert not system.made["allocate"]


def test_allocating_keeps_content_and_length_and_can_be_undone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    fd = os.open(path, os.O_RDWR)
    syscalls.allocate(fd, 0, MIB)
    assert path.read_bytes() == b"x" * 5000
    assert path.stat().st_blocks * 512 >= MIB
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        syscalls.allocate(-1, 0, 1)
    os.ftruncate(fd, MIB)
    syscalls.deallocate(fd, 4096, MIB - 4096)
    assert path.read_bytes() == b"x" * 4096 + bytes(MIB - 4096)
    assert path.stat().st_blocks * 512 == 4096
    os.close(fd)


def test_pages_in_memory_are_counted_by_range(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * (64 * KIB))
    fd = os.open(path, os.O_RDONLY)
    assert syscalls.cached_pages(fd, 0, 64 * KIB) == 16
    assert syscalls.cached_pages(fd, 4095, 2) == 2
    assert syscalls.cached_pages(-1, 0, 4096) == -1
    os.close(fd)
