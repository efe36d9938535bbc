"""Heat against its definition: the sum of 2 ** -(age / half-life)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiercache.heat import Heat, group_name, group_number

HALF_LIFE_S = 100.0
START = 1.8e9


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=50))
def test_count_is_the_weighted_sum(ages):
    heat = Heat(HALF_LIFE_S, 10)
    for age in sorted(ages, reverse=True):
        heat.use(1, START - age)
    expected = sum(2 ** -(age / HALF_LIFE_S) for age in ages)
    assert heat.count(1, START) == pytest.approx(expected, rel=1e-5)


def test_a_steady_rate_settles_at_the_closed_form():
    heat = Heat(HALF_LIFE_S, 10)
    for second in range(2000):
        heat.use(1, START + second)
    assert heat.count(1, START + 2000) == pytest.approx(HALF_LIFE_S / math.log(2), rel=0.01)


def test_scores_order_items_as_counts_do_at_any_time():
    heat = Heat(HALF_LIFE_S, 10)
    for _ in range(3):
        heat.use(1, START)
    heat.use(2, START + HALF_LIFE_S)
    assert heat.score(1) > heat.score(2) > heat.score(3)
    for later in (HALF_LIFE_S, 50 * HALF_LIFE_S):
        assert heat.count(1, START + later) > heat.count(2, START + later)


def test_the_longest_unused_is_forgotten_and_named():
    heat = Heat(HALF_LIFE_S, 2)
    assert heat.use(1, START) is None
    assert heat.use(2, START + 1) is None
    assert heat.use(1, START + 2) is None
    assert heat.use(3, START + 3) == 2
    assert (len(heat), heat.count(2, START + 3)) == (2, 0.0)


def test_kept_scores_add_to_new_ones():
    before, after = Heat(HALF_LIFE_S, 10), Heat(HALF_LIFE_S, 10)
    before.use(1, START)
    after.use(1, START + HALF_LIFE_S)
    for item, score in before.items():
        after.add(item, score)
    assert after.count(1, START + HALF_LIFE_S) == pytest.approx(1.5)


def test_no_age_overflows():
    heat = Heat(1.0, 10)
    heat.use(1, START)
    assert heat.count(1, START + 1e6) == 0.0
    heat.use(1, START + 1e6)
    assert heat.count(1, START + 1e6) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("key", "depth", "name"),
    [
        (b"a/b/c/file", 2, b"a/b"),
        (b"a/file", 2, b"a"),
        (b"file", 2, b""),
        (b"a/b/c/file", 0, b""),
        (b"a/b/c/file", 9, b"a/b/c"),
    ],
)
def test_group_is_a_directory_of_limited_depth(key, depth, name):
    assert group_name(key, depth) == name


def test_group_numbers_are_stable_and_fit_63_bits():
    assert group_number(b"a/b") == group_number(b"a/b")
    numbers = {group_number(b"%d" % n) for n in range(10_000)}
    assert len(numbers) == 10_000
    assert all(0 <= number < 1 << 63 for number in numbers)
