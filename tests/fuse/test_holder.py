"""The holder as a process: real mounts, a worker that serves a directory, signals and crashes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tiercache.config import Config, MountConfig, OriginConfig, TierConfig
from tiercache.config_file import config_to_json
from tiercache.fuse import syscalls
from tiercache.fuse.mountpoint import FSTYPE, Health, health, runtime_dir, top_mount
from tiercache.testing.data import pattern

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(not syscalls.privileged(), reason="mounting needs CAP_SYS_ADMIN"),
]

WORKER = Path(__file__).parent / "directory_worker.py"

#: Nothing here takes long; whatever does has failed.
PATIENCE_S = 30.0

SIZE = 3 * (1 << 20) + 4321


class Holder:
    """One holder process under test."""

    def __init__(self, config: Config, test: dict[str, Any], **environment: str) -> None:
        self.mountpoint = config.mount.mountpoint
        sent = {**config_to_json(config), "test": test}
        config_fd = os.memfd_create("config")
        os.write(config_fd, json.dumps(sent).encode())
        os.lseek(config_fd, 0, os.SEEK_SET)
        self._ready, writer = os.pipe()
        command = [sys.executable, "-P", "-m", "tiercache.fuse.holder"]
        command += ["--config-fd", str(config_fd), "--ready-fd", str(writer)]
        self.process = subprocess.Popen(
            [*command, "--worker", str(WORKER)],
            pass_fds=(config_fd, writer),
            env={**os.environ, **environment},
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        os.close(config_fd)
        os.close(writer)

    def answer(self) -> str:
        """The line on the ready descriptor; empty when the holder ended without one."""
        assert select.select([self._ready], [], [], PATIENCE_S)[0], "no answer"
        return os.read(self._ready, 4096).decode().rstrip("\n")

    def abandon(self) -> None:
        """Be killed, as far as the holder can see."""
        os.dup2(os.open(os.devnull, os.O_RDONLY), self._ready)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.runtime / "state.json").read_text())
        return state

    @property
    def runtime(self) -> Path:
        return runtime_dir(self.mountpoint)

    def log(self) -> str:
        return (self.runtime / "log").read_text()

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first state that meets *condition*: the file is replaced, all we can do is look."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            state = self.state()
            if condition(state):
                return state
            time.sleep(0.01)
        raise AssertionError(f"waited in vain: {state}\n{self.log()}")

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        self.process.kill()
        self.process.wait()
        os.close(self._ready)
        while (found := top_mount(self.mountpoint)) and found.fstype == FSTYPE:
            with contextlib.suppress(OSError):  # the worker may be faster
                syscalls.umount(self.mountpoint, syscalls.MNT_DETACH)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What is served."""
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "file").write_bytes(pattern(0, SIZE))
    (root / "plain").write_bytes(pattern(0, SIZE, seed=1))
    (tmp_path / "mnt").mkdir()
    return root


@pytest.fixture(params=["kernel", "libfuse"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hold(tmp_path: Path, folder: Path) -> Iterator[Callable[..., Holder]]:
    """`hold(driver=..., test={...}, cache=PATH)` starts a holder on `tmp_path/mnt`."""
    holders = []

    def start(
        driver: str = "kernel",
        test: dict[str, Any] | None = None,
        cache: Path = tmp_path / "cache",
        environment: dict[str, str] | None = None,
        **mount: Any,
    ) -> Holder:
        settings = {"mountpoint": tmp_path / "mnt", "stop_timeout_s": 1.0, **mount}
        config = Config(
            origin=OriginConfig(url="s3://bucket/a prefix"),
            mount=MountConfig(driver=driver, **settings),
            tiers=(TierConfig(paths=(cache,)),),
        )
        holder = Holder(config, {"root": str(folder), **(test or {})}, **(environment or {}))
        holders.append(holder)
        return holder

    yield start
    for holder in holders:
        holder.end()


@pytest.fixture
def mnt(tmp_path: Path) -> Path:
    return tmp_path / "mnt"


@contextlib.contextmanager
def held_open(path: Path) -> Iterator[int]:
    """A descriptor of *path*; once the mount is gone the kernel may refuse its FLUSH at close."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


def gone(pid: int) -> bool:
    """Whether *pid* ended, be it unnoticed by its parent."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not gone(pid):
        assert time.monotonic() < deadline, f"{pid} does not end"
        time.sleep(0.01)


def assert_nothing_left(holder: Holder) -> None:
    assert top_mount(holder.mountpoint) is None
    assert not holder.runtime.exists()


def test_ready_means_the_mount_answers(hold, mnt, driver):
    holder = hold(driver)
    assert holder.answer() == "ready"
    assert (mnt / "file").read_bytes() == pattern(0, SIZE)
    found = top_mount(mnt)
    assert (found.fstype, found.source) == (FSTYPE, "s3://bucket/a prefix")
    state = holder.state()
    assert state["holder_pid"] == holder.process.pid
    assert state["restarts"] == 0
    assert state["driver"] == driver
    assert state["phase"] == "serving"
    assert state["mountpoint"] == str(mnt)
    assert not gone(state["worker_pid"])
    knob = f"/sys/class/bdi/0:{os.minor(found.st_dev)}/read_ahead_kb"
    assert Path(knob).read_text() == "4096\n"
    with pytest.raises(OSError, match="Read-only"):
        (mnt / "new").touch()


def test_holder_is_small_and_runs_one_thread(hold):
    holder = hold()
    assert holder.answer() == "ready"
    status = Path(f"/proc/{holder.process.pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert fields["Threads"] == "1"
    assert int(fields["VmRSS"].split()[0]) < 32 << 10


def test_worker_gets_locks_but_no_secrets_of_the_start(hold, tmp_path):
    holder = hold()
    assert holder.answer() == "ready"
    worker = Path(f"/proc/{holder.state()['worker_pid']}")
    files = {os.readlink(fd) for fd in (worker / "fd").iterdir()}
    assert str(tmp_path / "cache" / "lock") in files
    assert not any("memfd:config" in name for name in files)
    assert b"MALLOC_ARENA_MAX=2" in (worker / "environ").read_bytes().split(b"\0")


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ({"fail": "bucket b does not exist"}, "bucket b does not exist"),
        ({"exit": 7}, "the worker ended with status 7 while it was starting"),
    ],
)
def test_h06_failed_check_is_told_and_nothing_was_mounted(hold, mnt, driver, test, message):
    holder = hold(driver, test)
    assert holder.answer() == message
    assert holder.wait() == 1
    assert top_mount(mnt) is None
    assert [entry.name for entry in holder.runtime.iterdir()] == ["log"]
    assert message in holder.log()


def test_worker_that_never_reports_is_given_up(hold, mnt):
    holder = hold(test={"mute": True}, ready_timeout_s=0.5)
    assert holder.answer() == "not ready after 0.5 s"
    assert holder.wait() == 1
    assert top_mount(mnt) is None


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_h03_idle_mount_ends_on_a_signal(hold, driver, signum):
    holder = hold(driver)
    assert holder.answer() == "ready"
    worker = holder.state()["worker_pid"]
    holder.signal(signum)
    assert holder.wait() == 0
    assert gone(worker)
    assert_nothing_left(holder)


def test_h03_signal_during_the_start(hold, mnt):
    holder = hold(test={"mute": True})
    deadline = time.monotonic() + PATIENCE_S
    while not (holder.runtime / "state.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    holder.signal(signal.SIGTERM)
    assert holder.answer() == "stopped before the mount was ready"
    assert holder.wait() == 0
    assert_nothing_left(holder)


def test_h03_killed_mount_command_leaves_no_mount_behind(hold, mnt, driver):
    holder = hold(driver=driver)
    holder.abandon()
    assert holder.wait() == 0
    assert top_mount(mnt) is None
    assert not holder.runtime.exists()


def readahead_kb(mnt):
    device = top_mount(mnt).st_dev
    return int(
        Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").read_text()
    )


def test_hangup_has_the_worker_reload_and_the_holder_takes_on_its_part(hold, mnt, driver):
    holder = hold(driver, {"reload": {"readahead": 1 << 20}}, readahead=2 << 20)
    assert holder.answer() == "ready"
    before = readahead_kb(mnt)
    holder.signal(signal.SIGHUP)
    holder.until(lambda state: state["config_file"] == "/new.toml")
    assert (before, readahead_kb(mnt)) == (2048, 1024)
    assert (mnt / "file").read_bytes() == pattern(0, SIZE)
    assert holder.process.poll() is None


def test_a_hangup_while_the_worker_starts_is_not_lost(hold, driver):
    holder = hold(driver, {"reload": {}})
    while not (holder.runtime / "state.json").exists():
        time.sleep(0.001)
    holder.signal(signal.SIGHUP)
    assert holder.answer() == "ready"
    holder.until(lambda state: state["config_file"] == "/new.toml")


def test_h03_busy_mount_is_detached_and_its_readers_may_finish(hold, mnt, driver):
    holder = hold(driver, stop_timeout_s=20.0)
    assert holder.answer() == "ready"
    with open(mnt / "plain", "rb", buffering=0) as file:
        assert file.read(5) == pattern(0, 5, seed=1)
        holder.signal(signal.SIGTERM)
        holder.until(lambda state: state["phase"] == "stopping")
        while top_mount(mnt) is not None:
            time.sleep(0.01)
        got = b"".join(iter(lambda: file.read(1 << 20), b""))
    assert got == pattern(5, SIZE - 5, seed=1)
    assert holder.wait() == 0
    assert_nothing_left(holder)


def test_h03_directory_held_by_a_shell(hold, mnt, driver):
    holder = hold(driver)
    assert holder.answer() == "ready"
    with subprocess.Popen(["cat"], cwd=mnt / "sub", stdin=subprocess.PIPE) as shell:
        holder.signal(signal.SIGTERM)
        assert holder.wait() == 0
        assert_nothing_left(holder)
        shell.communicate()


def test_h03_second_signal_forces(hold, mnt, driver):
    holder = hold(driver, stop_timeout_s=600.0)
    assert holder.answer() == "ready"
    with held_open(mnt / "plain") as fd:
        holder.signal(signal.SIGTERM)
        holder.until(lambda state: state["phase"] == "stopping")
        holder.signal(signal.SIGTERM)
        assert holder.wait() == 0
        with pytest.raises(OSError, match=r"not connected|abort"):
            os.pread(fd, 10, 1 << 20)
    assert_nothing_left(holder)


def test_killed_worker_is_replaced_and_readers_see_nothing(hold, mnt):
    holder = hold()
    assert holder.answer() == "ready"
    got = bytearray()
    with open(mnt / "plain", "rb", buffering=0) as plain, open(mnt / "file", "rb") as file:
        for restarts in range(1, 4):
            os.kill(holder.state()["worker_pid"], signal.SIGKILL)
            got += plain.read(1 << 20)
            holder.until(lambda state, n=restarts: state["restarts"] == n)
            holder.until(lambda state: state["phase"] == "serving")
        got += plain.read()
        assert file.read() == pattern(0, SIZE)
    assert got == pattern(0, SIZE, seed=1)
    assert "was killed by signal 9; starting it again in 0.05 s" in holder.log()
    holder.signal(signal.SIGTERM)
    assert holder.wait() == 0
    assert_nothing_left(holder)


def test_killed_libfuse_worker_gets_a_new_mount(hold, mnt):
    holder = hold("libfuse")
    assert holder.answer() == "ready"
    with held_open(mnt / "plain") as fd:
        os.kill(holder.state()["worker_pid"], signal.SIGKILL)
        holder.until(lambda state: state["restarts"] == 1 and state["phase"] == "serving")
        assert (mnt / "plain").read_bytes() == pattern(0, SIZE, seed=1)
        with pytest.raises(OSError, match="not connected"):
            os.pread(fd, 10, 1 << 20)
    assert len([m for m in Path("/proc/mounts").read_text().split("\n") if str(mnt) in m]) == 1


def test_worker_that_keeps_crashing_is_started_ever_later(hold, mnt):
    holder = hold(test={"crashes": 3})
    assert holder.answer() == "ready"
    os.kill(holder.state()["worker_pid"], signal.SIGKILL)
    holder.until(lambda state: state["restarts"] == 4 and state["phase"] == "serving")
    assert (mnt / "file").read_bytes() == pattern(0, SIZE)
    pauses = [line.split()[-2] for line in holder.log().splitlines() if "starting it" in line]
    assert pauses == ["0.05", "0.1", "0.2", "0.4"]


def test_signal_while_there_is_no_worker(hold, mnt):
    holder = hold(test={"crashes": 1000})
    assert holder.answer() == "ready"
    os.kill(holder.state()["worker_pid"], signal.SIGKILL)
    holder.until(lambda state: state["restarts"] >= 3)
    holder.signal(signal.SIGTERM)
    assert holder.wait() == 0
    assert_nothing_left(holder)


def test_unmounted_from_outside_ends_both(hold, mnt, driver):
    holder = hold(driver)
    assert holder.answer() == "ready"
    worker = holder.state()["worker_pid"]
    syscalls.umount(mnt)
    assert holder.wait() == 0
    assert gone(worker)
    assert_nothing_left(holder)


def test_killed_holder_takes_the_mount_along(hold, mnt, driver):
    holder = hold(driver)
    assert holder.answer() == "ready"
    worker = holder.state()["worker_pid"]
    holder.process.kill()
    until_gone(worker)
    assert top_mount(mnt) is None


@pytest.mark.parametrize("path", ["/usr/bin:/bin", "/nonexistent"])
def test_h01_killed_both_then_mounted_again(hold, mnt, driver, path):
    environment = {"PATH": path}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd="/") as shell:
        for _ in range(3):
            holder = hold(driver, environment=environment)
            assert holder.answer() == "ready"
            with held_open(mnt / "plain") as fd:
                worker = holder.state()["worker_pid"]
                os.kill(holder.process.pid, signal.SIGSTOP)
                os.kill(worker, signal.SIGKILL)
                holder.process.kill()
                holder.wait()
                until_gone(worker)
                assert health(mnt) is Health.DEAD
                with pytest.raises(OSError, match=r"not connected|abort"):
                    os.pread(fd, 10, 1 << 20)
        holder = hold(driver, environment=environment)
        assert holder.answer() == "ready"
        assert (mnt / "file").read_bytes() == pattern(0, SIZE)
        shell.communicate()


def test_h01_dead_mount_below_a_held_directory(hold, mnt):
    holder = hold()
    assert holder.answer() == "ready"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=mnt / "sub") as shell:
        os.kill(holder.process.pid, signal.SIGSTOP)
        os.kill(holder.state()["worker_pid"], signal.SIGKILL)
        holder.process.kill()
        holder.wait()
        assert hold().answer() == "ready"
        assert (mnt / "file").read_bytes() == pattern(0, SIZE)
        shell.communicate()


def test_h08_mounted_twice_is_refused_by_pid(hold, mnt, driver, tmp_path):
    first = hold(driver)
    assert first.answer() == "ready"
    second = hold(driver, cache=tmp_path / "other")
    assert second.answer() == f"mount point {mnt} is in use by pid {first.process.pid}"
    assert second.wait() == 1
    assert (mnt / "file").read_bytes() == pattern(0, SIZE)
    assert first.state()["holder_pid"] == first.process.pid


def test_h08_inside_itself(hold, mnt, tmp_path):
    assert hold().answer() == "ready"
    second = hold(cache=tmp_path / "other", mountpoint=mnt / "sub")
    assert second.answer() == f"{mnt / 'sub'} is inside the tiercache mount {mnt}"
    assert second.wait() == 1


def test_h08_directory_that_is_not_empty(hold, mnt):
    (mnt / "precious").touch()
    holder = hold()
    assert "is not empty" in holder.answer()
    assert holder.wait() == 1
    assert hold(nonempty=True).answer() == "ready"
    assert not (mnt / "precious").exists()
    syscalls.umount(mnt)
    assert (mnt / "precious").exists()


def test_h13_missing_mount_point(hold, tmp_path):
    holder = hold(mountpoint=tmp_path / "missing")
    assert holder.answer() == (
        f"mount point {tmp_path / 'missing'} does not exist: mkdir -p {tmp_path / 'missing'}"
    )
    assert holder.wait() == 1
    assert not holder.runtime.exists()


def test_f10_cache_directory_in_use(hold, mnt, tmp_path):
    first = hold()
    assert first.answer() == "ready"
    (tmp_path / "mnt2").mkdir()
    (tmp_path / "link").symlink_to("cache")
    second = hold(mountpoint=tmp_path / "mnt2", cache=tmp_path / "link")
    assert second.answer() == (
        f"cache directory {tmp_path / 'link'} is in use by pid {first.process.pid}"
    )
    assert second.wait() == 1
    first.signal(signal.SIGTERM)
    assert first.wait() == 0
    assert hold(mountpoint=tmp_path / "mnt2", cache=tmp_path / "link").answer() == "ready"


def test_f11_cache_inside_the_mount_point(hold, mnt):
    holder = hold(cache=mnt / "cache")
    assert "is inside the mount point" in holder.answer()
    assert holder.wait() == 1
    assert list(mnt.iterdir()) == []


def test_f11_log_inside_the_mount_point(hold, mnt):
    holder = hold(log_file=mnt / "log")
    assert holder.answer() == f"log file {mnt / 'log'} is inside the mount point {mnt}"
    assert holder.wait() == 1


def test_log_file_is_written_where_asked_and_stays(hold, mnt, tmp_path):
    log = tmp_path / "tiercache.log"
    holder = hold(log_file=log)
    assert holder.answer() == "ready"
    os.kill(holder.state()["worker_pid"], signal.SIGKILL)
    holder.until(lambda state: state["restarts"] == 1)
    assert holder.state()["log"] == str(log)
    holder.signal(signal.SIGTERM)
    assert holder.wait() == 0
    assert "was killed by signal 9" in log.read_text()


def test_h13_log_file_that_cannot_be_written(hold, mnt, tmp_path):
    holder = hold(log_file=tmp_path / "missing" / "log")
    assert holder.answer() == (
        f"cannot write the log file {tmp_path / 'missing' / 'log'}: No such file or directory"
    )
    assert holder.wait() == 1
    assert list(mnt.iterdir()) == []


def test_systemd_is_told(hold, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE_S)
        holder = hold(environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert holder.answer() == "ready"
        assert systemd.recv(200) == b"READY=1\nSTATUS=Serving s3://bucket/a prefix"
        holder.signal(signal.SIGTERM)
        assert systemd.recv(200) == b"STOPPING=1\nSTATUS=Unmounting"
        assert holder.wait() == 0


def test_mounts_are_told_apart_by_names_with_blanks(hold, tmp_path):
    odd = tmp_path / "a b\\040\tc"
    odd.mkdir()
    holder = hold(mountpoint=odd)
    assert holder.answer() == "ready"
    assert (odd / "file").read_bytes() == pattern(0, SIZE)
    holder.signal(signal.SIGTERM)
    assert holder.wait() == 0
    assert_nothing_left(holder)


def test_config_that_the_command_sends_is_what_the_dataclass_says():
    config = Config(
        origin=OriginConfig(url="file:///d"),
        mount=MountConfig(mountpoint=Path("/m")),
        tiers=(TierConfig(paths=(Path("/c"),)),),
    )
    expected = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    assert json.loads(json.dumps(config_to_json(config))) == expected
