"""The commands on real mounts of a directory: what they say, and what is left afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tiercache.fuse.mountpoint import runtime_dir
from tiercache.testing.data import pattern
from tiercache.testing.mounting import COMMAND, CommandMount
from tiercache_cli.processes import await_pids

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.access("/dev/fuse", os.W_OK), reason="mounts as root"
    ),
]

BODY = pattern(0, 3_500_000)

READER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print("opened", flush=True)
sys.stdin.readline()
try:
    print(len(os.pread(fd, 1 << 20, 1 << 20)), flush=True)
except OSError as error:
    print(error.errno, flush=True)
"""


def tiercache(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **options,
    )


def running(processes):
    """Those that run. Who reaps the others, and when, is not ours to say."""
    return [
        process
        for process in processes
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


def said(done, status):
    """The one line on stderr of a command that ended with *status*."""
    assert done.returncode == status, done
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    return line


@pytest.fixture
def source(tmp_path):
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "a.bin").write_bytes(BODY)
    return f"file://{directory}"


@pytest.fixture
def unmounted(tmp_path, source):
    """A mount that is not mounted yet, and that is surely gone afterwards."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    mount = CommandMount(source, mountpoint, ("--cache-dir", f"{tmp_path}/cache"))
    yield mount
    for process in mount.processes():
        process.send_signal(signal.SIGCONT)
    mount.end()


@pytest.fixture
def mounted(unmounted):
    unmounted.mount()
    return unmounted


@pytest.fixture
def reader(mounted):
    """A process that has opened the file and reads from it when told to."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, mounted.mountpoint / "a.bin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as process:
        assert process.stdout.readline() == "opened\n"
        yield process
        process.stdin.close()
        mounted.end()


def test_a_mount_from_beginning_to_end(unmounted, tmp_path):
    done = tiercache("mount", unmounted.source, unmounted.mountpoint, *unmounted.options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (unmounted.mountpoint / "a.bin").read_bytes() == BODY
    status = unmounted.status()
    assert (status["state"], status["source"]) == ("serving", unmounted.source)
    assert (status["driver"], status["mounted"]) == ("kernel", True)
    assert status["tiers"][0]["used"] >= len(BODY)
    assert status["hit_bytes"].keys() == {"cache", "origin"}
    assert status["hit_bytes"]["origin"] >= len(BODY)
    assert status["origin"]["client"] == "posix"
    assert isinstance(status["in_flight"], int)
    assert isinstance(status["passthrough"], bool)
    processes = unmounted.processes()
    assert [process.pid for process in processes] == [
        status["holder"]["pid"],
        status["worker"]["pid"],
    ]
    done = tiercache("umount", unmounted.mountpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not unmounted.is_mounted
    assert not running(processes)


def test_the_cache_is_kept_between_mounts(mounted):
    (mounted.mountpoint / "a.bin").read_bytes()
    mounted.unmount()
    mounted.mount()
    assert (mounted.mountpoint / "a.bin").read_bytes() == BODY
    assert mounted.status()["hit_bytes"]["origin"] == 0


def test_every_mount_is_listed(mounted):
    found = json.loads(tiercache("status", "--json").stdout)
    assert str(mounted.mountpoint) in [mount["mountpoint"] for mount in found]
    text = tiercache("status").stdout
    assert f"{mounted.mountpoint}  {mounted.source}  serving\n" in text
    assert "\x1b" not in text


def test_a_mount_point_serves_one_mount(mounted):
    line = said(tiercache("mount", mounted.source, mounted.mountpoint, *mounted.options), 1)
    assert line.startswith("tiercache: ")
    assert str(mounted.mountpoint) in line


def test_f10_a_cache_directory_serves_one_mount(mounted, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    line = said(tiercache("mount", mounted.source, other, *mounted.options), 1)
    assert str(mounted.processes()[0].pid) in line
    assert f"{tmp_path}/cache" in line


@pytest.mark.parametrize(
    ("other_source", "mountpoint", "expected"),
    [
        ("file:///no/such/directory", "mnt", "/no/such/directory"),
        ("", "missing", "does not exist"),
        ("", "full", "not empty"),
        ("", "file", "not a directory"),
    ],
)
def test_what_cannot_be_mounted_is_told_in_one_line(
    unmounted, tmp_path, other_source, mountpoint, expected
):
    (tmp_path / "full" / "x").mkdir(parents=True)
    (tmp_path / "file").touch()
    place = tmp_path / mountpoint
    line = said(tiercache("mount", other_source or unmounted.source, place, *unmounted.options), 1)
    assert line.startswith("tiercache: ")
    assert expected in line
    assert str(place) not in Path("/proc/mounts").read_text()


def test_j01_an_owner_without_allow_other_is_warned_about(unmounted):
    options = (*unmounted.options, "--uid", "1000", "--gid", "1000")
    line = said(tiercache("mount", unmounted.source, unmounted.mountpoint, *options), 0)
    assert line.startswith("tiercache: warning: uid and gid")
    assert "--allow-other" in line
    assert (unmounted.mountpoint / "a.bin").stat().st_uid == 1000
    unmounted.unmount()
    options = (*options, "--allow-other")
    done = tiercache("mount", unmounted.source, unmounted.mountpoint, *options)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_config_file_alone(unmounted, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(
        f'[origin]\nurl = "{unmounted.source}"\n[mount]\nmountpoint = "{unmounted.mountpoint}"\n'
        f'[[tier]]\nname = "fast"\npaths = ["{tmp_path}/cache"]\n'
    )
    done = tiercache("mount", "--config", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert unmounted.status()["tiers"][0]["name"] == "fast"
    assert tiercache("umount", "--config", file).returncode == 0
    assert tiercache("umount", "--config", file, "--if-mounted").returncode == 0
    assert tiercache("umount", "--config", file).returncode == 1


def test_fstab_calls_the_helper(unmounted, tmp_path):
    script = (sys.executable, "-P", "-c", "from tiercache_cli.mount_helper import main; main()")
    options = f"ro,_netdev,cache_dir={tmp_path}/cache"
    done = subprocess.run(
        [*script, unmounted.source, unmounted.mountpoint, "-n", "-o", options],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (unmounted.mountpoint / "a.bin").read_bytes() == BODY


def test_a_busy_mount_names_its_users(mounted, reader):
    place = mounted.mountpoint
    with subprocess.Popen(["sleep", "100"], cwd=place) as sleeper:
        try:
            done = tiercache("umount", place)
        finally:
            sleeper.kill()
    assert (done.returncode, done.stdout) == (1, "")
    assert "--lazy" in done.stderr.splitlines()[0]
    assert f"  {sleeper.pid} sleep 100: working directory {place}" in done.stderr
    assert f"  {reader.pid} {sys.executable}" in done.stderr
    assert f"open {place}/a.bin" in done.stderr
    assert mounted.is_mounted


def test_lazy_lets_open_files_finish(mounted, reader):
    processes = mounted.processes()
    line = said(tiercache("umount", "--lazy", mounted.mountpoint), 0)
    assert str(reader.pid) in line
    assert not mounted.is_mounted
    assert mounted.status()["state"] == "detached"
    assert reader.communicate("go\n", timeout=60)[0] == f"{1 << 20}\n"
    assert not await_pids([process.pid for process in processes], 60, "")


def test_umount_works_from_inside(mounted):
    done = tiercache("umount", ".", cwd=mounted.mountpoint)
    assert (done.returncode, done.stderr) == (0, "")


def test_inside_a_mount_is_not_a_mount(mounted):
    line = said(tiercache("umount", mounted.mountpoint / "a.bin"), 1)
    assert line.endswith(f"inside a tiercache mount; its mount point is {mounted.mountpoint}")


def test_a_killed_worker_is_counted(mounted):
    before = mounted.status()["worker"]["pid"]
    os.kill(before, signal.SIGKILL)
    assert (mounted.mountpoint / "a.bin").read_bytes() == BODY
    status = mounted.status()
    assert status["state"] == "serving"
    assert status["worker"]["restarts"] == 1
    assert status["worker"]["pid"] != before


def test_a_hung_worker_does_not_hang_status(mounted):
    holder, worker = mounted.processes()
    worker.send_signal(signal.SIGSTOP)
    status = mounted.status()
    assert status["state"] == "not answering"
    assert (status["holder"]["pid"], status["worker"]["pid"]) == (holder.pid, worker.pid)
    assert status["tiers"] is None
    text = tiercache("status", mounted.mountpoint).stdout
    assert "not answering" in text
    assert "log " in text


def test_force_ends_a_mount_that_hangs(mounted, reader):
    processes = mounted.processes()
    processes[1].send_signal(signal.SIGSTOP)
    reader.stdin.write("go\n")
    reader.stdin.flush()
    done = tiercache("umount", "--force", mounted.mountpoint)
    assert (done.returncode, done.stderr) == (0, "")
    assert not mounted.is_mounted
    assert not running(processes)
    assert reader.communicate(timeout=60)[0] != f"{1 << 20}\n"
    assert leftovers(mounted) <= {"log"}


def test_force_ends_a_holder_that_hangs_and_tidies_up_for_it(mounted):
    holder, worker = mounted.processes()
    holder.send_signal(signal.SIGSTOP)
    worker.send_signal(signal.SIGSTOP)
    assert tiercache("umount", "--force", mounted.mountpoint).returncode == 0
    assert not running([holder, worker])
    assert leftovers(mounted) <= {"log"}


def leftovers(mount):
    """What is left of the mount in the runtime directory."""
    place = runtime_dir(mount.mountpoint)
    return set(os.listdir(place)) if place.exists() else set()


@pytest.fixture
def dead(mounted):
    """A mount that nobody serves any more."""
    holder, worker = mounted.processes()
    # Stopped first, so that the worker has no time to clear the mount away.
    worker.send_signal(signal.SIGSTOP)
    holder.kill()
    worker.kill()
    assert not await_pids([holder.pid, worker.pid], 60, "")
    return mounted


def test_a_dead_mount_is_shown_and_cleared(dead):
    assert dead.status()["state"] == "dead"
    assert f"tiercache umount {dead.mountpoint}" in tiercache("status", dead.mountpoint).stdout
    done = tiercache("umount", dead.mountpoint)
    assert (done.returncode, done.stderr) == (0, "")
    assert not dead.is_mounted
    assert os.listdir(dead.mountpoint) == []
    assert leftovers(dead) <= {"log"}


def test_mounting_clears_a_dead_mount(dead):
    dead.mount()
    assert (dead.mountpoint / "a.bin").read_bytes() == BODY


@pytest.fixture
def notified(tmp_path):
    """A socket as systemd gives one, and the environment that names it."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(60)
        yield sock, {**os.environ, "NOTIFY_SOCKET": str(path)}


#: What the systemd unit leaves to the service.
CAPABILITIES = "sys_admin,dac_read_search"


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_in_the_foreground_with_the_capabilities_of_the_unit(unmounted, notified):
    unit = Path(__file__).parents[2] / "systemd" / "tiercache@.service"
    bounding = " ".join(f"CAP_{name.upper()}" for name in CAPABILITIES.split(","))
    assert f"CapabilityBoundingSet={bounding}\n" in unit.read_text()
    sock, environment = notified
    kept = ",".join(f"+{name}" for name in CAPABILITIES.split(","))
    limited = ("setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all", "--no-new-privs")
    place = unmounted.mountpoint
    with subprocess.Popen(
        [*limited, *COMMAND, "mount", unmounted.source, place, *unmounted.options, "--foreground"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        assert b"READY=1" in sock.recv(4096)
        assert unmounted.processes()[0].pid == process.pid
        status = unmounted.status()
        assert status["passthrough"] is True
        assert status["warnings"] == []
        assert (place / "a.bin").read_bytes() == BODY
        process.terminate()
        assert process.wait(60) == 0
    assert not unmounted.is_mounted
