"""Recording what a mount is asked for: bounded, off the loop, and never in the mount's way."""

from __future__ import annotations

import errno
import stat
from types import SimpleNamespace

import pytest
import trio

from tiercache.control import recording as recording_module
from tiercache.control.recorder import LIMIT_MIN, Recorder
from tiercache.control.recording import Recording
from tiercache.errors import ControlError
from tiercache.simulation import blocks, tracefile
from tiercache.simulation.traces import Trace
from tiercache.types import GIB, Inode, Kind


def inode(number, size=100, key=b"set/a"):
    return Inode(number, 1, Kind.FILE, size, 0, "e", key)


@pytest.fixture
def opened():
    return SimpleNamespace(on_open=None)


@pytest.fixture
def clock():
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def recorder(opened, clock, nursery):
    return Recorder(opened, len, nursery, lambda: clock.now)


async def test_every_open_is_recorded_with_time_size_and_group(recorder, opened, clock, tmp_path):
    assert recorder.status() is None
    path = tmp_path / "t"
    assert (await recorder.start(str(path), GIB))["recording"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    opened.on_open(inode(7, key=b"four/x"))
    clock.now += 1.5
    opened.on_open(inode(8, size=5))
    report = await recorder.stop()
    assert (report["uses"], report["dropped"], report["ended"]) == (2, 0, "stopped")
    assert report["bytes"] == path.stat().st_size
    assert list(Trace(path)) == [(1000.0, 7, 100, 6), (1001.5, 8, 5, 5)]
    opened.on_open(inode(9))
    assert opened.on_open is None
    assert recorder.status() == report


async def test_one_at_a_time_and_again_after_the_end(recorder, tmp_path):
    await recorder.start(str(tmp_path / "a"), GIB)
    with pytest.raises(ControlError, match="is running"):
        await recorder.start(str(tmp_path / "b"), GIB)
    await recorder.stop()
    with pytest.raises(ControlError, match="no recording is running"):
        await recorder.stop()
    with pytest.raises(ControlError, match="File exists"):
        await recorder.start(str(tmp_path / "a"), GIB)
    await recorder.start(str(tmp_path / "b"), GIB)
    await recorder.stop()


@pytest.mark.parametrize(
    ("file", "limit"),
    [("relative", GIB), (7, GIB), ("/x\0y", GIB), ("/x", LIMIT_MIN - 1), ("/x", True), ("/x", "1")],
)
async def test_arguments_are_checked(recorder, file, limit):
    with pytest.raises(ControlError, match="trace_start"):
        await recorder.start(file, limit)


async def written(recorder):
    """Until the file has grown, or the recording is over."""
    before = recorder.status()["bytes"]
    while recorder.status()["recording"] and recorder.status()["bytes"] == before:  # noqa: ASYNC110
        await trio.sleep(1)


async def test_the_limit_ends_it(recorder, opened, tmp_path, autojump_clock):
    path = tmp_path / "t"
    await recorder.start(str(path), LIMIT_MIN)
    seen = 0
    while opened.on_open is not None:
        opened.on_open(inode(seen * 977, size=seen * 31))
        seen += 1
        if not seen % blocks.USES_MAX:
            await written(recorder)
    report = recorder.status()
    assert report["ended"] == "the limit is reached"
    assert path.stat().st_size == report["bytes"] <= LIMIT_MIN
    kept = list(Trace(path))
    assert len(kept) == report["uses"] - report["dropped"] > 0
    assert [access.item for access in kept] == [number * 977 for number in range(len(kept))]


async def test_what_is_collected_is_written_after_a_while(
    recorder, opened, tmp_path, autojump_clock
):
    path = tmp_path / "t"
    await recorder.start(str(path), GIB)
    opened.on_open(inode(7))
    assert list(Trace(path)) == []
    await written(recorder)
    assert [access.item for access in Trace(path)] == [7]
    await recorder.stop()


async def test_the_end_of_the_mount_loses_nothing(opened, tmp_path):
    path = tmp_path / "t"
    async with trio.open_nursery() as mount:
        recorder = Recorder(opened, len, mount, lambda: 1.0)
        await recorder.start(str(path), GIB)
        for number in range(2 * blocks.USES_MAX + 1):
            opened.on_open(inode(number))
        mount.cancel_scope.cancel()
    assert len(list(Trace(path))) == 2 * blocks.USES_MAX + 1
    assert recorder.status()["ended"] == "the mount ended"


class Disk:
    """A file whose writes fail, or wait for `open`."""

    def __init__(self, error=None):
        self.error = error
        self.open = trio.Event()

    def write(self, data):
        if self.error:
            raise OSError(self.error, "No space left on device")
        trio.from_thread.run(self.open.wait)

    def flush(self):
        pass

    def close(self):
        if self.error:
            raise OSError(self.error, "No space left on device")


@pytest.mark.allow_warnings
async def test_a_full_disk_ends_the_recording_and_nothing_else(nursery, tmp_path, autojump_clock):
    recording = Recording(tmp_path / "t", GIB)
    recording.use(0, 1, 1, 0)
    nursery.start_soon(recording.run, Disk(errno.ENOSPC))
    await recording.over.wait()
    recording.use(0, 2, 1, 0)
    report = recording.status()
    assert report["ended"] == "failed: No space left on device"
    assert (report["uses"], report["dropped"]) == (1, 1)
    assert report["bytes"] == len(tracefile.HEADER)


async def test_a_slow_disk_costs_uses_and_not_memory(nursery, tmp_path):
    recording, disk = Recording(tmp_path / "t", GIB), Disk()
    nursery.start_soon(recording.run, disk)
    await trio.testing.wait_all_tasks_blocked()
    held = recording_module._WAITING_MAX
    total = (held + 8) * blocks.USES_MAX
    for number in range(total):
        recording.use(0, number, 1, 0)
    dropped = recording.status()["dropped"]
    assert total - (held + 2) * blocks.USES_MAX <= dropped < total
    disk.open.set()
    recording.end("stopped")
    await recording.over.wait()
    assert recording.status()["uses"] == total
