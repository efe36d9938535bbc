"""The holder's parts: link, locks, runtime directory, events, settings, systemd."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from tiercache.config import Config, MountConfig, OriginConfig, TierConfig
from tiercache.config_file import config_to_json
from tiercache.errors import MountError
from tiercache.fuse import fusermount, runtime, supervisor, syscalls
from tiercache.fuse.events import Ended, Events, ReloadAsked, Said, Signalled
from tiercache.fuse.link import Link
from tiercache.fuse.locks import Locks
from tiercache.fuse.notify import sd_notify
from tiercache.fuse.runtime import RuntimeDir, open_log
from tiercache.fuse.settings import read_settings
from tiercache.fuse.workerprocess import WorkerProcess


def a_config(tmp_path: Path, **mount: object) -> Config:
    return Config(
        origin=OriginConfig(url="s3://bucket/prefix/"),
        mount=MountConfig(mountpoint=tmp_path / "mnt", **mount),
        tiers=(TierConfig(paths=(tmp_path / "a", tmp_path / "b")),),
    )


class TestLink:
    def test_messages_keep_their_borders_and_carry_files(self):
        ours, theirs = Link.pair()
        reader, writer = os.pipe()
        assert ours.send({"type": "one"}, [writer])
        assert ours.send({"type": "two", "text": "x" * 60000})
        os.close(writer)
        message, fds = theirs.recv()
        assert message == {"type": "one"}
        assert not os.get_inheritable(fds[0])
        os.write(fds[0], b"!")
        assert os.read(reader, 1) == b"!"
        assert theirs.recv() == ({"type": "two", "text": "x" * 60000}, [])
        for fd in (reader, *fds):
            os.close(fd)
        ours.close()
        assert theirs.recv() is None
        assert not theirs.send({"type": "too late"})
        theirs.close()

    def test_a_reader_that_sleeps_never_blocks_the_sender(self):
        ours, theirs = Link.pair()
        sent = 0
        while ours.send({"type": "again"}):
            sent += 1
            assert sent < 100_000
        assert sent > 10
        ours.close()
        theirs.close()

    async def test_waits_under_trio(self):
        ours, theirs = Link.pair()
        got = []

        async def read() -> None:
            await trio.lowlevel.wait_readable(theirs.fileno())
            got.append(theirs.recv())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            ours.send({"type": "now"})
        assert got == [({"type": "now"}, [])]
        ours.close()
        theirs.close()


class TestLocks:
    def test_f10_the_second_one_is_refused_by_pid(self, tmp_path):
        first, second = Locks(), Locks()
        first.take(tmp_path / "cache", "cache directory C")
        with pytest.raises(MountError, match=f"cache directory C is in use by pid {os.getpid()}"):
            second.take(tmp_path / "cache", "cache directory C")
        second.close()
        first.close()
        second.take(tmp_path / "cache", "cache directory C")
        second.close()

    def test_f10_through_a_symbolic_link(self, tmp_path):
        (tmp_path / "link").symlink_to("cache")
        (tmp_path / "cache").mkdir()
        first, second = Locks(), Locks()
        first.take(tmp_path / "cache", "C")
        with pytest.raises(MountError, match="in use by pid"):
            second.take(tmp_path / "link", "C")
        second.close()
        first.close()

    @pytest.mark.mount
    @pytest.mark.skipif(not syscalls.privileged(), reason="needs CAP_SYS_ADMIN")
    def test_f10_through_a_bind_mount(self, tmp_path):
        for name in ("cache", "alias"):
            (tmp_path / name).mkdir()
        syscalls.mount(str(tmp_path / "cache"), tmp_path / "alias", "none", 4096, "")
        first, second = Locks(), Locks()
        try:
            first.take(tmp_path / "cache", "C")
            with pytest.raises(MountError, match="in use by pid"):
                second.take(tmp_path / "alias", "C")
        finally:
            first.close()
            second.close()
            syscalls.umount(tmp_path / "alias")

    def test_f10_a_draining_worker_keeps_the_lock_and_is_named(self, tmp_path):
        first, second = Locks(), Locks()
        first.take(tmp_path, "C")
        worker = subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=first.fds
        )
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        first.sign([gone.pid, worker.pid])
        first.close()
        with pytest.raises(MountError, match=f"in use by pid {worker.pid}"):
            second.take(tmp_path, "C")
        second.close()
        worker.communicate(b"\n")
        second.take(tmp_path, "C")
        second.close()

    def test_one_directory_named_twice(self, tmp_path):
        (tmp_path / "link").symlink_to(tmp_path)
        locks = Locks()
        locks.take(tmp_path, "C")
        with pytest.raises(MountError, match="is the same directory as"):
            locks.take(tmp_path / "link", "D")
        locks.close()

    def test_h13_a_directory_that_cannot_be_made(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(MountError, match="cannot use cache directory C"):
            Locks().take(tmp_path / "file" / "sub", "cache directory C")

    def test_h13_a_directory_that_cannot_be_written(self, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "access", lambda *_: False)
        with pytest.raises(MountError, match="cannot use C: no permission"):
            Locks().take(tmp_path, "C")

    def test_a_full_disk_is_named(self, tmp_path, monkeypatch):
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(MountError, match="cannot use cache directory C: No space left"):
            Locks().take(tmp_path, "cache directory C")


class TestRuntimeDir:
    def test_state_is_replaced_and_everything_goes_in_the_end(self, tmp_path):
        directory = RuntimeDir(tmp_path / "run" / "id")
        directory.write_state({"worker_pid": 1})
        directory.write_state({"worker_pid": 2})
        assert json.loads((directory.path / runtime.STATE).read_text()) == {"worker_pid": 2}
        assert directory.path.stat().st_mode & 0o777 == 0o700
        assert (directory.path / runtime.STATE).stat().st_mode & 0o777 == 0o600
        directory.remove()
        assert not directory.path.exists()

    def test_a_failed_start_leaves_its_log(self, tmp_path):
        directory = RuntimeDir(tmp_path / "run" / "id")
        directory.write_state({})
        os.close(open_log(directory.path / runtime.LOG))
        directory.remove(keep_log=True)
        assert [entry.name for entry in directory.path.iterdir()] == [runtime.LOG]

    def test_a_directory_others_can_write_is_refused(self, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run").chmod(0o777)
        with pytest.raises(MountError, match="not a private directory"):
            RuntimeDir(tmp_path / "run" / "id")

    def test_a_link_in_its_place_is_refused(self, tmp_path):
        (tmp_path / "run").symlink_to(tmp_path)
        with pytest.raises(MountError, match="not a private directory"):
            RuntimeDir(tmp_path / "run" / "id")

    def test_a_large_log_is_set_aside(self, tmp_path):
        log = tmp_path / "log"
        log.touch()
        os.truncate(log, runtime.LOG_MAX + 1)
        os.close(open_log(log))
        assert log.stat().st_size == 0
        assert (tmp_path / "log.1").stat().st_size > runtime.LOG_MAX

    def test_a_log_that_cannot_be_written(self, tmp_path):
        with pytest.raises(MountError, match="cannot write the log file"):
            open_log(tmp_path / "missing" / "log")


class TestSettings:
    @pytest.mark.parametrize("as_json", [config_to_json, lambda c: dataclasses.asdict(c)])
    def test_reads_what_the_command_sends(self, tmp_path, as_json):
        (tmp_path / "mnt").mkdir()
        (tmp_path / "link").symlink_to("mnt")
        config = dataclasses.replace(
            a_config(tmp_path), mount=MountConfig(mountpoint=tmp_path / "link", nonempty=True)
        )
        sent = json.loads(json.dumps(as_json(config), default=str))
        settings = read_settings(sent)
        assert settings.mountpoint == tmp_path / "mnt"
        assert settings.config["mount"]["mountpoint"] == str(tmp_path / "mnt")
        assert settings.source == "s3://bucket/prefix"
        assert settings.cache_dirs == (tmp_path / "a", tmp_path / "b")
        assert settings.nonempty
        assert settings.log_file is None

    def test_says_why_there_is_no_passthrough(self, tmp_path, monkeypatch):
        off = read_settings(config_to_json(a_config(tmp_path, passthrough=False)))
        on = read_settings(config_to_json(a_config(tmp_path)))
        assert supervisor.wants(off).refusal == "switched off"
        monkeypatch.setattr(syscalls, "privileged", lambda: False)
        assert supervisor.wants(on).refusal == "unprivileged: needs CAP_SYS_ADMIN"
        monkeypatch.setattr(syscalls, "privileged", lambda: True)
        assert supervisor.wants(on).passthrough


class TestEvents:
    @pytest.fixture
    def events(self):
        handlers = {n: signal.getsignal(n) for n in signal.valid_signals() if n not in (9, 19)}
        events = Events()
        yield events
        os.close(signal.set_wakeup_fd(-1))
        os.close(events._pipe)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, handlers[number])

    def test_signals_messages_and_the_end_in_order(self, events, tmp_path):
        program = tmp_path / "worker.py"
        program.write_text(
            "import sys\n"
            "from tiercache.fuse.link import Link\n"
            "link = Link(int(sys.argv[2]))\n"
            "link.send(link.recv()[0]); link.send({'type': 'bye'}); sys.exit(3)\n"
        )
        worker = WorkerProcess([str(program)], (), "0")
        os.kill(os.getpid(), signal.SIGHUP)
        deadline = time.monotonic() + 30
        assert events.next(worker, deadline) == ReloadAsked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert events.next(worker, deadline) == Signalled(signal.SIGTERM)
        worker.link.send({"type": "echo"})
        assert events.next(worker, deadline) == Said({"type": "echo"})
        assert events.next(worker, deadline) == Said({"type": "bye"})
        assert events.next(worker, deadline) == Ended(3)
        worker.end()
        assert events.next(None, time.monotonic()) is None

    def test_a_worker_that_does_not_end_is_killed(self, events, tmp_path):
        program = tmp_path / "worker.py"
        program.write_text("import signal\nsignal.pause()\n")
        worker = WorkerProcess([str(program)], (), "0")
        worker.end()
        assert worker.exit_status() == -signal.SIGKILL


class TestNotify:
    @pytest.mark.parametrize("abstract", [False, True])
    def test_tells_systemd(self, tmp_path, monkeypatch, abstract):
        address = f"@tiercache-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(address.replace("@", "\0") if abstract else address)
            monkeypatch.setenv("NOTIFY_SOCKET", address)
            sd_notify("READY=1", "STATUS=up")
            assert systemd.recv(100) == b"READY=1\nSTATUS=up"

    def test_nobody_listens(self, tmp_path, monkeypatch):
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "missing"))
        sd_notify("READY=1")
        monkeypatch.delenv("NOTIFY_SOCKET")
        sd_notify("READY=1")


def test_options_are_escaped_for_the_helper():
    assert fusermount.escape_option("s3://a,b\\c") == "s3://a\\,b\\\\c"


def test_detach_leaves_strangers_alone(tmp_path):
    assert not fusermount.detach(tmp_path)
    assert not fusermount.detach(Path("/proc"))
