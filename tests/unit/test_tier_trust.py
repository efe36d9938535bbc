"""Whatever happens to the files behind our back: a miss or the right bytes, never others."""

import os
import shutil

import pytest

from tiercache.testing.tiers import Cache, body, file
from tiercache.types import BLOCK_SIZE, MIB

SIZE = 3 * MIB + 12345
BOOTS = {"same-boot": None, "other-boot": "boot-2"}


@pytest.fixture
def cache(tmp_path):
    cache = Cache(tmp_path)
    yield cache
    cache.store.close()


def flip(path, offset):
    with open(path, "r+b") as mirror:
        mirror.seek(offset)
        byte = mirror.read(1)[0]
        mirror.seek(offset)
        mirror.write(bytes([byte ^ 1]))


def replace_by_sparse(path):
    size = path.stat().st_size
    path.unlink()
    with open(path, "wb") as mirror:
        mirror.truncate(size)


def punch_by_rewrite(path):
    with open(path, "r+b") as mirror:
        size = path.stat().st_size
        mirror.truncate(0)
        mirror.truncate(size)


def swap_for_copy(path):
    copy = path.with_suffix(".copy")
    shutil.copyfile(path, copy)
    flip(copy, 5)
    copy.rename(path)


TAMPERINGS = {
    "bit-flip-first": lambda path: flip(path, 0),
    "bit-flip-last": lambda path: flip(path, SIZE - 1),
    "truncated": lambda path: os.truncate(path, BLOCK_SIZE + 1),
    "emptied": lambda path: os.truncate(path, 0),
    "grown": lambda path: os.truncate(path, SIZE + 1),
    "deleted": lambda path: path.unlink(),
    "sparse": replace_by_sparse,
    "zeroed-in-place": punch_by_rewrite,
    "other-file": swap_for_copy,
}


async def read_all(cache, obj):
    """Read every block both ways; how many were served. Wrong bytes raise."""
    served = 0
    for offset in range(0, obj.size, BLOCK_SIZE):
        size = min(BLOCK_SIZE, obj.size - offset)
        served += cache.get_now(obj, offset, size) or await cache.get(obj, offset, size)
    cache.backing_matches(obj)
    return served


@pytest.mark.allow_warnings
@pytest.mark.parametrize("tamper", TAMPERINGS.values(), ids=TAMPERINGS)
@pytest.mark.parametrize("boot", BOOTS.values(), ids=BOOTS)
@pytest.mark.parametrize("blocks", [2, 4], ids=["partial", "complete"])
async def test_f06_f07_tampered_file_is_never_served(cache, tamper, boot, blocks):
    obj = file(7, SIZE)
    cache.put(obj, 0, blocks)
    cache.store.close()
    tamper(cache.files()[0])
    cache.boot = boot or cache.boot
    cache.open()
    await read_all(cache, obj)
    for start, end in cache.store.missing(obj, 0, obj.blocks):
        assert cache.put(obj, start, end)
    assert await read_all(cache, obj) == obj.blocks
    assert cache.backing_matches(obj)


@pytest.mark.allow_warnings
@pytest.mark.parametrize("name", ["truncated", "emptied", "deleted", "sparse", "other-file"])
async def test_f06_file_that_goes_while_in_use_is_never_served_as_zeros(cache, name):
    obj = file(7, SIZE)
    cache.put(obj)
    assert cache.get_now(obj, 0, 10)
    TAMPERINGS[name](cache.files()[0])
    await read_all(cache, obj)
    cache.store._files.close_all()
    await read_all(cache, obj)


@pytest.mark.allow_warnings
async def test_file_written_to_in_this_process_is_verified_before_it_backs_anything(cache):
    obj = file(7, SIZE)
    cache.put(obj)
    flip(cache.files()[0], 17)
    assert not cache.backing_matches(obj)
    assert not cache.get_now(obj, 0, 100)
    assert not await cache.get(obj, 0, 100)
    assert cache.store.missing(obj, 0, 4) == [(0, 1)]
    assert cache.store.status()[0]["corrupt_blocks"] == 1


async def test_f06_lost_record_is_a_miss(cache):
    obj = file(7, SIZE)
    cache.put(obj)
    cache.store.close()
    cache.kv.pairs.clear()
    cache.open()
    assert cache.store.missing(obj, 0, 4) == [(0, 4)]
    assert cache.put(obj)
    assert await read_all(cache, obj) == 4


@pytest.mark.allow_warnings
async def test_f06_older_catalog_is_never_believed_over_the_disk(cache):
    one, two = file(7, SIZE), file(8, SIZE)
    cache.put(one)
    cache.put(two, 0, 2)
    cache.store.close()
    backup = cache.kv.copy()
    cache.open()
    cache.store.evict(one.ino)
    reservation = cache.store.reserve(one, 2, 3)
    reservation.write(2, body(one, 2))
    reservation.commit()
    reservation.close()
    cache.put(two)
    cache.store.close()
    cache.kv = backup
    cache.open()
    await read_all(cache, one)
    assert await read_all(cache, two) == 2


async def test_older_catalog_that_reuses_an_inode_number_is_a_miss(cache):
    obj, other = file(7, SIZE), file(7, SIZE, key=b"another key")
    cache.put(obj)
    cache.restart()
    assert cache.store.missing(other, 0, 4) == [(0, 4)]
    assert not cache.get_now(other, 0, 10)


@pytest.mark.parametrize("position", [3, 40, 70, -1])
async def test_damaged_record_is_a_miss(cache, position):
    obj = file(7, SIZE)
    cache.put(obj)
    cache.store.close()
    (key,) = [key for key in cache.kv.pairs if key.startswith(b"Th")]
    record = bytearray(cache.kv.pairs[key])
    record[position] ^= 1
    cache.kv.pairs[key] = bytes(record)
    cache.open()
    assert cache.store.missing(obj, 0, 4) == [(0, 4)]


async def test_verify_always_reads_every_block_again(tmp_path):
    cache = Cache(tmp_path, verify="always")
    obj = file(7, SIZE)
    cache.put(obj)
    assert not cache.get_now(obj, 0, 10)
    assert await cache.get(obj)
    assert cache.store.backing_fd(obj) is None
    (tier,) = cache.store.status()
    assert not tier["passthrough"]
    assert "verify" in tier["passthrough_reason"]
    cache.store.close()


@pytest.mark.allow_warnings
async def test_f07_verify_always_sees_a_flip_right_after_the_write(tmp_path):
    cache = Cache(tmp_path, verify="always")
    obj = file(7, SIZE)
    cache.put(obj)
    flip(cache.files()[0], BLOCK_SIZE + 3)
    assert await cache.get(obj, 0, BLOCK_SIZE)
    assert not await cache.get(obj, BLOCK_SIZE, 10)
    assert cache.store.missing(obj, 0, 4) == [(1, 2)]
    cache.store.close()


async def test_object_of_many_segments_survives(tmp_path):
    cache = Cache(tmp_path, capacity=1 << 40)
    obj = file(7, 3000 * MIB)
    for block in (0, 1023, 1024, 2047, 2048, 2999):
        assert cache.put(obj, block, block + 1)
    cache.store.flush()
    assert len([key for key in cache.kv.pairs if key.startswith(b"Ts")]) == 2
    cache.restart()
    assert cache.store.missing(obj, 0, 3000) == [
        (1, 1023),
        (1025, 2047),
        (2049, 2999),
    ]
    assert await cache.get(obj, 2048 * MIB, MIB)
    cache.store.evict(obj.ino)
    cache.store.flush()
    assert not [key for key in cache.kv.pairs if key.startswith((b"Ts", b"Th"))]
    cache.store.close()


async def test_lost_segment_is_a_miss_of_its_blocks(tmp_path):
    cache = Cache(tmp_path, capacity=1 << 40)
    obj = file(7, 2000 * MIB)
    for block in (5, 1500):
        assert cache.put(obj, block, block + 1)
    cache.store.close()
    (key,) = [key for key in cache.kv.pairs if key.startswith(b"Ts")]
    del cache.kv.pairs[key]
    cache.open()
    assert cache.store.missing(obj, 0, 2000) == [(0, 5), (6, 2000)]
    cache.store.close()
