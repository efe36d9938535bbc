"""Mounts that are killed, stopped, started twice, or started wrong."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tiercache.errors import MountError
from tiercache.testing.data import check
from tiercache.testing.mounting import COMMAND
from tiercache.types import MIB

pytestmark = pytest.mark.mount


def worker_pid(mount):
    return mount.status()["worker"]["pid"]


def read_checked(path, seed, step=MIB):
    offset = 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(step):
            check(data, offset, seed)
            offset += len(data)
    return offset


class Killer(threading.Thread):
    """Kills the worker some times, each time as soon as a new one serves."""

    #: The holder waits ever longer before it starts another.
    KILLS_MAX = 4

    def __init__(self, mount):
        super().__init__()
        self.mount = mount
        self.kills = 0
        self.over = threading.Event()

    def run(self):
        while self.kills < self.KILLS_MAX and not self.over.wait(0.1):
            with contextlib.suppress(ProcessLookupError, MountError, KeyError, TypeError):
                status = self.mount.status()
                if status["state"] == "serving":
                    os.kill(status["worker"]["pid"], signal.SIGKILL)
                    self.kills += 1


def test_kill_9_of_the_worker_in_cold_and_hot_reads_costs_no_reader_an_error(bucket):
    for i in range(6):
        bucket.put(f"f{i}", 24 * MIB, i)
    bucket.put("hot", 24 * MIB, 99)
    mount = bucket.mount()
    read_checked(mount.mountpoint / "hot", 99)
    killer = Killer(mount)
    killer.start()
    errors = []

    def reader(name, seed):
        try:
            for _ in range(2):
                assert read_checked(mount.mountpoint / name, seed, 64 << 10) == 24 * MIB
                time.sleep(0.3)
        except BaseException as error:  # noqa: BLE001 - carried to the test
            errors.append(error)

    readers = [threading.Thread(target=reader, args=(f"f{i}", i)) for i in range(6)]
    readers.append(threading.Thread(target=reader, args=("hot", 99)))
    for each in readers:
        each.start()
    for each in readers:
        each.join()
    killer.over.set()
    killer.join()
    assert not errors, errors
    assert killer.kills >= 2
    wait_until(lambda: mount.status()["state"] == "serving")
    assert mount.status()["worker"]["restarts"] >= killer.kills - 1


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def kill_both(mount):
    """Kill holder and worker, and wait until they are gone."""
    processes = mount.processes()
    assert len(processes) == 2
    for process in processes:
        process.kill()
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


def test_listing_and_stat_survive_a_kill(bucket):
    for i in range(50):
        bucket.put(f"d/f{i:02}", i, i)
    mount = bucket.mount()
    folder = mount.mountpoint / "d"
    with os.scandir(folder) as entries:
        first = next(entries).name
        os.kill(worker_pid(mount), signal.SIGKILL)
        rest = [entry.name for entry in entries]
    assert sorted([first, *rest]) == [f"f{i:02}" for i in range(50)]
    assert (folder / "f07").stat().st_size == 7


def test_kill_9_of_both_then_the_next_mount_is_warm(bucket, tmp_path, driver):
    bucket.put("f", 5 * MIB, 3)
    mount = bucket.mount(driver=driver)
    read_checked(mount.mountpoint / "f", 3)
    wait_until(lambda: list((tmp_path / "cache").rglob("*.meta")))
    time.sleep(1)  # what is complete is written down every quarter of a second
    reader = os.open(mount.mountpoint / "f", os.O_RDONLY)
    kill_both(mount)
    with pytest.raises(OSError, match="not connected"):
        os.statvfs(mount.mountpoint)  # what stat says may be remembered
    mount.mount()
    assert read_checked(mount.mountpoint / "f", 3) == 5 * MIB
    assert mount.status()["counters"]["origin_gets"] == 0
    os.close(reader)


def test_h01_killed_and_mounted_again_and_again(bucket):
    bucket.put("f", 1000, 3)
    mount = bucket.mount()
    for _ in range(3):
        kill_both(mount)
        mount.mount()
        assert read_checked(mount.mountpoint / "f", 3) == 1000


@pytest.mark.parametrize(
    ("number", "busy"),
    [
        (signal.SIGTERM, True),
        (signal.SIGINT, False),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.slow),
    ],
)
def test_h03_signals_unmount_and_exit(bucket, driver, number, busy):
    bucket.put("f", MIB, 3)
    mount = bucket.mount("-o", "stop_timeout=1s", driver=driver)
    holder, *_ = processes = mount.processes()
    held = os.open(mount.mountpoint / "f", os.O_RDONLY) if busy else None
    holder.send_signal(number)
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive
    assert not mount.is_mounted
    if held is not None:
        with contextlib.suppress(OSError):  # nobody answers the FLUSH that closing asks for
            os.close(held)


def test_umount_from_outside_ends_both(bucket, driver):
    bucket.put("f", MIB, 3)
    mount = bucket.mount(driver=driver)
    read_checked(mount.mountpoint / "f", 3)
    processes = mount.processes()
    subprocess.run(["umount", mount.mountpoint], check=True)
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


def test_umount_says_who_is_in_the_way(bucket):
    bucket.put("f", MIB, 3)
    mount = bucket.mount()
    with open(mount.mountpoint / "f", "rb"):
        done = tiercache("umount", mount.mountpoint)
        assert done.returncode == 1
        assert str(os.getpid()) in done.stderr
        assert "--lazy" in done.stderr
        assert mount.is_mounted
        assert tiercache("umount", "--lazy", mount.mountpoint).returncode == 0
    assert not mount.is_mounted


def tiercache(*arguments, env=None, **options):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        **options,
    )


def refused(mount, *words):
    """Mounting fails with one line that has *words*, and nothing is mounted."""
    with pytest.raises(MountError) as caught:
        mount.mount()
    text = str(caught.value)
    assert "\n" not in text.strip(), text
    for word in words:
        assert word in text, text
    return text


def test_missing_bucket(seaweed, make_mount):
    mount = make_mount("s3://no-such-bucket", endpoint=seaweed.endpoint_url, env=seaweed.env())
    refused(mount, "no-such-bucket")
    assert not mount.is_mounted


def test_wrong_credentials(bucket):
    for name, value in (("AWS_SECRET_ACCESS_KEY", "wrong-wrong"), ("AWS_ACCESS_KEY_ID", "WHO")):
        mount = bucket.prepare()
        mount.env[name] = value
        text = refused(mount)
        assert "wrong-wrong" not in text
        assert not mount.is_mounted


def test_unreachable_endpoint(bucket):
    mount = bucket.prepare("--endpoint-url", "http://127.0.0.1:9")
    refused(mount, "127.0.0.1:9")


def test_f10_a_cache_directory_has_one_user(bucket, tmp_path):
    bucket.put("f", 1, 3)
    first = bucket.mount()
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    pids = [str(p.pid) for p in first.processes()]
    for cache in ("cache", "link"):
        second = replace(bucket.prepare(cache=cache), mountpoint=other)
        text = refused(second, "pid")
        assert any(pid in text for pid in pids), text
    first.unmount()
    second.mount()
    second.unmount()


def test_f11_the_cache_is_not_inside_the_mount(bucket, tmp_path):
    (tmp_path / "mnt").mkdir(exist_ok=True)
    (tmp_path / "sly").symlink_to(tmp_path / "mnt")
    for cache in ("mnt", "mnt/sub", "sly", "sly/sub"):
        mount = bucket.prepare(cache=cache)
        refused(mount, "cache")
        assert not mount.is_mounted
        for leftover in (tmp_path / "mnt").iterdir():
            leftover.rmdir()


def test_h08_twice_or_on_what_is_not_empty(bucket, tmp_path):
    mount = bucket.mount()
    again = bucket.prepare(cache="another")
    text = refused(again)
    assert any(str(p.pid) in text for p in mount.processes()), text
    mount.unmount()
    (tmp_path / "mnt" / "file").write_text("x")
    refused(again, "empty")


def test_h13_missing_mount_point(bucket, tmp_path):
    mount = bucket.prepare()
    refused(replace(mount, mountpoint=tmp_path / "nowhere"), "nowhere")
    (tmp_path / "file").write_text("")
    refused(replace(mount, mountpoint=tmp_path / "file"), "directory")


def test_h06_the_command_reports_what_became_of_the_background(bucket):
    """No thread, socket or database exists before the fork: the daemon works in the background."""
    bucket.put("f", MIB, 1)
    mount = bucket.mount()
    assert read_checked(mount.mountpoint / "f", 1) == MIB
    holder = mount.processes()[0]
    assert os.getsid(holder.pid) != os.getsid(0)


def test_foreground_stays_and_ends_with_the_mount(bucket):
    bucket.put("f", 10, 1)
    mount = bucket.prepare()
    with subprocess.Popen(
        [*COMMAND, "mount", mount.source, str(mount.mountpoint), "--foreground", *mount.options],
        env={**os.environ, **mount.env},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            wait_until(lambda: mount.is_mounted)
            assert read_checked(mount.mountpoint / "f", 1) == 10
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=15)
        finally:
            process.kill()
    assert process.returncode == 0
    assert not mount.is_mounted


def test_f06_tampered_cache_is_never_served(bucket, tmp_path):
    sizes = {"a": 5 * MIB, "b": 110_000, "c": 3 * MIB + 1}
    for seed, (key, size) in enumerate(sizes.items()):
        bucket.put(key, size, seed)
    mount = bucket.mount()
    for harm in (truncate, zero, sparse, remove, flip):
        for seed, key in enumerate(sizes):
            assert read_checked(mount.mountpoint / key, seed) == sizes[key]
        mount.unmount()
        files = sorted((tmp_path / "cache").rglob("*.data"))
        assert len(files) == 3
        for file in files:
            harm(file)
        mount.mount()
        for seed, key in enumerate(sizes):
            assert read_checked(mount.mountpoint / key, seed) == sizes[key]


def truncate(file: Path):
    os.truncate(file, file.stat().st_size // 2)


def zero(file: Path):
    size = file.stat().st_size
    with open(file, "r+b") as out:
        out.write(bytes(size))


def sparse(file: Path):
    size = file.stat().st_size
    file.unlink()
    with open(file, "wb") as out:
        out.truncate(size)


def remove(file: Path):
    file.unlink()


def flip(file: Path):
    with open(file, "r+b") as out:
        out.seek(70_000)
        byte = out.read(1)
        out.seek(70_000)
        out.write(bytes([byte[0] ^ 1]))


def test_f06_a_lost_catalog_is_rebuilt_from_the_disk(bucket, tmp_path):
    bucket.put("f", 5 * MIB, 2)
    mount = bucket.mount()
    read_checked(mount.mountpoint / "f", 2)
    mount.unmount()
    [file] = (tmp_path / "cache").rglob("data.mdb")
    file.write_bytes(b"garbage" * 1000)
    mount.mount()
    assert read_checked(mount.mountpoint / "f", 2) == 5 * MIB
    status = mount.status()
    assert status["catalog"]["rebuilt"]
    assert status["counters"]["origin_gets"] == 0


def test_b08_odd_names_end_nothing(bucket, driver):
    for key in ("a/ ", " ", "a/x%41", "a/+", "ünï/🦆"):
        bucket.put(key, 5, 1)
    mount = bucket.mount(driver=driver)
    root = os.fsencode(mount.mountpoint)
    for byte in range(1, 256):
        if byte != 0x2F:
            with contextlib.suppress(FileNotFoundError):
                os.stat(root + b"/a/" + bytes([byte]))
    for name, error in ((b"n" * 255, 2), (b"n" * 256, 36), (b"\n", 2), (b"\x01", 2)):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is checked
            os.stat(root + b"/a/" + name)
        assert caught.value.errno == error
    found = subprocess.run(["find", root, "-print0"], check=True, capture_output=True).stdout
    assert {p[len(root) :] for p in found.split(b"\0")} >= {
        b"/ ",
        b"/a/ ",
        b"/a/x%41",
        b"/a/+",
        "/ünï/🦆".encode(),
    }
    assert mount.status()["worker"]["restarts"] == 0


@pytest.mark.parametrize("count", [0, 1, 22, 23, 24, 100, 1001])
def test_c12_directories_of_every_size(make_mount, tmp_path, driver, count):
    source = tmp_path / "data"
    source.mkdir()
    names = {f"{i:04}" + "n" * (i % 200) for i in range(count)}
    for name in names:
        (source / name).touch()
    mount = make_mount(f"file://{source}", driver=driver)
    mount.mount()
    assert set(os.listdir(mount.mountpoint)) == names
    with os.scandir(mount.mountpoint) as entries:
        assert {e.name for e in entries if e.stat().st_size == 0} == names
    assert len(os.listdir(mount.mountpoint)) == count


def test_j01_j02_ownership_and_modes(bucket):
    bucket.put("d/f", 5, 1)
    mount = bucket.mount("--allow-other", "--uid", "1234", "--gid", "77", "--umask", "027")
    for path, mode in ((mount.mountpoint / "d", 0o550), (mount.mountpoint / "d/f", 0o440)):
        stat = path.stat()
        assert (stat.st_uid, stat.st_gid, stat.st_mode & 0o7777) == (1234, 77, mode)
        assert stat.st_mtime > 1.5e9
    seen = subprocess.run(
        ["cat", "f"],  # the directories of pytest are root's alone
        cwd=mount.mountpoint / "d",
        user=1234, group=77, extra_groups=[], capture_output=True, check=False,
    )  # fmt: skip
    check(seen.stdout, 0, 1)
    assert len(seen.stdout) == 5, seen.stderr


def test_j03_statfs_suits_tools(bucket, driver):
    mount = bucket.mount(driver=driver)
    facts = os.statvfs(mount.mountpoint)
    assert facts.f_namemax == 255
    assert 0 < facts.f_blocks * facts.f_frsize < 1 << 62
    assert facts.f_ffree == facts.f_files > 0, "no monitor may take it for full"
    for command in (["df", "-h"], ["df", "-i"]):
        subprocess.run([*command, mount.mountpoint], check=True, capture_output=True)


def test_writing_is_refused(bucket, driver):
    bucket.put("f", 5, 1)
    root = bucket.mount(driver=driver).mountpoint
    attempts = [
        lambda: (root / "new").write_bytes(b""),
        lambda: os.open(root / "f", os.O_RDWR),
        lambda: os.unlink(root / "f"),
        lambda: os.mkdir(root / "d"),
        lambda: os.rename(root / "f", root / "g"),
        lambda: os.chmod(root / "f", 0o777),
        lambda: os.symlink("x", root / "s"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is checked
            attempt()
        assert caught.value.errno == 30
