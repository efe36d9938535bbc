import random

from hypothesis import given
from hypothesis import strategies as st

from tiercache.prefetch.frontier import Frontier

WIDE = (-1_000_000, 1_000_000)


def visit(frontier, places, size=1, bounds=WIDE):
    for place in places:
        frontier.visit(place, size, bounds)
    return frontier


def test_in_order_everything_counts():
    frontier = visit(Frontier(10), range(10, 40))
    assert (frontier.position, frontier.run, frontier.holes) == (40, 30, 0)


@given(st.randoms(use_true_random=False), st.integers(1, 64))
def test_a_shuffled_stretch_counts_in_full_once_it_is_whole(chance, count):
    places = list(range(count))
    chance.shuffle(places)
    frontier = visit(Frontier(0), places)
    assert (frontier.position, frontier.run, frontier.holes) == (count, count, 0)


def test_who_visits_every_second_place_gets_nowhere():
    assert visit(Frontier(0), range(0, 1000, 2)).run <= 1


def test_going_over_the_same_again_is_no_progress():
    frontier = visit(Frontier(0), range(10))
    visit(frontier, [3, 4, 5] * 20)
    assert (frontier.position, frontier.run) == (10, 10)


def test_a_gap_is_made_good_once():
    frontier = visit(Frontier(0), [0, 5, 1, 2, 3, 4, 1, 2, 3, 4])
    assert (frontier.run, frontier.holes) == (6, 0)


def test_the_past_counts_within_bounds():
    frontier = visit(Frontier(0), range(100), bounds=(-5, 10))
    assert frontier.run == 10
    frontier.visit(1000, 1, (-5, 10))
    assert frontier.run == -5


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(1, 20)), max_size=60))
def test_accounts_hold(visits):
    frontier, furthest = Frontier(0), 0
    for start, size in visits:
        frontier.visit(start, size, (-50, 80))
        furthest = max(furthest, start + size)
        assert frontier.position == furthest
        assert -50 <= frontier.run <= 80
        assert 0 <= frontier.holes <= furthest


def test_random_places_of_a_large_order_get_nowhere():
    chance = random.Random(3)
    frontier = visit(Frontier(0), [chance.randrange(100_000) for _ in range(500)])
    assert frontier.run < 0
