"""How opens are counted and answered, against the kernel's rules and a crash at every store."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tiercache.errors import TooManyOpenError
from tiercache.fuse.opens import Opens, OpenTable


class Tree:
    """The part of a tree that opens talk to."""

    def __init__(self) -> None:
        self.local: set[int] = set()
        self.kept: list[int] = []
        self.dropped: Callable[[int], None] = lambda ino: None

    def backing_fd(self, ino: int) -> int | None:
        return os.open(os.devnull, os.O_RDONLY) if ino in self.local else None

    def backing_kept(self, ino: int) -> None:
        assert ino not in self.kept
        self.kept.append(ino)

    def backing_gone(self, ino: int) -> None:
        self.kept.remove(ino)

    def on_dropped(self, dropped: Callable[[int], None]) -> None:
        self.dropped = dropped


class Kernel:
    """Registrations and the rules about open modes, as the kernel has them."""

    def __init__(self) -> None:
        self.reason = ""
        self.refuse = False
        self.registered: set[int] = set()
        self.opens: dict[int, list[int]] = {}
        self._next = 0

    def register(self, fd: int) -> int:
        os.fstat(fd)
        if self.refuse:
            return 0
        self._next += 1
        self.registered.add(self._next)
        return self._next

    def give_back(self, backing: int) -> None:
        self.registered.remove(backing)

    def open(self, ino: int, backing: int) -> None:
        assert not backing or backing in self.registered
        handles = self.opens.setdefault(ino, [])
        assert set(handles) <= {backing}, "EIO: modes or backing ids differ"
        handles.append(backing)

    def release(self, ino: int) -> None:
        self.opens[ino].pop()


@pytest.fixture
def memfd() -> Iterator[int]:
    fd = os.memfd_create("opens")
    yield fd
    os.close(fd)


def make(memfd: int, tree: Tree, kernel: Any, *, idle_max: int = 2, capacity: int = 8) -> Opens:
    return Opens(tree, OpenTable(memfd, capacity), kernel, idle_max=idle_max)  # type: ignore[arg-type]


def test_a_local_copy_is_passed_through_with_one_id(memfd: int) -> None:
    tree, kernel = Tree(), Kernel()
    tree.local = {5}
    opens = make(memfd, tree, kernel)
    assert opens.begin(5) == opens.begin(5) == 1
    assert tree.kept == [5]
    opens.end(5)
    opens.end(5)
    assert opens.begin(5) == 1
    assert (opens.passthrough_opens, opens.cached_opens) == (3, 0)


def test_a_file_without_copy_stays_cached_until_closed(memfd: int) -> None:
    tree, kernel = Tree(), Kernel()
    opens = make(memfd, tree, kernel)
    assert opens.begin(5) == 0
    tree.local = {5}
    assert opens.begin(5) == 0
    opens.end(5)
    opens.end(5)
    assert opens.begin(5) == 1


def test_a_refusal_falls_back_to_cached(memfd: int) -> None:
    tree, kernel = Tree(), Kernel()
    tree.local, kernel.refuse = {5}, True
    opens = make(memfd, tree, kernel)
    assert opens.begin(5) == 0
    assert tree.kept == []


def test_without_hope_the_tree_is_not_asked(memfd: int) -> None:
    class Blind(Tree):
        def backing_fd(self, ino: int) -> int | None:
            raise AssertionError

    kernel = Kernel()
    kernel.reason = "no capability"
    assert make(memfd, Blind(), kernel).begin(5) == 0


def test_idle_registrations_leave_in_order_of_their_last_close(memfd: int) -> None:
    tree, kernel = Tree(), Kernel()
    tree.local = {1, 2, 3, 4}
    opens = make(memfd, tree, kernel, idle_max=2)
    for ino in (1, 2, 1, 3):
        opens.begin(ino)
        opens.end(ino)
    assert sorted(tree.kept) == [1, 3]
    assert opens.registered_idle == 2
    assert len(kernel.registered) == 2


def test_a_dropped_copy_is_given_back_at_the_last_close(memfd: int) -> None:
    tree, kernel = Tree(), Kernel()
    tree.local = {5}
    opens = make(memfd, tree, kernel)
    opens.begin(5)
    tree.dropped(5)
    assert opens.begin(5) == 1
    opens.end(5)
    assert tree.kept == [5]
    opens.end(5)
    assert tree.kept == []
    assert kernel.registered == set()
    assert opens.tracked == 0


def test_a_dropped_copy_is_remembered_across_a_restart(memfd: int) -> None:
    tree, kernel = Tree(), Kernel()
    tree.local = {5}
    opens = make(memfd, tree, kernel)
    opens.begin(5)
    tree.dropped(5)
    again = make(memfd, tree2 := Tree(), kernel)
    assert tree2.kept == [5]
    again.end(5)
    assert kernel.registered == set()


def test_dropping_what_is_not_registered_changes_nothing(memfd: int) -> None:
    tree, kernel = Tree(), Kernel()
    opens = make(memfd, tree, kernel)
    opens.begin(5)
    tree.dropped(5)
    tree.dropped(6)
    assert opens.begin(5) == 0


def test_a_full_table_makes_room_and_then_refuses(memfd: int) -> None:
    tree, kernel = Tree(), Kernel()
    tree.local = {1}
    opens = make(memfd, tree, kernel, capacity=4)
    opens.begin(1)
    opens.end(1)
    for ino in (2, 3, 4, 5):
        opens.begin(ino)
    assert tree.kept == []  # the idle one made room
    tree.local = {6}
    with pytest.raises(TooManyOpenError) as caught:
        opens.begin(6)
    assert caught.value.errno == errno.ENFILE
    assert tree.kept == []
    assert kernel.registered == set()
    opens.end(3)
    assert opens.begin(6) > 0


def test_closing_what_was_never_opened_is_ignored(memfd: int) -> None:
    tree, kernel = Tree(), Kernel()
    tree.local = {5}
    opens = make(memfd, tree, kernel)
    opens.end(5)
    opens.begin(5)
    opens.end(5)
    opens.end(5)
    assert opens.registered_idle == 1


def test_slots_are_used_again(memfd: int) -> None:
    opens = make(memfd, Tree(), Kernel(), capacity=2)
    for ino in range(1, 100):
        opens.begin(ino)
        opens.end(ino)
    assert opens.tracked == 0


class Killed(BaseException):
    """kill -9."""


class FragileWords:
    """Memory whose owner dies before its n-th store."""

    def __init__(self, words: Any, fuse: list[int]) -> None:
        self._words, self._fuse = words, fuse

    def __getitem__(self, index: int) -> Any:
        return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._fuse[0] -= 1
        if self._fuse[0] < 0:
            raise Killed
        self._words[index] = value


class FragileKernel(Kernel):
    """The worker may also die around each ioctl."""

    def __init__(self) -> None:
        super().__init__()
        self.fuse = [1 << 30]

    def _burn(self) -> None:
        self.fuse[0] -= 1
        if self.fuse[0] < 0:
            raise Killed

    def register(self, fd: int) -> int:
        self._burn()
        backing = super().register(fd)
        self._burn()
        return backing

    def give_back(self, backing: int) -> None:
        self._burn()
        super().give_back(backing)
        self._burn()


class Crashes(RuleBasedStateMachine):
    """Opens and closes with crashes between any two stores: modes never mix, ids stay valid.

    A request that the dead worker had not answered is delivered again.
    """

    @initialize()
    def start(self) -> None:
        self.memfd = os.memfd_create("opens")
        self.kernel = FragileKernel()
        self.local: set[int] = set()
        self.boot()

    def boot(self) -> None:
        self.kernel.fuse[0] = 1 << 30
        self.tree = Tree()
        self.tree.local = self.local
        self.opens = make(self.memfd, self.tree, self.kernel, capacity=16)
        table = self.opens._table
        words = FragileWords(table.words, self.kernel.fuse)
        table.words = self.opens._words = words  # type: ignore[assignment]
        table._inos = FragileWords(table._inos, self.kernel.fuse)  # type: ignore[assignment]

    def surviving(self, action: Callable[[], None], stores: int) -> None:
        self.kernel.fuse[0] = stores
        try:
            action()
        except Killed:
            self.boot()
            action()
        self.kernel.fuse[0] = 1 << 30

    inos = st.integers(1, 5)
    stores = st.one_of(st.just(1 << 30), st.integers(0, 8))

    @rule(ino=inos, stores=stores)
    def open(self, ino: int, stores: int) -> None:
        self.surviving(lambda: self.kernel.open(ino, self.opens.begin(ino)), stores)

    @precondition(lambda self: any(self.kernel.opens.values()))
    @rule(data=st.data(), stores=stores)
    def release(self, data: st.DataObject, stores: int) -> None:
        ino = data.draw(st.sampled_from([i for i, held in self.kernel.opens.items() if held]))
        self.kernel.release(ino)  # the kernel forgets the handle first and does not wait for us
        self.kernel.fuse[0] = stores
        try:
            self.opens.end(ino)  # the reply is out: not delivered again
        except Killed:
            self.boot()
        self.kernel.fuse[0] = 1 << 30

    @rule(ino=inos)
    def copied(self, ino: int) -> None:
        self.local.add(ino)

    @rule(ino=inos, stores=stores)
    def dropped(self, ino: int, stores: int) -> None:
        self.local.discard(ino)
        self.surviving(lambda: self.tree.dropped(ino), stores)

    @rule()
    def killed(self) -> None:
        self.boot()

    @invariant()
    def handles_are_counted(self) -> None:
        for ino, handles in self.kernel.opens.items():
            if handles:
                slot = self.opens._slots[ino]
                assert self.opens._words[slot + 2] & 0x7FFFFFFF >= len(handles)
                assert ino in self.tree.kept or not handles[0]

    def teardown(self) -> None:
        os.close(self.memfd)


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
