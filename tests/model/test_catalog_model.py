"""The catalog against dictionaries: any order of answers, listings, crashes, reboots and sweeps."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from tiercache.catalog import Catalog, Listing, NewEntry
from tiercache.config import CatalogConfig
from tiercache.types import KIB, ROOT_INO, Inode, Kind

# Small enough to grow several times in one run.
CONFIG = CatalogConfig(map_size=96 * KIB, free_min=0)
NOW = 1_800_000_000.0

NAMES = st.sampled_from([b"a", b"b", b"c", b"\xff\xfe", b"n" * 255])
FILES = st.builds(
    NewEntry,
    name=NAMES,
    kind=st.just(Kind.FILE),
    size=st.integers(0, 2**63 - 1),
    mtime_ns=st.integers(0, 2**62),
    etag=st.sampled_from(["e1", "e2", "e3"]),
    archived=st.booleans(),
)
DIRECTORIES = st.builds(
    NewEntry,
    name=NAMES,
    kind=st.just(Kind.DIRECTORY),
    size=st.just(0),
    mtime_ns=st.just(0),
    etag=st.just(""),
    archived=st.just(False),
)
ENTRIES = st.one_of(FILES, DIRECTORIES)


@dataclass
class ModelName:
    version: tuple[bytes, str]
    kind: Kind
    stamp: int


@dataclass
class ModelListing:
    listing: Listing
    parent: bytes
    stamp: int


@dataclass
class Model:
    """What is known, by key. `versions` holds attributes of all versions ever seen."""

    names: dict[bytes, dict[bytes, ModelName]] = field(default_factory=lambda: {b"": {}})
    versions: dict[tuple[bytes, str], NewEntry] = field(default_factory=dict)
    inos: dict[tuple[bytes, str], int] = field(default_factory=lambda: {(b"", ""): ROOT_INO})
    listed: dict[bytes, float] = field(default_factory=dict)


def key_of(parent, entry):
    return parent + entry.name + b"/" * (entry.kind is Kind.DIRECTORY)


class CatalogMachine(RuleBasedStateMachine):
    """Inode numbers are learned from the catalog and must then never change nor repeat."""

    listings = Bundle("listings")

    def __init__(self):
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="tiercache-model-"))
        self.boot = 0
        self.stamp = 0
        self.session = 0
        self.ever: set[int] = {ROOT_INO}
        self.model = Model()
        self.catalog = self.opened()

    @initialize(entries=st.lists(DIRECTORIES, max_size=2))
    def some_directories(self, entries):
        for entry in entries:
            self.put(entry, 0)

    def opened(self):
        self.session += 1
        return Catalog.open(
            self.path / "catalog", CONFIG, identity="x", boot_id=str(self.boot), now=lambda: NOW
        )

    def teardown(self):
        self.catalog.close(clean=True)
        shutil.rmtree(self.path)

    # -- the model's side ----------------------------------------------------------------------

    def directory(self, choice):
        """Some directory that is known, reachable or not: a kernel may hold any."""
        known = sorted(key for key, etag in self.model.inos if not etag and key in self.model.names)
        return known[choice % len(known)]

    def learn(self, parent, entry, stamp, old):
        """Point the name at *entry* in the model; returns whether it meant something else."""
        version = (key_of(parent, entry), entry.etag)
        stamp = max(stamp, old.stamp) if old else stamp
        self.model.names[parent][entry.name] = ModelName(version, entry.kind, stamp)
        self.model.versions[version] = entry
        if entry.kind is Kind.DIRECTORY:
            self.model.names.setdefault(version[0], {})
        if old is None or old.version == version:
            return False
        self.forget_listing_of(old)
        return True

    def forget_listing_of(self, name):
        if name.kind is Kind.DIRECTORY:
            self.model.listed.pop(name.version[0], None)

    def ino(self, key):
        return self.model.inos[key, ""]

    def check_number(self, parent, name):
        """The number of what *name* means now: known for this version, or never seen before."""
        expected = self.model.names[parent][name]
        inode = self.catalog.child(self.ino(parent), name).inode
        known = self.model.inos.get(expected.version)
        if known is None:
            assert inode.ino not in self.ever
            self.ever.add(inode.ino)
            self.model.inos[expected.version] = inode.ino
        else:
            assert inode.ino == known

    # -- rules ---------------------------------------------------------------------------------

    @rule(entry=ENTRIES, choice=st.integers(0, 50))
    def put(self, entry, choice):
        parent = self.directory(choice)
        old = self.model.names[parent].get(entry.name)
        changed = self.learn(parent, entry, self.stamp, old)
        assert self.catalog.put(self.ino(parent), entry, NOW) == [entry.name] * changed
        self.check_number(parent, entry.name)

    @rule(name=NAMES, choice=st.integers(0, 50))
    def remove(self, name, choice):
        parent = self.directory(choice)
        old = self.model.names[parent].pop(name, None)
        if old is not None:
            self.forget_listing_of(old)
        assert self.catalog.remove(self.ino(parent), name) is (old is not None)

    @rule(choice=st.integers(0, 50))
    def forget_listing(self, choice):
        parent = self.directory(choice)
        self.model.listed.pop(parent, None)
        self.catalog.forget_listing(self.ino(parent))

    @rule(target=listings, choice=st.integers(0, 50))
    def begin_listing(self, choice):
        parent = self.directory(choice)
        self.stamp += 1
        listing = self.catalog.begin_listing(self.ino(parent))
        return self.session, ModelListing(listing, parent, self.stamp)

    @rule(begun=listings, page=st.lists(ENTRIES, max_size=6))
    def add(self, begun, page):
        session, listing = begun
        if session != self.session:
            return
        names, changed = self.model.names[listing.parent], []
        for entry in page:
            old = names.get(entry.name)
            hidden = old and old.kind is Kind.DIRECTORY and old.stamp >= listing.stamp
            if entry.kind is Kind.FILE and hidden:
                continue
            if self.learn(listing.parent, entry, listing.stamp, old):
                changed.append(entry.name)
        assert listing.listing.add(page) == changed
        # A version that was re-pointed within the page has a number that nobody was told.
        for name in {entry.name for entry in page}:
            if name in names:
                self.check_number(listing.parent, name)

    @rule(begun=consumes(listings), at=st.floats(0, 1e10))
    def finish(self, begun, at):
        session, listing = begun
        if session != self.session:
            return
        names = self.model.names[listing.parent]
        stale = sorted(name for name, known in names.items() if known.stamp < listing.stamp)
        for name in stale:
            self.forget_listing_of(names.pop(name))
        self.model.listed[listing.parent] = at
        assert listing.listing.finish(at) == stale

    @rule()
    def kill_and_restart(self):
        self.catalog.close(clean=False)
        self.catalog = self.opened()
        assert self.catalog.rebuilt is None

    @rule()
    def end_and_reboot(self):
        self.catalog.close(clean=True)
        self.boot += 1
        self.catalog = self.opened()
        assert self.catalog.rebuilt is None

    @rule()
    def crash_and_reboot(self):
        self.catalog.close(clean=False)
        self.boot += 1
        self.catalog = self.opened()
        assert self.catalog.rebuilt is not None
        self.model = Model()

    @precondition(lambda self: len(self.model.inos) > 1)
    @rule()
    def sweep(self):
        self.session += 1  # listings of directories that go are of no use any more
        for part in self.catalog.sweep(lambda _ino: False):
            assert not set(part) & self.reachable()
        reachable = self.reachable()
        self.model.inos = {v: i for v, i in self.model.inos.items() if i in reachable}
        keys = {key for key, etag in self.model.inos if not etag}
        self.model.names = {k: n for k, n in self.model.names.items() if k in keys}
        self.model.listed = {k: t for k, t in self.model.listed.items() if k in keys}
        assert self.catalog.stats()["inodes"] == len(reachable)

    def reachable(self):
        found, todo = {ROOT_INO}, [b""]
        while todo:
            for known in self.model.names[todo.pop()].values():
                found.add(self.model.inos[known.version])
                if known.kind is Kind.DIRECTORY:
                    todo.append(known.version[0])
        return found

    # -- what always holds -----------------------------------------------------------------------

    @invariant()
    def same_names_in_order(self):
        for key, names in self.model.names.items():
            children = list(self.catalog.children(self.ino(key)))
            assert [name for name, _ in children] == sorted(names)
            for name, inode in children:
                assert inode == self.catalog.child(self.ino(key), name).inode
                self.same_inode(names[name].version, inode)
            assert self.catalog.listed_at(self.ino(key)) == self.model.listed.get(key)

    @invariant()
    def old_versions_stay(self):
        for version, ino in self.model.inos.items():
            inode = self.catalog.inode(ino)
            assert (inode.key, inode.etag) == version

    def same_inode(self, version, inode: Inode):
        entry = self.model.versions[version]
        assert inode.ino == self.model.inos[version]
        assert (inode.key, inode.etag, inode.kind) == (*version, entry.kind)
        if entry.kind is Kind.FILE:
            assert (inode.size, inode.mtime_ns, inode.archived) == entry[2:4] + entry[5:]


CatalogMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.allow_warnings
class TestCatalogModel(CatalogMachine.TestCase):
    """Runs the machine."""
