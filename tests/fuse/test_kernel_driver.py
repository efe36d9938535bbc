"""The raw driver under a real kernel: `served_directory.py` serves, the tests read."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import mmap
import os
import random
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tiercache.fuse.session import Wants, negotiate
from tiercache.fuse.syscalls import MS_NODEV, MS_NOSUID, MS_RDONLY, mount, privileged, umount
from tiercache.testing.data import check, pattern
from tiercache.types import BLOCK_SIZE, MIB

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(
        not (os.path.exists("/dev/fuse") and privileged()), reason="needs /dev/fuse and root"
    ),
]

SERVER = Path(__file__).with_name("served_directory.py")
SIZES = (0, 1, 4095, 4097, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 7 * BLOCK_SIZE // 2)
KINDS = ("local", "plain", "async-plain")
MS_REMOUNT = 32
MNT_DETACH = 2
PATIENCE_S = 20.0


class Served:
    """A mount whose device this process keeps, and the worker that serves it."""

    def __init__(self, root: Path, mountpoint: Path, *, passthrough: bool, **settings: Any) -> None:
        self.root = root
        self.mnt = mountpoint
        self._settings = settings
        self._dev = os.open("/dev/fuse", os.O_RDWR)
        self._opens = os.memfd_create("opens")
        options = f"fd={self._dev},rootmode=40000,user_id=0,group_id=0"
        flags = MS_RDONLY | MS_NOSUID | MS_NODEV
        mount(
            "test", self.mnt, "fuse.tiercache", flags, options + ",default_permissions,allow_other"
        )
        wants = Wants(passthrough=passthrough, max_background=32, readahead=4 * MIB)
        reply, self.session = negotiate(os.read(self._dev, 1 << 16), wants)
        os.write(self._dev, reply)
        self._start(restarted=False)

    def _start(self, *, restarted: bool) -> None:
        settings = {"session": self.session.as_json(), "restarted": restarted, **self._settings}
        command = [sys.executable, SERVER, self.root, self._dev, self._opens, json.dumps(settings)]
        self.worker = subprocess.Popen(
            [str(word) for word in command],
            pass_fds=(self._dev, self._opens),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.worker.stdout is not None
        assert self.worker.stdout.readline() == "serving\n"

    def restart(self) -> None:
        """kill -9 and a new worker."""
        self.worker.kill()
        self._reap()
        self._start(restarted=True)

    def status(self, command: str = "") -> Any:
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(command + "\n")
        self.worker.stdin.flush()
        return json.loads(self.worker.stdout.readline())

    def wait_for(self, condition: Callable[[Any], bool]) -> Any:
        """The first status that fulfils *condition*: closing and killing are not synchronous."""
        ends = time.monotonic() + PATIENCE_S
        while not condition(status := self.status()):
            assert time.monotonic() < ends, status
        return status

    def unmount(self) -> int:
        umount(self.mnt)
        code = self.worker.wait(PATIENCE_S)
        self._reap()
        return code

    def _reap(self) -> None:
        self.worker.wait(PATIENCE_S)
        for stream in (self.worker.stdin, self.worker.stdout):
            assert stream is not None
            stream.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            umount(self.mnt, MNT_DETACH)
        if self.worker.returncode is None:
            self.worker.kill()
            self._reap()
        os.close(self._dev)
        os.close(self._opens)


Serve = Callable[..., Served]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def serve(root: Path, tmp_path: Path) -> Iterator[Serve]:
    """`serve(**settings)` mounts what is in `root` by then."""
    mounts: list[Served] = []
    point = tmp_path / "mnt"
    point.mkdir()

    def start(*, passthrough: bool = True, **settings: Any) -> Served:
        mounts.append(Served(root, point, passthrough=passthrough, **settings))
        return mounts[-1]

    yield start
    for served in mounts:
        served.close()


def write_files(root: Path) -> None:
    """Files of every size around block boundaries, of every kind."""
    for kind in KINDS:
        for size in SIZES:
            (root / f"{kind}-{size}").write_bytes(pattern(0, size))


@pytest.fixture
def served(root: Path, serve: Serve) -> Served:
    """A mount of its own for tests that count or kill."""
    write_files(root)
    return serve()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One mount for all tests that only read."""
    root, point = (tmp_path_factory.mktemp(name) for name in ("root", "mnt"))
    write_files(root)
    served = Served(root, point, passthrough=True)
    yield served
    served.close()


each_kind = pytest.mark.parametrize("kind", KINDS)
each_file = pytest.mark.parametrize("name", [f"{kind}-{size}" for kind in KINDS for size in SIZES])


@pytest.fixture
def opened(shared: Served, name: str) -> Iterator[int]:
    fd = os.open(shared.mnt / name, os.O_RDONLY)
    yield fd
    os.close(fd)


@each_file
def test_reads_equal_the_file(shared: Served, name: str) -> None:
    size = int(name.rpartition("-")[2])
    assert (shared.mnt / name).stat().st_size == size
    data = (shared.mnt / name).read_bytes()
    assert len(data) == size
    check(data)


@each_kind
def test_random_preads(shared: Served, kind: str) -> None:
    size = SIZES[-1]
    chance = random.Random(7)
    with open(shared.mnt / f"{kind}-{size}", "rb") as file:
        for _ in range(200):
            start, length = chance.randrange(size), chance.randrange(3 * BLOCK_SIZE)
            data = os.pread(file.fileno(), length, start)
            assert len(data) == min(length, size - start)
            check(data, start)


@each_kind
@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, mmap.MAP_PRIVATE])
def test_d01_mmap(shared: Served, kind: str, flags: int) -> None:
    size = SIZES[-1]
    with open(shared.mnt / f"{kind}-{size}", "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
    with mapping:  # the file is closed by now
        for start in (size - 3, 0, BLOCK_SIZE - 3, 2 * BLOCK_SIZE):
            check(mapping[start : start + 8], start)
        assert hashlib.sha256(mapping).digest() == hashlib.sha256(pattern(0, size)).digest()


@each_kind
def test_o_direct(shared: Served, kind: str) -> None:
    size = SIZES[-1]
    fd = os.open(shared.mnt / f"{kind}-{size}", os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, MIB) as buffer:
            for start in (0, 4096, BLOCK_SIZE - 4096, 3 * BLOCK_SIZE):
                got = os.preadv(fd, [buffer], start)
                assert got == min(MIB, size - start)
                check(buffer[:got], start)
    finally:
        os.close(fd)


@each_file
def test_d08_sendfile(shared: Served, opened: int) -> None:
    size = os.fstat(opened).st_size
    left, right = socket.socketpair()
    received = bytearray()

    def receive() -> None:
        while chunk := right.recv(1 << 16):
            received.extend(chunk)

    thread = threading.Thread(target=receive)
    thread.start()
    with left, right:
        sent = 0
        while step := os.sendfile(left.fileno(), opened, sent, 1 << 20):
            sent += step
        left.shutdown(socket.SHUT_WR)
        thread.join()
    assert len(received) == size
    check(received)


@each_file
def test_d08_splice(shared: Served, opened: int) -> None:
    out, into = os.pipe()
    received = bytearray()
    try:
        while step := os.splice(opened, into, 1 << 16):
            while step:
                chunk = os.read(out, step)
                received += chunk
                step -= len(chunk)
    finally:
        os.close(out)
        os.close(into)
    assert len(received) == os.fstat(opened).st_size
    check(received)


@each_file
def test_d08_copy_file_range(shared: Served, opened: int, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    with open(target, "wb") as file:
        try:
            while os.copy_file_range(opened, file.fileno(), 1 << 20):
                pass
        except OSError as error:  # other filesystem: callers fall back to read and write
            if error.errno != errno.EXDEV:
                raise
            os.sendfile(file.fileno(), opened, 0, 1 << 30)
    data = target.read_bytes()
    assert len(data) == os.fstat(opened).st_size
    check(data)


def test_passthrough_is_used(served: Served) -> None:
    name = f"local-{SIZES[-1]}"
    check((served.mnt / name).read_bytes())
    status = served.status()
    assert status["passthrough"]
    assert status["passthrough_reason"] == ""
    assert status["passthrough_opens"] == 1
    assert status["cached_opens"] == 0
    assert "read" not in status["requests"]


def test_second_open_uses_the_registration(served: Served) -> None:
    for _ in range(3):
        check((served.mnt / f"local-{BLOCK_SIZE}").read_bytes())
    status = served.wait_for(lambda s: s["held"] == 0)
    assert status["passthrough_opens"] == 3
    assert status["registered"] == status["idle_registrations"] == 1


def test_no_passthrough_when_not_asked_for(root: Path, serve: Serve) -> None:
    (root / "local").write_bytes(pattern(0, 5000))
    served = serve(passthrough=False)
    check((served.mnt / "local").read_bytes())
    status = served.status()
    assert not status["passthrough"]
    assert status["passthrough_reason"] == "not asked for"
    assert status["cached_opens"] == 1


def test_cached_opens_keep_the_page_cache(served: Served) -> None:
    name = f"plain-{BLOCK_SIZE}"
    for _ in range(3):
        check((served.mnt / name).read_bytes())
    first = served.status()["requests"]["read"]
    check((served.mnt / name).read_bytes())
    assert served.status()["requests"]["read"] == first


def test_modes_never_mix(served: Served) -> None:
    """A copy that appears while a cached handle is open waits for the last close."""
    path = served.mnt / f"plain-{BLOCK_SIZE}"
    with open(path, "rb") as first:
        served.status(f"copied {path.name}")
        with open(path, "rb") as second:
            check(second.read())
        check(first.read())
        assert served.status()["passthrough_opens"] == 0
    served.wait_for(lambda s: s["open_inodes"] == 0)
    check(path.read_bytes())
    assert served.status()["passthrough_opens"] == 1


def test_a_dropped_copy_stays_registered_until_the_last_close(served: Served) -> None:
    path = served.mnt / f"local-{BLOCK_SIZE}"
    with open(path, "rb") as first:
        served.status(f"dropped {path.name}")
        with open(path, "rb") as second:
            check(second.read())
        assert served.status()["registered"] == 1
        check(first.read())
    served.wait_for(lambda s: s["registered"] == 0)
    check(path.read_bytes())


def test_a_dropped_idle_copy_is_given_back(served: Served) -> None:
    path = served.mnt / f"local-{BLOCK_SIZE}"
    check(path.read_bytes())
    served.wait_for(lambda s: s["idle_registrations"] == 1)
    assert served.status(f"dropped {path.name}")["registered"] == 0


def test_idle_registrations_are_bounded(root: Path, serve: Serve) -> None:
    for index in range(40):
        (root / f"{index:02}").write_bytes(pattern(0, 100 + index))
    served = serve(backing_max=8)
    for _ in range(2):
        for path in sorted(served.mnt.iterdir()):
            check(path.read_bytes())
    status = served.wait_for(lambda s: s["held"] == 0)
    assert status["registered"] == status["open_inodes"] == 8


@pytest.mark.parametrize("count", [0, 1, 22, 23, 24, 100, 1000, 20000])
def test_c12_readdir_of_any_size(root: Path, serve: Serve, count: int) -> None:
    names = {f"{index:05}".ljust(1 + index % 40, "x") for index in range(count)}
    for name in names:
        (root / name).touch()
    served = serve()
    assert sorted(os.listdir(served.mnt)) == sorted(names)
    with os.scandir(served.mnt) as entries:
        assert {entry.name for entry in entries if entry.stat().st_size == 0} == names
    assert sorted(os.listdir(served.mnt)) == sorted(names)
    requests = served.wait_for(lambda s: s["dirs_open"] == 0)["requests"]
    assert requests["readdirplus"] > 0
    if count > 1000:
        assert requests["readdir"] > 0


def test_c12_long_names(root: Path, serve: Serve) -> None:
    names = {f"{length:03}".ljust(length, "n")[:length] for length in range(3, 256)}
    for name in names:
        (root / name).touch()
    served = serve()
    assert set(os.listdir(served.mnt)) == names
    assert all((served.mnt / name).exists() for name in names)


def test_b08_odd_names(root: Path, serve: Serve) -> None:
    singles = {bytes([byte]) for byte in range(1, 256)} - {b"/", b"."}
    names = singles | {b"a\nb", b" ", b"\xff\xfe", b"n" * 255}
    for name in names:
        Path(root, os.fsdecode(name)).write_bytes(name)
    served = serve()
    base = os.fsencode(served.mnt) + b"/"
    assert set(os.listdir(base)) == names
    for name in names:
        with open(base + name, "rb") as file:
            assert file.read() == name
    for missing in (b"\n\n", b"\x01\x01", b"m" * 255):
        with pytest.raises(FileNotFoundError):
            os.stat(base + missing)
    with pytest.raises(OSError, match="too long"):
        os.stat(base + b"m" * 256)


def test_absence_is_believed_for_its_ttl(root: Path, serve: Serve) -> None:
    served = serve(negative_ttl_s=3600.0)
    for _ in range(3):
        assert not (served.mnt / "nothing").exists()
    assert served.status()["requests"]["lookup"] == 1


def test_absence_without_ttl_is_asked_again(root: Path, serve: Serve) -> None:
    served = serve(negative_ttl_s=0.0)
    for _ in range(3):
        assert not (served.mnt / "nothing").exists()
    assert served.status()["requests"]["lookup"] == 3


def test_attributes(root: Path, serve: Serve) -> None:
    (root / "file").write_bytes(b"x" * 1025)
    (root / "dir").mkdir()
    os.utime(root / "file", ns=(0, 1_700_000_000_123_456_789))
    os.utime(root / "dir", ns=(0, -5_500_000_000))
    served = serve()
    file, folder = os.stat(served.mnt / "file"), os.stat(served.mnt / "dir")
    assert (file.st_mode, file.st_blocks, file.st_nlink) == (0o100444, 3, 1)
    assert file.st_mtime_ns == file.st_ctime_ns == file.st_atime_ns == 1_700_000_000_123_456_789
    assert (folder.st_mode, folder.st_nlink, folder.st_mtime_ns) == (0o40555, 1, -5_500_000_000)
    space = os.statvfs(served.mnt)
    assert space.f_blocks * space.f_frsize == 1 << 52
    assert space.f_namemax == 255


def test_writes_are_refused_even_when_remounted_writable(root: Path, serve: Serve) -> None:
    (root / "local").write_bytes(pattern(0, 5000))
    served = serve()
    mount("test", served.mnt, "fuse.tiercache", MS_REMOUNT | MS_NOSUID | MS_NODEV, "")
    attempts: list[Callable[[Path], Any]] = [
        lambda mnt: os.open(mnt / "local", os.O_RDWR),
        lambda mnt: os.open(mnt / "new", os.O_WRONLY | os.O_CREAT),
        lambda mnt: os.truncate(mnt / "local", 0),
        lambda mnt: (mnt / "local").unlink(),
        lambda mnt: (mnt / "new").mkdir(),
        lambda mnt: (mnt / "local").rename(mnt / "other"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="Read-only") as caught:
            attempt(served.mnt)
        assert caught.value.errno == errno.EROFS
    check((root / "local").read_bytes())


def test_what_is_not_supported_fails_cleanly(served: Served) -> None:
    path = served.mnt / f"plain-{BLOCK_SIZE}"
    for ask in (os.listxattr, lambda path: os.getxattr(path, "user.x")):
        with pytest.raises(OSError, match="not supported"):
            ask(path)
    with open(path, "rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_HOLE) == BLOCK_SIZE
        os.fsync(file.fileno())
        fcntl.flock(file, fcntl.LOCK_SH)
        fcntl.lockf(file, fcntl.LOCK_SH)
        assert select.select([file], [], [], 0) == ([file], [], [])
        with pytest.raises(OSError, match="Inappropriate ioctl"):
            fcntl.ioctl(file, 0x1234)
    assert os.access(path, os.R_OK)
    assert served.status()["bugs"] == 0


def test_errors_of_the_tree_reach_the_caller(root: Path, serve: Serve) -> None:
    (root / "changed").touch()
    served = serve()
    with pytest.raises(OSError, match="Stale") as caught:
        os.open(served.mnt / "changed", os.O_RDONLY)
    assert caught.value.errno == errno.ESTALE


def test_a_bug_costs_one_request(
    root: Path, serve: Serve, capfd: pytest.CaptureFixture[str]
) -> None:
    (root / "bug-plain").write_bytes(b"x" * 100)
    (root / "plain").write_bytes(pattern(0, 100))
    served = serve()
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output"):
            (served.mnt / "bug-plain").read_bytes()
    check((served.mnt / "plain").read_bytes())
    assert served.status()["bugs"] >= 3
    assert capfd.readouterr().err.count("Traceback") == 1


@contextlib.contextmanager
def hanging_stat(path: Path) -> Iterator[None]:
    """Another process that waits for *path* until the block ends and it is killed."""
    process = subprocess.Popen(["stat", path], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def test_a_killed_caller_cancels_its_request(root: Path, serve: Serve) -> None:
    served = serve()
    with hanging_stat(served.mnt / "stuckname"):
        served.wait_for(lambda s: s["in_flight"] == 1)
    status = served.wait_for(lambda s: s["in_flight"] == 0)
    assert status["requests"]["interrupt"] >= 1


def test_names_can_be_invalidated(root: Path, serve: Serve) -> None:
    (root / "file").touch()
    served = serve()
    (served.mnt / "file").stat()
    served.status("invalidate unknown")
    served.status("invalidate file")
    # The thread tells the kernel in its own time; then the next stat looks the name up again.
    served.wait_for(lambda s: bool((served.mnt / "file").stat()) and s["requests"]["lookup"] == 2)


def test_a14_invalidation_does_not_wait_for_the_kernel(root: Path, serve: Serve) -> None:
    """A lookup that hangs keeps the directory locked; everybody else is served."""
    (root / "file").touch()
    (root / "dir").mkdir()
    (root / "dir" / "plain").write_bytes(pattern(0, 9000))
    served = serve()
    for path in (served.mnt / "file", served.mnt / "dir" / "plain"):
        path.stat()
    with hanging_stat(served.mnt / "stuckname"):
        served.wait_for(lambda s: s["in_flight"] == 1)
        for _ in range(50):
            served.status("invalidate file")
        check((served.mnt / "dir" / "plain").read_bytes())
    lookups = served.wait_for(lambda s: s["in_flight"] == 0)["requests"]["lookup"]
    served.wait_for(
        lambda s: bool((served.mnt / "file").stat()) and s["requests"]["lookup"] > lookups
    )


def test_unmounting_ends_the_worker(served: Served) -> None:
    check((served.mnt / f"local-{BLOCK_SIZE}").read_bytes())
    assert served.unmount() == 0


def map_and_close(path: Path, size: int) -> int:
    """Address of a mapping that is all that is left of the open file (`mmap.mmap` keeps an fd)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    fd = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(
            None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, fd, ctypes.c_long(0)
        )
    finally:
        os.close(fd)
    return int(address)


def test_a_mapping_outlives_its_handle(served: Served) -> None:
    """Why a registered copy is never punched: mappings keep it and nobody tells us."""
    name = f"local-{BLOCK_SIZE}"
    address = map_and_close(served.mnt / name, BLOCK_SIZE)
    try:
        served.wait_for(lambda s: s["held"] == 0)
        assert served.status(f"dropped {name}")["registered"] == 0
        (served.root / name).unlink()
        check(ctypes.string_at(address, BLOCK_SIZE))
    finally:
        ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(BLOCK_SIZE))


def test_i01_nothing_is_held_after_use(served: Served) -> None:
    for _ in range(20):
        for path in served.mnt.iterdir():
            path.read_bytes()
    status = served.wait_for(lambda s: s["held"] == 0 and s["dirs_open"] == 0)
    assert status["open_inodes"] == status["idle_registrations"] == len(SIZES)
    assert status["in_flight"] == 0


class Readers:
    """Threads that read until stopped and remember what went wrong."""

    def __init__(self, mnt: Path, paths: list[str], count: int) -> None:
        self._stopped = threading.Event()
        self.wrong: list[str] = []
        self.rounds = 0
        self._threads = [
            threading.Thread(target=self._read, args=(mnt, paths, index)) for index in range(count)
        ]

    def _read(self, mnt: Path, paths: list[str], seed: int) -> None:
        chance = random.Random(seed)
        while not self._stopped.is_set():
            path = mnt / chance.choice(paths)
            try:
                with open(path, "rb", buffering=0) as file:
                    if not path.name.startswith("local"):
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    data = b"".join(iter(lambda: file.read(65536), b""))
                if len(data) != int(path.name.rpartition("-")[2]):
                    self.wrong.append(f"{path.name}: {len(data)} bytes")
                check(data)
                os.listdir(mnt)
            except (OSError, AssertionError) as error:
                self.wrong.append(f"{path.name}: {error}")
            self.rounds += 1

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def test_kill_9_of_the_worker_fails_no_reader(served: Served) -> None:
    names = [f"{kind}-{size}" for kind in KINDS for size in SIZES]
    with Readers(served.mnt, names, 3) as readers:
        for _ in range(10):
            before = readers.rounds
            served.wait_for(lambda _, before=before: readers.rounds > before + 3)
            served.restart()
    assert readers.wrong == []
    assert readers.rounds > 30


def test_open_handles_outlive_the_worker(served: Served) -> None:
    paths = [served.mnt / f"{kind}-{SIZES[-1]}" for kind in KINDS]
    files = [path.open("rb", buffering=0) for path in paths]
    heads = [file.read(100) for file in files]
    served.restart()
    for path, file, head in zip(paths, files, heads, strict=True):
        check(path.read_bytes())  # a second handle in the mode of the first
        check(head + file.read(1 << 30))
        file.close()
    status = served.wait_for(lambda s: s["open_inodes"] == 1)
    assert status["idle_registrations"] == status["registered"] == 1


def test_a_listing_survives_the_worker(root: Path, serve: Serve) -> None:
    names = {f"{index:04}-with-some-more-characters" for index in range(3000)}
    for name in names:
        (root / name).touch()
    served = serve()
    with os.scandir(served.mnt) as entries:
        seen = [next(entries).name for _ in range(10)]
        served.restart()
        seen += [entry.name for entry in entries]
    assert sorted(seen) == sorted(names)
