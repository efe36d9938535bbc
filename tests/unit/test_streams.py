import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.config import PrefetchConfig
from tiercache.prefetch.streams import IDLE_S, Streams
from tiercache.types import BLOCK_SIZE, GIB, KIB, MIB

PART = 16 * MIB


class Readers:
    """Reads of one mount; adds up what is fetched, as blocks of one file each."""

    def __init__(self, **config):
        self.scarce = False
        self.unused = []
        self.streams = Streams(
            PrefetchConfig(**config),
            PART,
            scarce=lambda: self.scarce,
            unused=lambda *what: self.unused.append(what),
        )
        self.now = 0.0
        self.asked = []
        self.fetched = set()
        self.touched = set()

    def read(self, offset, size, file_size, ino=7):
        blocks = range(offset // BLOCK_SIZE, -(-(offset + size) // BLOCK_SIZE))
        self.touched.update((ino, block) for block in blocks)
        wanted = self.streams.observe(ino, offset, size, file_size, self.now)
        if wanted is not None:
            self.asked.append(wanted[:2])
            self.fetched.update(
                (ino, block)
                for block in range(wanted[0] // BLOCK_SIZE, -(-wanted[1] // BLOCK_SIZE))
            )
        return wanted

    @property
    def amplification(self):
        return len(self.fetched | self.touched) / len(self.touched)


def test_a_sequential_reader_gets_every_byte_once_and_in_order():
    size, readers = 200 * MIB, Readers()
    for offset in range(0, size, 128 * KIB):
        readers.read(offset, 128 * KIB, size)
    assert readers.asked[-1][1] == size
    for (_, end), (start, _) in itertools.pairwise(readers.asked):
        assert start >= end
    assert readers.streams.wasted_bytes == 0


def test_the_window_doubles_up_to_its_bound_and_parts_become_whole():
    size, readers, config = 512 * MIB, Readers(), PrefetchConfig()
    ahead = []
    for position in range(0, size, MIB):
        wanted = readers.read(position, MIB, size)
        if wanted:
            ahead.append(wanted[1] - position - MIB)
    assert ahead[0] <= config.window_min
    assert config.window_max - PART < max(ahead) <= config.window_max
    assert all(end % PART == 0 for _, end in readers.asked[8:])


def test_a_window_is_spread_over_at_least_eight_requests():
    size, readers = 512 * MIB, Readers()
    asked = []
    for position in range(0, size, MIB):
        wanted = readers.streams.observe(7, position, MIB, size, 0.0)
        if wanted:
            asked.append((wanted.end - position - MIB, wanted.part))
    assert {part for ahead, part in asked if ahead <= 64 * MIB} == {8 * MIB}
    assert {part for ahead, part in asked[-3:]} == {PART}


def test_the_first_request_is_small_and_soon():
    readers = Readers()
    first = next(w for i in range(99) if (w := readers.read(i * 128 * KIB, 128 * KIB, GIB)))
    assert first[1] <= 3 * MIB and first[0] <= MIB


def test_e02_header_and_tail_reads_fetch_nothing_ahead():
    readers, size = Readers(), 100 * MIB
    for ino in range(100):
        for offset in (0, 4 * KIB, 8 * KIB):
            assert not readers.read(offset, 4 * KIB, size, ino)
        assert not readers.read(size - 64 * KIB, 64 * KIB, size, ino)


@pytest.mark.parametrize("size", [64 * KIB, 128 * KIB, 512 * KIB, MIB])
@pytest.mark.parametrize("file_size", [100 * MIB, GIB, 64 * GIB])
def test_e01_random_reads_fetch_what_they_touch(size, file_size):
    readers, chance = Readers(), random.Random(5)
    for _ in range(3000):
        offset = chance.randrange(file_size - size) // size * size
        readers.read(offset, size, file_size)
    assert readers.amplification <= 1.2


@pytest.mark.parametrize("pieces", [2, 4, 8])
def test_e01_random_samples_of_several_requests_teach_quickly(pieces):
    """A sample of megabytes looks like a stream at first; a file of them does not for long."""
    readers, chance = Readers(), random.Random(5)
    for _ in range(400):
        start = chance.randrange(60_000) * MIB
        for piece in range(pieces):
            readers.read(start + piece * MIB, MIB, 64 * GIB)
    assert readers.amplification <= 1.2


@pytest.mark.parametrize("stride", [1, 3, 7, 12, 20])
def test_d15_strided_and_sorted_random_reads_fetch_what_they_touch(stride):
    readers, size = Readers(), 8 * GIB
    for offset in range(0, size - MIB, stride * MIB + 256 * KIB):
        readers.read(offset, 64 * KIB, size)
    assert readers.amplification <= 1.2
    chance = random.Random(2)
    for offset in sorted(chance.randrange(size - MIB) for _ in range(2000)):
        readers.read(offset, 64 * KIB, size, ino=8)
    assert readers.amplification <= 1.2


def test_d15_reading_the_same_place_again_is_no_progress():
    readers = Readers()
    for _ in range(500):
        assert not readers.read(33 * MIB, 128 * KIB, GIB)


def test_a_stream_that_turns_random_stops():
    readers, size = Readers(), 64 * GIB
    for offset in range(0, 128 * MIB, MIB):
        readers.read(offset, MIB, size)
    asked, chance = len(readers.asked), random.Random(1)
    for _ in range(500):
        readers.read(chance.randrange(size - MIB), 64 * KIB, size)
    assert len(readers.asked) == asked


@pytest.mark.parametrize("seed", range(5))
def test_e03_out_of_order_kernel_readahead_keeps_the_stream(seed):
    readers, chance, size = Readers(), random.Random(seed), 256 * MIB
    offsets = list(range(0, size, 128 * KIB))
    for start in range(0, len(offsets), 8):  # each MiB arrives shuffled
        piece = offsets[start : start + 8]
        chance.shuffle(piece)
        for offset in piece:
            readers.read(offset, 128 * KIB, size)
    assert len(readers.streams) == 1
    assert readers.streams.wasted_bytes == 0
    assert max(end for _, end in readers.asked) == size


@pytest.mark.parametrize("seed", range(5))
def test_e03_two_windows_of_the_kernel_in_any_order(seed):
    """What the kernel has on its way at a time, as a driver may begin with it."""
    readers, chance, size = Readers(), random.Random(seed), 256 * MIB
    readers.read(0, 256 * KIB, size)
    for start in range(256 * KIB, size, 8 * MIB):
        pieces = list(range(start, min(size, start + 8 * MIB), MIB))
        chance.shuffle(pieces)
        if seed == 0:
            pieces.sort(reverse=True)
        for offset in pieces:
            readers.read(offset, min(MIB, size - offset), size)
    assert len(readers.streams) == 1
    assert readers.streams.wasted_bytes == 0
    assert max(end for _, end in readers.asked) == size


def test_e03_the_order_of_the_case():
    readers = Readers()
    for offset in [0, 256, 128, 512, 384, 768, 640, 1024, 896, 1280, 1152]:
        readers.read(offset * KIB, 128 * KIB, 64 * MIB)
    assert readers.asked and len(readers.streams) == 1


def test_e05_readers_of_one_file_are_told_apart():
    readers, size, gap = Readers(), GIB, 200 * MIB
    for step in range(64):
        for reader in range(4):
            readers.read(reader * gap + step * MIB, MIB, size)
    assert len(readers.streams) == 4
    starts = Counter(start // gap for start, _ in readers.asked)
    assert set(starts) == {0, 1, 2, 3}


def test_e05_staggered_readers_ask_for_each_block_once_or_nearly():
    readers, size = Readers(), 256 * MIB
    fetched = Counter()
    for step in range(256 + 60):
        for lag in (0, 20, 40, 60):
            if 0 <= step - lag < 256:
                wanted = readers.read((step - lag) * MIB, MIB, size)
                if wanted:
                    fetched.update(range(wanted[0] // MIB, wanted[1] // MIB))
    # Those behind ask for what the first fetched, which the fetcher then has; nobody asks twice.
    assert max(fetched.values()) <= 4 and len(fetched) >= 250


def test_forked_workers_on_a_shared_descriptor_are_one_stream_each():
    readers, size = Readers(), GIB
    positions = [0, 300 * MIB, 700 * MIB]
    for step in range(64):
        for worker in random.Random(step).sample(range(3), 3):
            readers.read(positions[worker] + step * 512 * KIB, 512 * KIB, size)
    assert len(readers.streams) == 3 and readers.streams.wasted_bytes == 0


def test_small_seeks_cost_nothing():
    readers, size, position = Readers(), GIB, 0
    for step in range(400):
        if step % 20 == 10:
            readers.read(max(0, position - MIB), 64 * KIB, size)  # a look back
        readers.read(position, MIB, size)
        position += MIB
    assert len(readers.streams) == 1 and readers.streams.wasted_bytes == 0


def test_a_skip_ahead_keeps_the_stream_and_what_was_asked_beyond():
    readers, size = Readers(), GIB
    for offset in range(0, 100 * MIB, MIB):
        readers.read(offset, MIB, size)
    end = readers.asked[-1][1]
    readers.read(112 * MIB, MIB, size)
    readers.read(113 * MIB, MIB, size)
    assert len(readers.streams) == 1
    assert readers.streams.wasted_bytes == 12 * MIB
    for offset in range(114 * MIB, 200 * MIB, MIB):
        readers.read(offset, MIB, size)
    later = [asked for asked in readers.asked if asked[1] > end]
    assert later[0][0] == end  # nothing is asked for twice


def test_what_is_skipped_is_reported_so_that_it_can_be_taken_back():
    readers, size = Readers(), GIB
    for offset in range(0, 100 * MIB, MIB):
        readers.read(offset, MIB, size)
    readers.read(110 * MIB, MIB, size)
    assert readers.unused == [(7, 100 * MIB, 110 * MIB)]
    end = readers.asked[-1][1]
    readers.streams.forget(7)
    assert readers.unused[-1][2] == end


def test_windows_halve_while_memory_is_short():
    readers, size = Readers(), 4 * GIB
    for offset in range(0, 200 * MIB, MIB):
        readers.read(offset, MIB, size)
    readers.scarce = True
    for offset in range(200 * MIB, 600 * MIB, MIB):
        readers.read(offset, MIB, size)
    assert readers.asked[-1][1] - 600 * MIB <= 2 * MIB
    readers.scarce = False
    for offset in range(600 * MIB, 900 * MIB, MIB):
        readers.read(offset, MIB, size)
    assert readers.asked[-1][1] - 900 * MIB > 32 * MIB


@pytest.mark.parametrize(("before", "after"), [(64 * MIB, 4 * MIB), (2 * MIB, 32 * MIB)])
def test_streams_that_are_known_take_on_other_windows_at_once(before, after):
    readers = Readers(window_max=before, budget=GIB)
    for offset in range(0, 256 * MIB, MIB):
        readers.read(offset, MIB, GIB)
    readers.streams.reconfigure(PrefetchConfig(window_min=after, window_max=after, budget=GIB))
    offset = 256 * MIB
    asked = max(end for _, end in readers.asked)
    while (wanted := readers.read(offset, MIB, GIB)) is None or wanted[0] < asked:
        offset += MIB
    ahead = wanted[1] - offset - MIB
    assert after - PART <= ahead <= after


def test_e07_all_streams_together_stay_within_the_budget():
    readers, size, count = Readers(budget=64 * MIB), GIB, 32
    ends = {}
    for step in range(100):
        readers.now += 0.05
        for ino in range(count):
            wanted = readers.read(step * MIB, MIB, size, ino)
            if wanted:
                ends[ino] = wanted[1]
    assert readers.streams.active == count
    assert sum(end - 100 * MIB for end in ends.values()) <= 64 * MIB
    # Once the others are idle, the one that goes on gets all of it.
    readers.now += 2 * IDLE_S
    for step in range(100, 400):
        wanted = readers.read(step * MIB, MIB, size, 0)
        if wanted:
            last = wanted[1] - step * MIB
    assert readers.streams.active == 1
    assert last > 32 * MIB


def test_i04_more_streams_than_blocks_in_the_budget_leave_it_to_the_kernel():
    readers = Readers(budget=8 * MIB)
    for step in range(30):
        for ino in range(20):
            readers.read(step * MIB, MIB, GIB, ino)
    assert readers.streams.active == 20
    before = len(readers.asked)
    for step in range(30, 60):
        for ino in range(20):
            readers.read(step * MIB, MIB, GIB, ino)
    assert len(readers.asked) == before


def test_tracked_files_are_bounded():
    streams = Streams(PrefetchConfig(streams_max=10), PART)
    for ino in range(100):
        streams.observe(ino, 0, KIB, MIB, 0.0)
    assert len(streams) == 10


@given(
    st.integers(1, 300 * MIB),
    st.lists(
        st.tuples(st.integers(0, 300 * MIB), st.integers(1, MIB), st.integers(0, 3)), max_size=80
    ),
    st.booleans(),
)
def test_never_asks_beyond_the_file_or_behind_the_reader(size, reads, scarce):
    streams = Streams(PrefetchConfig(), PART, scarce=lambda: scarce)
    for now, (offset, length, run) in enumerate(reads):
        for step in range(run + 1):
            start = offset + step * length
            if start >= size:
                continue
            wanted = streams.observe(1, start, min(length, size - start), size, now)
            if wanted:
                assert start < wanted[0] < wanted[1] <= size
                assert wanted[1] - start <= PrefetchConfig().window_max + length
    assert len(streams) <= 8
