"""The policy benchmark: what its rows say, at the scale of a smoke test."""

from __future__ import annotations

import json
import pickle

import pytest

from bench import policy, policy_mount
from bench.rows import report
from bench.workspace import SCALES


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in policy.measure(SCALES["small"])}


def test_closed_forms_are_reached(rows):
    for order in ("permutations", "cyclic"):
        for name in ("adaptive", "pin"):
            row = rows[f"policy.{order}-0.5.{name}"]
            assert row.ok
            assert row.value == pytest.approx(50, abs=0.5)
    assert rows["policy.permutations-0.5.lru"].value == pytest.approx(15.34, abs=1)


def test_every_policy_has_a_row_against_the_optimum(rows):
    compared = {
        name.rpartition(".")[2]: row for name, row in rows.items() if row.baseline_name == "optimum"
    }
    assert {"adaptive", "pin", "lru", "s3fifo", "belady"} <= compared.keys()
    assert all(row.ratio <= 1 for row in compared.values())
    best = max(row.value for name, row in compared.items() if name not in ("adaptive", "belady"))
    lead = rows["policy.mixed-1000.lead"]
    assert lead.pairs[0].mount == compared["adaptive"].value
    assert lead.baseline == best
    assert lead.ok


def test_the_report_is_what_the_contract_says(rows):
    found = json.loads(json.dumps(report("policy", {}, rows.values(), "small")))
    goal = next(row for row in found["rows"] if row["name"] == "policy.mixed-1000.goal")
    assert (goal["unit"], goal["goal"], goal["ok"]) == ("%", 1.0, True)
    assert goal["baseline"] == policy.MIXED_GOALS[1000]
    assert len(goal["samples"]) == 1


def test_workloads_travel_to_other_processes():
    workload = policy.Generated(policy._zipf)
    assert next(iter(pickle.loads(pickle.dumps(workload)))) == next(iter(workload))


def test_goals_of_a_mount_follow_from_what_fits():
    row = policy_mount.row("x", 0.5, [0.1, 0.5, 0.49, 0.48])
    assert [pair.mount for pair in row.pairs] == [50, 49, 48]
    assert row.baseline == 50
    assert row.goal == pytest.approx(1 - 0.03)
    assert row.ok
    assert not policy_mount.row("x", 0.5, [0.5, 0.4]).ok
