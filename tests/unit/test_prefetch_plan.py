import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.prefetch.plan import NEVER, Plan, PlanItem


def files(*names):
    return [PlanItem(name) for name in names]


def numbered(count):
    return files(*(b"%06d" % i for i in range(count)))


def fill(plan, size=10):
    """Take all that is due; every file is *size* bytes."""
    taken = []
    while (place := plan.take()) is not None:
        taken.append(place)
        plan.charge(place, size)
    return taken


def test_takes_a_window_and_then_as_much_as_is_read():
    plan = Plan(numbered(100), window=50)
    assert fill(plan) == [0, 1, 2, 3, 4]
    assert plan.take() is None
    for place in range(95):
        assert plan.opened(b"%06d" % place)
        assert fill(plan) == [place + 5]
    for place in range(95, 100):
        plan.opened(b"%06d" % place)
        assert fill(plan) == []
    assert plan.done and plan.ahead_bytes == 0 and plan.skipped == 0


def test_an_entry_larger_than_the_window_is_taken_alone():
    plan = Plan(numbered(3), window=5)
    assert fill(plan) == [0]


@pytest.mark.parametrize(("workers", "batch"), [(1, 1), (8, 4), (16, 32)])
def test_workers_that_take_turns_find_all_of_it_ahead(workers, batch):
    plan, ahead, late = Plan(numbered(4096), window=10_240), set(), 0
    queues = [[] for _ in range(workers)]
    for place in range(4096):
        queues[place // batch % workers].append(place)
    chance = random.Random(workers)
    ahead.update(fill(plan))
    while any(queues):
        queue = chance.choice([q for q in queues if q and q[0] - plan.position < 800])
        place = queue.pop(0)
        late += place not in ahead
        plan.opened(b"%06d" % place)
        ahead.update(fill(plan))
    assert late == 0 and plan.done and plan.skipped == 0


def test_what_is_never_read_is_skipped_and_frees_its_window():
    plan = Plan(numbered(100), window=50, spread=4)
    fill(plan)
    for place in range(0, 100, 2):
        plan.opened(b"%06d" % place)
        fill(plan)
    assert plan.position >= 95
    assert 45 <= plan.skipped <= 50
    assert plan.ahead_bytes <= 50


@pytest.mark.parametrize("start", [0, 5, 8, 100])
def test_a_plan_goes_on_where_its_readers_were(start):
    plan = Plan(numbered(8), window=20, start=start)
    assert plan.position == min(start, 8)
    assert fill(plan) == list(range(start, 8))[:2]
    for place in range(start, 8):
        assert plan.next_place(plan.number(b"%06d" % place)) == place
        assert plan.opened(b"%06d" % place)
    assert plan.done and not plan.skipped
    assert plan.next_place(plan.number(b"%06d" % 2)) == NEVER


def test_every_epoch_is_a_use_of_its_own():
    plan = Plan(files(b"a", b"b", b"c", b"b", b"c", b"a"), window=1000)
    a, b, c = (plan.number(path) for path in (b"a", b"b", b"c"))
    assert plan.number(b"x") is None
    assert [plan.next_place(number) for number in (a, b, c)] == [0, 1, 2]
    for name in (b"a", b"b", b"c"):
        plan.opened(name)
    assert plan.position == 3
    assert [plan.next_place(number) for number in (b, c, a)] == [3, 4, 5]
    plan.opened(b"b")
    assert plan.next_place(b) == NEVER


def test_opening_a_file_again_does_not_jump_an_epoch_ahead():
    epoch = numbered(1000)
    plan = Plan(epoch + epoch, window=100, spread=16)
    for place in range(10):
        plan.opened(b"%06d" % place)
        fill(plan)
    assert not plan.opened(b"%06d" % 0)
    assert plan.position == 10


def test_a_job_resumed_in_the_middle_is_followed():
    plan = Plan(numbered(10_000), window=50, spread=16)
    fill(plan)
    moved = [plan.opened(b"%06d" % place) for place in range(7000, 7010)]
    assert moved == [False] * 3 + [True] * 7
    assert plan.position == 7010
    assert fill(plan)[0] == 7010
    assert plan.ahead_bytes == 50


def test_single_opens_far_away_are_ignored():
    plan, chance = Plan(numbered(100_000), window=50, spread=16), random.Random(2)
    for _ in range(100):
        plan.opened(b"%06d" % chance.randrange(1000, 100_000))
    assert plan.position == 0


def test_unknown_paths_are_reported_and_pass():
    plan = Plan(files(b"a", b"gone", b"b"), window=1000)
    assert plan.take() == 0
    plan.charge(0, 10)
    assert plan.take() == 1
    plan.missing(1)
    assert plan.take() == 2
    assert (plan.unknown, plan.unknown_paths) == (1, [b"gone"])
    plan.opened(b"a")
    assert plan.position == 2


def test_what_was_passed_while_it_was_looked_up_takes_no_window():
    plan = Plan(numbered(100), window=50, spread=4)
    assert plan.take() == 0
    for place in range(1, 20):
        plan.opened(b"%06d" % place)
    plan.charge(0, 10)
    assert plan.ahead_bytes == 0


def test_opens_of_others_are_counted_and_change_nothing():
    plan = Plan(numbered(3), window=100)
    assert not plan.opened(b"other")
    assert plan.unplanned == 1 and plan.position == 0


def test_ranges_of_one_file_in_any_order():
    chance = random.Random(1)
    starts = [i * 100 for i in range(500)]
    chance.shuffle(starts)
    plan = Plan([PlanItem(b"tokens", s, s + 100) for s in starts], window=1000)
    assert not plan.opened(b"tokens")  # says nothing of which range
    for number, start in enumerate(starts):
        fill(plan, 100)
        assert plan.read(b"tokens", start + 10, start + 20) == (start + 100, True)
        assert plan.position == number + 1
    assert plan.done


def test_a_whole_file_is_passed_by_its_open_and_not_by_each_read():
    plan = Plan(files(b"a", b"b", b"a"), window=1000)
    plan.opened(b"a")
    for offset in range(10):
        assert not plan.read(b"a", offset, offset + 1)
    assert plan.position == 1


@pytest.mark.parametrize("readers", [1, 8])
def test_pieces_of_a_range_are_not_the_same_range_of_the_next_epoch(readers):
    chance = random.Random(4)
    epochs = [chance.sample(range(40), 40) for _ in range(3)]
    plan = Plan([PlanItem(b"t", r * 8, r * 8 + 8) for epoch in epochs for r in epoch], window=64)
    for number, epoch in enumerate(epochs):
        for at in range(0, 40, readers):
            for piece in chance.sample(range(8), 8):
                for part in epoch[at : at + readers]:
                    plan.read(b"t", part * 8 + piece, part * 8 + piece + 1)
            fill(plan, 8)
            assert plan.position == 40 * number + at + readers
    assert plan.done and not plan.skipped


@pytest.mark.parametrize("spread", [16, 1024])
def test_what_the_kernel_reads_behind_a_range_is_no_reader_there(spread):
    """Each range is read in eight pieces, and two more that belong to another entry."""
    order = random.Random(5).sample(range(400), 400)
    plan = Plan([PlanItem(b"t", r * 8, r * 8 + 8) for r in order], window=64, spread=spread)
    taken = 0
    for number, part in enumerate(order):
        while (place := plan.take()) is not None:
            plan.charge(place, 8)
            taken += 1
        for piece in range(10):
            plan.read(b"t", part * 8 + piece, part * 8 + piece + 1)
        assert number < plan.position <= number + 8  # brushed entries among those taken
    assert taken == 400 and not plan.skipped


def test_who_reads_on_behind_a_range_is_there_at_last():
    plan = Plan([PlanItem(b"t", r * 8, r * 8 + 8) for r in range(10)], window=8)
    fill(plan, 8)
    reads = [plan.read(b"t", piece, piece + 1) for piece in range(16)]
    assert [read.moved for read in reads] == [True] + 12 * [False] + [True] + 2 * [False]
    assert [read.until for read in reads] == 8 * [8] + list(range(8, 13)) + 3 * [16]
    assert plan.read(b"u", 0, 1) is None and plan.read(b"t", 80, 81) is None


@pytest.mark.parametrize("start", [500, 1500])
def test_a_job_that_is_ahead_and_reads_little_of_each_range_is_followed(start):
    plan = Plan([PlanItem(b"t", r * 100, r * 100 + 100) for r in range(4000)], window=500)
    taken = fill(plan, 100)
    for number in range(start, start + 1200):
        plan.read(b"t", number * 100 + 50, number * 100 + 60)
        taken += fill(plan, 100)
    assert plan.position >= start + 1200 - 1024 - 1
    assert taken[-1] == start + 1200 + 4  # the window


def test_one_range_far_away_read_in_pieces_is_no_resumed_job():
    plan = Plan([PlanItem(b"t", r * 8, r * 8 + 8) for r in range(1000)], window=64, spread=16)
    for piece in range(8):
        read = plan.read(b"t", 7200 + piece, 7201 + piece)
        assert read is None or not read.moved
    assert plan.position == 0


def ranges(*names):
    return [PlanItem(name, 10 * at, 10 * at + 10) for at, name in enumerate(names)]


def test_a_file_whose_reads_are_not_seen_is_passed_from_its_open_to_its_close():
    plan = Plan(ranges(b"a", b"a", b"a", b"b", b"b", b"a", b"c", b"a"), window=1000)
    assert plan.began(b"a") and plan.position == 1
    assert plan.began(b"b")
    assert plan.ended(b"a") and plan.position == 4
    assert plan.ended(b"b") and plan.position == 5
    assert plan.began(b"a") and not plan.ended(b"a")
    assert plan.position == 6
    assert not plan.ended(b"a") and not plan.ended(b"x") and not plan.began(b"x")
    assert plan.position == 6


def test_whole_files_whose_reads_are_not_seen_are_passed_one_open_each():
    plan = Plan(files(b"a", b"a", b"a"), window=1000)
    assert plan.began(b"a")
    assert not plan.ended(b"a")
    assert plan.position == 1


def test_a_close_far_away_says_nothing():
    plan = Plan(ranges(*[b"b"] * 100, b"a", b"a"), window=1000, spread=4)
    assert not plan.began(b"a")
    assert not plan.ended(b"a")
    assert plan.position == 0


@given(
    st.lists(st.integers(0, 20), max_size=60),
    st.lists(st.integers(0, 22), max_size=120),
    st.integers(1, 100),
    st.integers(1, 8),
)
def test_accounts_hold_whatever_is_read(order, opens, window, spread):
    plan = Plan([PlanItem(b"%d" % i) for i in order], window=window, spread=spread)
    taken, last = [], 0
    for name in opens:
        new = fill(plan, size=name + 1)
        taken += new
        plan.opened(b"%d" % name)
        assert plan.position >= last
        last = plan.position
        assert plan.ahead_bytes == sum(plan._ahead.values())
        assert all(place >= plan.position for place in plan._ahead)
        for path in order:
            use = plan.next_place(plan.number(b"%d" % path))
            left = [p for p in range(plan.position, len(order)) if order[p] == path]
            left = [p for p in left if not plan._visited[p]]
            assert use == (left[0] if left else NEVER)
    assert taken == sorted(set(taken))
