"""Replies from the page cache, into a pipe that stands for the device."""

import errno
import fcntl
import os

import pytest

from tiercache.fuse.splicing import Splicer
from tiercache.testing.data import pattern
from tiercache.types import KIB, MIB
from tiercache.vfs.api import LocalRange

HEADER = b"header of sixteen"[:16]
LARGEST = 512 * KIB


@pytest.fixture
def device():
    """The read end of a pipe, and the write end that a splicer takes for the device."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, MIB)
    os.set_blocking(ends[0], False)
    yield ends
    for fd in ends:
        os.close(fd)


@pytest.fixture
def splicer(device):
    splicer = Splicer(device[1])
    assert splicer.available
    yield splicer
    splicer.close()


@pytest.fixture
def mirror(tmp_path):
    path = tmp_path / "mirror"
    path.write_bytes(pattern(0, MIB + 100, 7))
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


def received(device):
    data = b""
    while True:
        try:
            data += os.read(device[0], MIB)
        except BlockingIOError:
            return data


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 300_000])
@pytest.mark.parametrize("size", [1, 4096, 128 * KIB + 1, LARGEST])
def test_a_reply_arrives_whole_and_in_order(device, splicer, mirror, offset, size):
    assert splicer.send(HEADER, LocalRange(mirror, offset, size))
    assert received(device) == HEADER + pattern(offset, size, 7)
    assert splicer.replies == 1


def test_a_file_that_ends_early_sends_nothing_and_the_next_reply_is_clean(device, splicer, mirror):
    assert not splicer.send(HEADER, LocalRange(mirror, MIB, 4096))
    assert received(device) == b""
    assert splicer.send(HEADER, LocalRange(mirror, MIB, 100))
    assert received(device) == HEADER + pattern(MIB, 100, 7)


def test_a_file_that_cannot_be_read_sends_nothing(device, splicer, tmp_path, mirror):
    unreadable = os.open(tmp_path / "mirror", os.O_WRONLY)
    assert not splicer.send(HEADER, LocalRange(unreadable, 0, 4096))
    os.close(unreadable)
    assert received(device) == b""
    assert splicer.send(HEADER, LocalRange(mirror, 0, 4096))


def test_a_device_that_takes_no_splice_is_not_sent_half_a_reply(tmp_path, mirror):
    regular = os.open(tmp_path / "append", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    splicer = Splicer(regular)  # splice(2) refuses files open for appending
    assert not splicer.send(HEADER, LocalRange(mirror, 0, LARGEST))
    assert os.fstat(regular).st_size == 0
    assert splicer.replies == 0
    assert not splicer.available
    splicer.close()
    os.close(regular)


def test_without_descriptors_left_it_is_not_available(device, monkeypatch):
    def none_left(_flags):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe2", none_left)
    splicer = Splicer(device[1])
    assert not splicer.available
    splicer.close()
