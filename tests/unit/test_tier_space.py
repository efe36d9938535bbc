"""F02: what is on disk never exceeds the capacity, and the accounts agree with the disk."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tiercache.testing.tiers import Cache, FaultySystem, body, file
from tiercache.tier.store import Limits
from tiercache.types import MIB

CAPACITY = 12 * MIB
OBJECTS = [
    file(10 + n, size) for n, size in enumerate((1, 5000, 110_000, MIB, MIB + 1, 3 * MIB, 5 * MIB))
]
objects = st.sampled_from(OBJECTS)


class Accounts(RuleBasedStateMachine):
    """Random reservations, evictions, kept files and restarts on a small tier."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.open = []
        self.kept = {}

    @initialize(policy=st.sampled_from(["lru", "pin"]), paths=st.integers(1, 2))
    def start(self, policy, paths):
        self.cache = Cache(
            Path(self.directory.name),
            (paths,),
            capacity=CAPACITY,
            policy=policy,
            limits=Limits(unlink_inline=2 * MIB, objects=3, fds=2),
        )

    @rule(obj=objects, first=st.integers(0, 4), count=st.integers(1, 5))
    def reserve(self, obj, first, count):
        end = min(first + count, obj.blocks)
        if first < end and len(self.open) < 4:
            reservation = self.cache.store.reserve(obj, first, end)
            if reservation is not None:
                self.open.append((reservation, obj))

    @rule(data=st.data())
    def write(self, data):
        if self.open:
            reservation, obj = data.draw(st.sampled_from(self.open))
            block = data.draw(st.integers(reservation.first, reservation.end - 1))
            assert reservation.write(block, body(obj, block)) or reservation.item.dead

    @rule(data=st.data(), commit=st.booleans())
    def close(self, data, commit):
        if self.open:
            index = data.draw(st.integers(0, len(self.open) - 1))
            reservation, _obj = self.open.pop(index)
            if commit:
                reservation.commit()
            reservation.close()

    @rule(obj=objects)
    def put(self, obj):
        self.cache.put(obj)

    @rule(obj=objects)
    def read(self, obj):
        self.cache.store.touch(obj)
        self.cache.get_now(obj, 0, 1)

    @rule(obj=objects)
    def keep(self, obj):
        fd = self.cache.store.backing_fd(obj)
        if fd is not None:
            self.kept.setdefault(obj.ino, []).append(fd)
            self.cache.store.kept(obj.ino)

    @rule(data=st.data())
    def let_go(self, data):
        if self.kept:
            ino = data.draw(st.sampled_from(sorted(self.kept)))
            os.close(self.kept[ino].pop())
            if not self.kept[ino]:
                del self.kept[ino]
            self.cache.store.gone(ino)

    @rule(obj=objects)
    def evict(self, obj):
        self.cache.store.evict(obj.ino)

    @rule(obj=objects, block=st.integers(0, 4))
    def drop(self, obj, block):
        if block < obj.blocks:
            self.cache.store.drop_block(obj, block)

    @rule()
    def unlink_queued(self):
        removal = self.cache.store._removal
        while removal.queue:
            path, item = removal.queue.popleft()
            removal.unlink_queued(path)
            removal.unlinked(item)

    @rule(boot=st.sampled_from([None, "boot-2", "boot-3"]))
    def restart(self, boot):
        for reservation, _obj in self.open:
            reservation.close()
        self.open.clear()
        if boot is None:
            self.cache.restart()
        else:
            self.release_kept()
            self.cache.restart(boot=boot)
        for ino, fds in self.kept.items():
            for _fd in fds:
                self.cache.store.kept(ino)

    def release_kept(self):
        for ino, fds in self.kept.items():
            for fd in fds:
                os.close(fd)
                self.cache.store.gone(ino)
        self.kept.clear()

    @invariant()
    def disk_is_within_the_account_and_the_account_within_the_capacity(self):
        if not hasattr(self, "cache"):
            return
        used = self.cache.used
        assert allocated(self.cache, self.kept) <= used <= CAPACITY

    def teardown(self):
        if hasattr(self, "cache"):
            for reservation, _obj in self.open:
                reservation.close()
            self.release_kept()
            self.cache.store.close()
            for obj in OBJECTS:
                self.cache.store.evict(obj.ino)
            self.unlink_queued()
            assert self.cache.used == 0
            assert self.cache.files() == []
            self.cache.store.close()
        self.directory.cleanup()


def allocated(cache, kept):
    """Bytes that mirror files, trash and files only the kernel holds take on disk."""
    inodes = {}
    for root in cache.configs[0].paths:
        for path in root.glob("*/v1/**/*"):
            if path.is_file():
                stat = path.stat()
                inodes[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
    for fds in kept.values():
        for fd in fds:
            stat = os.fstat(fd)
            inodes[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
    return sum(inodes.values())


def test_reservation_of_a_removed_copy_makes_no_file_under_the_name_of_the_next(tmp_path):
    cache, obj = Cache(tmp_path), file(10, 3 * MIB)
    late = cache.store.reserve(obj, 0, 2)
    cache.store.evict(obj.ino)
    second = cache.store.reserve(obj, 2, 3)
    assert not late.write(0, body(obj, 0))
    late.close()
    assert cache.files() == []
    assert second.write(2, body(obj, 2))
    second.close()
    assert cache.on_disk() <= cache.used
    assert cache.get_now(obj, 2 * MIB)
    cache.store.close()


@pytest.mark.parametrize("resident", [0, 1])
def test_what_was_written_is_counted_when_its_reservation_ends(tmp_path, resident):
    cache, obj = Cache(tmp_path), file(10, 4 * MIB)
    if resident:
        cache.put(obj, 3)
    writer, idle = cache.store.reserve(obj, 0, 2), cache.store.reserve(obj, 2, 3)
    assert all(writer.write(block, body(obj, block)) for block in (0, 1))
    writer.close()
    assert cache.on_disk() <= cache.used
    idle.close()
    assert cache.on_disk() <= cache.used
    assert cache.get_now(obj, 0, 2 * MIB)
    cache.store.close()


@pytest.mark.allow_warnings
def test_file_nothing_came_of_goes_with_the_last_of_its_reservations(tmp_path):
    cache = Cache(tmp_path, system=(system := FaultySystem()))
    obj = file(10, 3 * MIB)
    failed, idle = cache.store.reserve(obj, 0, 2), cache.store.reserve(obj, 2, 3)
    system.broken = {"pwrite"}
    assert not failed.write(0, body(obj, 0))
    failed.close()
    idle.close()
    assert cache.files() == []
    assert cache.used == 0
    system.broken = set()
    cache.store.close()


Accounts.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestF02Accounts = Accounts.TestCase
