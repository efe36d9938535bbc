"""Pairing, medians, rows and their JSON: the pure part of the benchmarks."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.rows import Pair, Row, alternate, line, readable, report, table

RATES = st.floats(min_value=1e-3, max_value=1e12)


def row(pairs: list[tuple[float, float]], goal: float | None = 0.95) -> Row:
    return Row("hot.x", "B/s", "native", goal, [Pair(*pair) for pair in pairs])


def test_ratio_is_the_median_of_pairwise_ratios_and_not_the_ratio_of_medians():
    slow_second = row([(10, 10), (2, 2), (30, 10)])
    assert slow_second.ratio == 1.0
    assert slow_second.value == 10
    assert slow_second.baseline == 10
    drifting = row([(1, 2), (10, 10), (90, 100)])
    assert drifting.ratio == 0.9


@pytest.mark.parametrize(
    ("goal", "ok"), [(0.5, True), (0.51, False), (None, None)], ids=["met", "missed", "no goal"]
)
def test_ok_says_whether_the_goal_is_reached(goal, ok):
    assert row([(5, 10)], goal).ok is ok


def test_a_row_without_samples_is_refused():
    with pytest.raises(ValueError, match="no samples"):
        row([])


def test_sides_take_turns_and_who_begins_changes():
    calls = []

    def side(name, values):
        values = iter(values)

        def sample():
            calls.append(name)
            return next(values)

        return sample

    pairs = alternate(3, side("mount", [1, 2, 3]), side("native", [10, 20, 30]))
    assert calls == ["native", "mount", "mount", "native", "native", "mount"]
    assert pairs == (Pair(1, 10), Pair(2, 20), Pair(3, 30))


@given(st.lists(st.tuples(RATES, RATES), min_size=1, max_size=12), st.none() | st.just(0.5))
def test_json_holds_what_the_contract_names(pairs, goal):
    made = row(pairs, goal)
    result = json.loads(json.dumps(report("hot", {"cores": 2}, [made], "full")))
    assert result["bench"] == "hot"
    assert result["machine"] == {"cores": 2}
    assert result["complete"]
    (found,) = result["rows"]
    assert list(found) == [
        *("name", "value", "unit", "baseline", "baseline_name", "ratio", "goal", "ok", "samples")
    ]
    assert len(found["samples"]) == len(pairs)
    ratios = sorted(sample["ratio"] for sample in found["samples"])
    assert ratios[0] <= found["ratio"] <= ratios[-1] or math.isclose(ratios[0], found["ratio"])
    assert found["ok"] == (None if goal is None else found["ratio"] >= goal)


def test_extra_fields_join_the_row():
    made = Row("cold.x", "B/s", "client", 0.7, [Pair(1, 1)], {"mount_cpu_s_per_gb": {"server": 2}})
    assert made.as_json()["mount_cpu_s_per_gb"] == {"server": 2}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (9.5e9, "B/s", "9.50 GB/s"),
        (14_200.0, "IO/s", "14.20 K IO/s"),
        (3.0, "files/s", "3.0 files/s"),
    ],
)
def test_figures_for_people(value, unit, text):
    assert readable(value, unit) == text


def test_a_row_in_words():
    assert (
        line(row([(5, 10)])) == "hot.x: 5.0 B/s against 10.0 B/s (native): 0.500, goal 0.95 MISSED"
    )
    assert line(row([(5, 10)], None)) == "hot.x: 5.0 B/s against 10.0 B/s (native): 0.500"


def test_table_says_when_a_goal_is_missed():
    text = table([row([(5, 10)]), row([(10, 10)]), row([(1, 1)], None)])
    assert [line.count("MISSED") for line in text.splitlines()] == [0, 1, 0, 0]
    assert len(text.splitlines()) == 4
