"""The whole stack below the kernel against a dict: what a reader may see, whatever happens."""

import shutil
import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiercache.errors import NotDirectoryError, ObjectChangedError, ObjectNotFoundError
from tiercache.testing.data import check
from tiercache.testing.tree import Trees
from tiercache.types import BLOCK_SIZE, MIB
from tiercache.vfs.api import Entry

KEYS = [b"a", b"b", b"d/a", b"d/e/a", b"d"]
SIZES = [0, 1, 4096, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 7 * BLOCK_SIZE // 2, 9 * MIB]
TTL_S = 60.0
ABSENT = Entry(None, 0.0, 0.0)

keys = st.sampled_from(KEYS)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, st.sampled_from(SIZES)),
        st.tuples(st.just("delete"), keys),
        st.tuples(st.just("read"), keys, st.integers(0, 9 * MIB), st.integers(1, MIB)),
        st.tuples(st.just("cat"), keys),
        st.tuples(st.just("hold"), keys),
        st.tuples(st.just("read_held"), st.integers(0, 9 * MIB), st.integers(1, MIB)),
        st.tuples(st.just("ls")),
        st.tuples(st.just("evict"), keys),
        st.tuples(st.just("wait")),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    max_size=30,
)


class Model:
    """What the origin holds, and held within the last TTL."""

    def __init__(self, trees):
        self.trees = trees
        self.now = {}
        self.recent = {key: [None] for key in KEYS}
        self.seeds = 0
        self.held = []  # (inode, size, seed)

    def put(self, key, size):
        self.seeds += 1
        self.now[key] = (size, self.seeds)
        self.recent[key].append(self.now[key])
        self.trees.origin.put_pattern(key, size, self.seeds)

    def delete(self, key):
        if self.now.pop(key, None):
            self.recent[key].append(None)
            self.trees.origin.delete(key)

    def wait(self):
        self.trees.clock.now += TTL_S + 1
        for key in KEYS:
            self.recent[key] = [self.now.get(key)]

    def versions(self, key):
        """Every state a reader may meet within the TTL; a subtree hides the file of its name."""
        shadowed = key == b"d" and any(
            version for k in KEYS if k.startswith(b"d/") for version in self.recent[k]
        )
        return [*self.recent[key], *([None] if shadowed else [])]

    def must_be_absent(self, key):
        return not any(self.versions(key))

    def must_be(self, key):
        """The one version a reader has to see, if there is only one."""
        versions = self.versions(key)
        return versions[0] if len(versions) == 1 else None


async def run(trees, steps):
    model = Model(trees)
    steps = list(steps)
    fresh = True
    while steps:
        async with trees.open(fresh=fresh, capacity=14 * MIB, policy="lru") as tree:
            while steps:
                name, *arguments = steps.pop(0)
                if name == "restart":
                    fresh = arguments[0]
                    if fresh:  # a new mount: no handle of the old one is left
                        model.held.clear()
                    break
                if name in ("put", "delete", "wait"):
                    getattr(model, name)(*arguments)
                else:
                    await globals()[name](tree, model, *arguments)


async def opened(tree, model, key):
    """(inode, size, seed) of what opens under *key*, which must be a version it may be."""
    try:
        entry = await tree.entry(key)
    except NotDirectoryError:  # a file until a moment ago
        entry = ABSENT
    if entry.inode is None or entry.inode.key != key:
        assert model.must_be(key) is None, f"{key} should be there"
        return None
    assert not model.must_be_absent(key)
    ino = entry.inode.ino
    try:
        tree.fs.open(ino)
        tree.fs.opened(ino)
    except ObjectChangedError:
        return None
    seeds = [v for v in model.versions(key) if v and v[0] == entry.inode.size]
    assert seeds, f"{key} has a size it never had"
    return ino, entry.inode.size, [seed for _, seed in seeds]


async def read(tree, model, key, offset, size):
    found = await opened(tree, model, key)
    if found:
        await read_one(tree, model, key, found, offset, size, just_opened=True)


async def read_one(tree, model, key, found, offset, size, *, just_opened=False):
    ino, length, seeds = found
    try:
        data = await tree.pread(ino, offset, size)
    except (ObjectChangedError, ObjectNotFoundError):
        assert not just_opened or model.must_be(key) is None
        return
    assert len(data) == max(0, min(size, length - offset))
    assert any(_is(data, offset, seed) for seed in seeds), f"{key}: bytes of no version it had"


async def cat(tree, model, key):
    found = await opened(tree, model, key)
    if not found:
        return
    ino, length, seeds = found
    try:
        data = await tree.read(ino, MIB)
    except (ObjectChangedError, ObjectNotFoundError):
        assert model.must_be(key) is None
        return
    assert len(data) == length
    assert any(_is(data, 0, seed) for seed in seeds), f"{key} is no version it had, or a mix"


def _is(data, offset, seed):
    try:
        check(data, offset, seed)
    except AssertionError:
        return False
    return True


async def hold(tree, model, key):
    found = await opened(tree, model, key)
    if found:
        model.held.append((key, found))


async def read_held(tree, model, offset, size):
    for key, found in model.held:
        await read_one(tree, model, key, found, offset, size)


async def ls(tree, model):
    names = await tree.ls()
    assert len(names) == len(set(names))
    for key in (b"a", b"b"):
        if model.must_be(key) is not None:
            assert key in names
        if model.must_be_absent(key):
            assert key not in names


async def evict(tree, model, key):
    try:
        entry = await tree.entry(key)
    except NotDirectoryError:
        return
    if entry.inode is not None:
        tree.stack.store.evict(entry.inode.ino)


def scenario(steps):
    directory = Path(tempfile.mkdtemp())
    try:
        trio.run(run, Trees(directory / "cache"), steps)
    finally:
        shutil.rmtree(directory)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(operations)
def test_no_reader_ever_sees_what_was_not_there(steps):
    scenario(steps)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(operations)
def test_no_reader_ever_sees_what_was_not_there_at_length(steps):
    scenario(steps)
