import itertools

from hypothesis import given
from hypothesis import strategies as st

from tiercache.config import PrefetchConfig
from tiercache.prefetch.streams import Streams
from tiercache.types import KIB, MIB

PART = 8 * MIB


def drive(streams, offsets, size, file_size, ino=7):
    asked = [streams.observe(ino, offset, size, file_size) for offset in offsets]
    return [a for a in asked if a]


def sequential(file_size, size, start=0):
    return range(start, file_size, size)


def test_a_sequential_reader_gets_every_byte_once_and_in_order():
    size = 200 * MIB
    asked = drive(Streams(PrefetchConfig(), PART), sequential(size, 128 * KIB), 128 * KIB, size)
    assert asked[-1][1] == size
    for (_, end), (start, _) in itertools.pairwise(asked):
        assert start >= end


def test_the_window_doubles_up_to_its_bound_and_parts_become_whole():
    size, streams, config = 512 * MIB, Streams(PrefetchConfig(), PART), PrefetchConfig()
    position, ahead = 0, []
    while position < size:
        wanted = streams.observe(1, position, MIB, size)
        position += MIB
        if wanted:
            ahead.append(wanted[1] - position)
    assert max(ahead) <= config.window_max
    assert max(ahead) > config.window_max - PART


def test_e02_header_and_tail_reads_fetch_nothing_ahead():
    streams = Streams(PrefetchConfig(), PART)
    size = 100 * MIB
    for ino in range(100):
        assert not drive(streams, [0, 4 * KIB, 8 * KIB], 4 * KIB, size, ino)
        assert not drive(streams, [size - 64 * KIB], 64 * KIB, size, ino)


def test_e01_random_reads_fetch_nothing_ahead():
    streams, step = Streams(PrefetchConfig(), PART), 7_919 * 128 * KIB
    size = 1 << 30
    offsets = [(i * step) % (size - 128 * KIB) for i in range(800)]
    assert not drive(streams, offsets, 128 * KIB, size)


def test_e03_out_of_order_kernel_readahead_keeps_the_stream():
    order = [0, 256, 128, 512, 384, 768, 640, 1024, 896, 1280, 1152]
    streams = Streams(PrefetchConfig(), PART)
    asked = drive(streams, [o * KIB for o in order], 128 * KIB, 64 * MIB)
    assert asked and len(streams) == 1


def test_e05_two_readers_of_one_file_are_told_apart():
    streams, size = Streams(PrefetchConfig(), PART), 512 * MIB
    far = 300 * MIB
    asked = []
    for step in range(32):
        asked += drive(streams, [step * MIB, far + step * MIB], MIB, size)
    assert len(streams) == 2
    assert any(start < far for start, _ in asked) and any(start >= far for start, _ in asked)


def test_tracked_files_are_bounded():
    streams = Streams(PrefetchConfig(streams_max=10), PART)
    for ino in range(100):
        streams.observe(ino, 0, KIB, MIB)
    assert len(streams) == 10


@given(
    st.integers(1, 300 * MIB),
    st.lists(st.tuples(st.integers(0, 300 * MIB), st.integers(1, MIB)), max_size=60),
)
def test_never_asks_beyond_the_file_or_behind_the_reader(size, reads):
    streams = Streams(PrefetchConfig(), PART)
    for offset, length in reads:
        if offset >= size:
            continue
        wanted = streams.observe(1, offset, min(length, size - offset), size)
        if wanted:
            assert 0 <= wanted[0] < wanted[1] <= size
