"""What a plan leaves to readahead: whoever it does not foresee, and what it missed."""

from types import SimpleNamespace

import pytest

from tiercache.config import PrefetchConfig
from tiercache.prefetch.plan import Plan, PlanItem
from tiercache.prefetch.planner import Planner, requests
from tiercache.prefetch.prefetcher import Prefetcher
from tiercache.transfer.fetch import Reason
from tiercache.types import MIB, Inode, Kind

SIZE = 200 * MIB
RANGE = 100 * MIB


class Asked:
    """A fetcher that notes what it is asked for."""

    def __init__(self):
        self.admission = SimpleNamespace(congested=False, memory_ahead=192 * MIB)
        self.ahead = []

    def prefetch(self, _obj, start, end, reason, _part=None):
        assert reason is Reason.READAHEAD
        self.ahead.append((start // MIB, end // MIB))
        return 0

    def abandon(self, *_):
        pass


class Nothing:
    """Neither files nor tiers nor evictions."""

    def __getattr__(self, _name):
        return lambda *_: False


@pytest.fixture
def asked():
    return Asked()


@pytest.fixture
def prefetcher(asked):
    """Follows a plan of 5,000 files, of each of which the first half is read."""
    plan = Plan([PlanItem(b"f%d" % i, 0, RANGE) for i in range(5000)], window=256 * MIB)
    while (place := plan.take()) is not None:
        plan.charge(place, RANGE)
    made = Prefetcher(asked, Nothing(), PrefetchConfig(), 16 * MIB)
    made.planner = Planner(plan, (Nothing(), asked, Nothing()), Nothing())
    return made


def read(prefetcher, number, start, end):
    obj = Inode(number + 2, 1, Kind.FILE, SIZE, 0, "v", b"f%d" % number)
    for offset in range(start, end, MIB // 2):
        prefetcher.read(obj, offset, MIB // 2)


def test_a_reader_whom_the_plan_foresees_is_not_read_ahead_beyond_its_range(prefetcher, asked):
    read(prefetcher, 0, 0, RANGE)
    assert max(end for _, end in asked.ahead) == RANGE // MIB
    assert prefetcher.planner.plan.position == 1


def test_what_a_plan_could_not_fetch_is_read_ahead(prefetcher, asked):
    read(prefetcher, 0, 0, RANGE // 2)
    assert asked.ahead[0] == (0, 2)
    assert asked.ahead[-1][1] >= RANGE // MIB // 2 + 16


def test_somebody_far_from_the_plan_is_read_ahead(prefetcher, asked):
    read(prefetcher, 4000, 0, RANGE)
    assert not prefetcher.planner.plan.position
    assert asked.ahead[0][0] == 8, "until then it might be the kernel's readahead"
    assert asked.ahead[-1][1] > RANGE // MIB


def test_what_the_kernel_reads_behind_a_range_causes_nothing(prefetcher, asked):
    read(prefetcher, 1000, 0, 4 * MIB)
    assert not asked.ahead


@pytest.mark.parametrize("concurrency", [8, 32, 64])
@pytest.mark.parametrize("ahead", [0, 100 * MIB, 3000 * MIB])
def test_a_request_of_a_plan_has_its_share_of_what_is_ahead_of_it(ahead, concurrency):
    position, sizes = 7, []
    for start, stop, part in requests(7, 500 * MIB, ahead, concurrency):
        assert start == position < stop
        assert part == max(2 * MIB, (ahead + start - 7) // (2 * concurrency))
        assert stop - start <= 8 * part
        position = stop
        sizes.append(part)
    assert position == 500 * MIB
    assert sizes == sorted(sizes)
