import random

import pytest

from tiercache.config import PrefetchConfig, TransferConfig
from tiercache.prefetch.siblings import Siblings
from tiercache.prefetch.tails import tail_of
from tiercache.types import GIB, KIB, MIB, Inode, Kind


class Folder:
    """A directory of files in name order; tells how many names were looked at."""

    def __init__(self, count, size=100 * KIB, parent=2):
        first = parent * 1_000_000
        self.files = [
            Inode(first + i, parent, Kind.FILE, size, 0, "e", b"d/%08d" % i) for i in range(count)
        ]
        self.place = {file.ino: i for i, file in enumerate(self.files)}
        self.looked_at = 0

    def after(self, obj, count):
        at = self.place[obj.ino] + 1
        found = self.files[at : at + count]
        self.looked_at += len(found)
        return found


class Loader:
    """Opens files of a folder; what was fetched ahead is resident when its turn comes."""

    def __init__(self, folder, **config):
        self.folder = folder
        self.siblings = Siblings(PrefetchConfig(**config), folder, TransferConfig().part)
        self.fetched = []
        self.opened = set()
        self.hits = 0

    def open(self, index):
        file = self.folder.files[index]
        resident = file in self.opened or index in set(self.fetched)
        self.hits += resident
        found = self.siblings.opened(file, resident=resident)
        if found is not None:
            cursor, files = found
            # As the fetcher does: nothing that is there or on its way is fetched again.
            places = [self.folder.place[f.ino] for f in files if f not in self.opened]
            new = [place for place in places if place not in set(self.fetched)]
            self.fetched += new
            self.siblings.started(file, cursor, len(new))
        self.opened.add(file)
        return found


def interleaved(count, workers, batch):
    """What PyTorch's loader opens: batches in turn, their workers side by side."""
    order = []
    for base in range(0, count, workers * batch):
        for step in range(batch):
            order += [base + worker * batch + step for worker in range(workers)]
    return [i for i in order if i < count]


def test_e08_listing_order_is_fetched_ahead_with_many_in_flight():
    loader = Loader(Folder(500))
    for i in range(500):
        loader.open(i)
    assert loader.hits >= 490
    assert loader.siblings.wasted_bytes == 0


def test_starts_after_the_fourth_in_order_and_not_before():
    loader = Loader(Folder(100))
    for i in range(3):
        assert loader.open(i) is None
    assert loader.open(3) is not None


def test_the_depth_grows_to_its_bound():
    loader = Loader(Folder(1000), files_ahead=32)
    ahead = []
    for i in range(500):
        loader.open(i)
        ahead.append(max(loader.fetched, default=i) - i)
    assert ahead[4] <= 8
    assert max(ahead) == 32


@pytest.mark.parametrize(("workers", "batch"), [(2, 1), (4, 8), (8, 4), (8, 32), (16, 16)])
def test_e08_workers_that_take_batches_in_turn_are_one_order(workers, batch):
    loader = Loader(Folder(4096))
    for i in interleaved(4096, workers, batch):
        loader.open(i)
    assert loader.hits >= 0.8 * 4096


@pytest.mark.parametrize("readers", [2, 8, 16, 32])
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_readers_in_step_are_one_order_whoever_comes_first(readers, seed):
    loader, chance = Loader(Folder(2048)), random.Random(seed)
    for base in range(0, 2048, readers):
        group = list(range(base, base + readers))
        group.reverse() if seed is None else chance.shuffle(group)
        for i in group:
            loader.open(i)
    assert loader.hits >= 0.8 * 2048


def test_shuffled_opens_fetch_next_to_nothing_and_cost_few_looks():
    folder = Folder(5000)
    loader, order = Loader(folder), list(range(5000))
    random.Random(4).shuffle(order)
    for i in order:
        loader.open(i)
    assert len(loader.fetched) <= 0.01 * 5000
    assert folder.looked_at <= 5000 * 2


def test_order_is_noticed_again_after_a_shuffled_time():
    loader, order = Loader(Folder(5000)), list(range(2000))
    random.Random(4).shuffle(order)
    for i in order:
        loader.open(i)
    before = loader.hits
    for i in range(2000, 3000):
        loader.open(i)
    assert loader.hits - before >= 950


@pytest.mark.parametrize("world", [2, 4, 8])
def test_one_rank_of_several_is_not_given_the_files_of_the_others(world):
    loader = Loader(Folder(4000))
    for i in range(0, 4000, world):
        loader.open(i)
    assert len(loader.fetched) <= 0.05 * 4000


def test_next_shards_are_fetched_within_the_window():
    loader = Loader(Folder(100, size=GIB))
    for i in range(20):
        loader.open(i)
        assert len([f for f in loader.fetched if f > i]) <= 8  # of 16 MiB at most, in 128 MiB
    assert loader.hits >= 15


def test_what_is_all_resident_is_left_alone_and_begins_nothing():
    folder = Folder(2000)
    siblings = Siblings(PrefetchConfig(), folder, TransferConfig().part)
    for file in folder.files:
        assert siblings.opened(file, resident=True) is None
    assert folder.looked_at == 0 and len(siblings) == 0


def test_an_order_that_finds_everything_resident_ends():
    folder = Folder(4000)
    siblings = Siblings(PrefetchConfig(), folder, TransferConfig().part)
    for i, file in enumerate(folder.files):
        found = siblings.opened(file, resident=i > 10)
        if found is not None:
            siblings.started(file, found[0], 0)
    assert len(siblings) == 0
    assert folder.looked_at < 500


def test_a_resident_directory_read_in_any_order_keeps_no_cursor():
    loader = Loader(Folder(2000))
    for i in range(1000):
        loader.open(i)
    folder, looked_at = loader.folder, loader.folder.looked_at
    for i in range(800):
        loader.siblings.opened(folder.files[i % 200], resident=True)
    assert len(loader.siblings) == 0
    assert folder.looked_at == looked_at


def test_files_asked_for_and_never_opened_are_counted_as_waste():
    siblings = Siblings(PrefetchConfig(streams_max=1), folder := Folder(100), TransferConfig().part)
    for file in folder.files[:10]:
        siblings.opened(file, resident=False)
    other = Folder(3, parent=3)
    folder.place |= {f.ino: 99 for f in other.files}
    siblings.opened(other.files[0], resident=False)
    assert siblings.wasted_bytes >= 10 * 100 * KIB


def test_memory_of_names_is_bounded():
    loader = Loader(Folder(5_000))
    for i in range(5_000):
        loader.open(i)
    (directory,) = loader.siblings._directories.values()
    assert all(len(c.files) < 1024 and len(c.places) < 1024 for c in directory.cursors)


@pytest.mark.parametrize("name", [b"a.npz", b"d/model.PT", b"x.parquet", b"x.zip"])
def test_tails_of_formats_with_an_index_at_the_end(name):
    file = Inode(5, 1, Kind.FILE, GIB, 0, "e", name)
    assert tail_of(file, 64 * KIB) == (GIB - 64 * KIB, GIB)
    assert tail_of(file, 0) is None


def test_no_tail_of_others_and_none_beyond_the_file():
    assert tail_of(Inode(5, 1, Kind.FILE, GIB, 0, "e", b"a.tar"), 64 * KIB) is None
    assert tail_of(Inode(5, 1, Kind.FILE, 100, 0, "e", b"a.pt"), 64 * KIB) == (0, 100)


@pytest.mark.parametrize(("count", "share"), [(64, 0.05), (128, 0.03), (512, 0.001)])
def test_shuffled_epochs_that_no_tier_keeps_are_not_taken_for_an_order(count, share):
    folder = Folder(count, size=4 * MIB)
    siblings = Siblings(PrefetchConfig(), folder, TransferConfig().part)
    asked = epochs = 0
    for seed in range(5):
        chance = random.Random(seed)
        for _ in range(6):
            epochs += 1
            for index in chance.sample(range(count), count):
                found = siblings.opened(folder.files[index], resident=False)
                asked += len(found[1]) if found else 0
    assert asked <= share * count * epochs
