"""How large a cache must be: the search, the estimate, and the command."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tiercache.control.popularity import popularity
from tiercache.simulation import sizing, tracefile, workloads
from tiercache.simulation.sizing import Dataset, densest_first, expected, expected_smallest
from tiercache.types import Inode, Kind
from tiercache_cli.main import run, tiercache

#: Uses decay, but not to numbers that half of is nothing.
USES = st.just(0.0) | st.floats(1e-9, 1e6)
DATASETS = st.lists(
    st.builds(Dataset, USES, st.integers(0, 10**15), st.integers(1, 100)),
    min_size=1,
    max_size=8,
)


@given(
    knee=st.integers(1, 10**12),
    footprint=st.integers(1, 10**12),
    target=st.floats(0.01, 1.0),
)
def test_the_search_finds_the_knee_of_a_curve(knee, footprint, target):
    def measure(sizes):
        return [float(size >= knee) for size in sizes]

    first = sizing.ladder(footprint)
    tried = dict(zip(first, measure(first), strict=True))
    found = sizing.smallest(target, tried, footprint, measure)
    if knee > footprint:
        assert found is None
    else:
        assert knee <= found <= knee + max(1, sizing.PRECISION * footprint)


def test_a_cache_that_grows_and_hits_less_still_ends_the_search():
    def measure(sizes):
        return [1.0 if 40 <= size <= 60 else 0.0 for size in sizes]

    tried = dict(zip(sizing.ladder(100), measure(sizing.ladder(100)), strict=True))
    assert sizing.smallest(0.9, tried, 100, measure) == 40


def test_the_densest_datasets_get_the_bytes():
    small, large, idle = Dataset(60, 100, 1), Dataset(40, 400, 1), Dataset(0, 100, 1)
    datasets = densest_first([large, idle, small], 10)
    assert datasets == [small, large]
    assert expected(datasets, 50) == 0.3
    assert expected(datasets, 100) == 0.6
    assert expected(datasets, 300) == 0.8
    assert expected_smallest(datasets, 0.8) == 300
    assert expected_smallest(datasets, 0.3) == 50


def test_one_dataset_in_epochs_hits_the_fraction_that_fits():
    dataset = Dataset(12.5, 1000, 10)
    assert [expected([dataset], size) for size in (0, 250, 1000)] == [0, 0.25, 1]


@given(DATASETS, st.integers(2, 5))
def test_putting_the_rest_together_keeps_totals_and_promises_no_more(datasets, limit):
    full, short = densest_first(datasets, 1000), densest_first(datasets, limit)
    assert len(short) <= limit
    assert sum(d.nbytes for d in short) == sum(d.nbytes for d in full)
    capacity = sum(d.nbytes for d in full) // 2
    assert expected(short, capacity) <= expected(full, capacity) + 1e-9


@given(DATASETS, st.floats(0.01, 1.0))
def test_the_smallest_size_is_enough(datasets, target):
    ranked = densest_first(datasets, 1000)
    if ranked:
        size = expected_smallest(ranked, target)
        assert expected(ranked, size) >= target - 1e-9
        assert size <= sum(d.nbytes for d in ranked)


async def test_a_mount_adds_up_what_it_knows_per_dataset():
    keys = {1: b"a/x", 2: b"a/y", 3: b"b/z"}
    usage = SimpleNamespace(
        objects=lambda: [1, 2, 3, 99],
        group_of=lambda key: key[0],
        group_count=lambda group, now: {ord("a"): 8.0, ord("b"): 5.0}[group] * now,
        complete=True,
    )
    catalog = SimpleNamespace(
        inode=lambda ino: (
            Inode(ino, 1, Kind.FILE, 10 * ino, 0, "e", keys[ino]) if ino in keys else None
        )
    )
    assert await popularity(usage, catalog, lambda: 2.0) == {
        "datasets": [
            {"uses": 16.0, "nbytes": 30, "objects": 2},
            {"uses": 10.0, "nbytes": 30, "objects": 1},
        ],
        "complete": True,
    }


@pytest.fixture(scope="module")
def epochs(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "epochs.tct"
    with tracefile.create(path) as file:
        tracefile.write(file, workloads.timed(workloads.permutations(400, 4)))
    return path


def test_size_of_a_trace_in_epochs(epochs):
    arguments = ["--target", "50%", "--target", "0.95", "--policy", "pin", "--jobs", "1", "--json"]
    result = CliRunner().invoke(tiercache, ["size", str(epochs), *arguments])
    report = json.loads(result.stdout)
    assert report["trace"]["uses"] == 1600
    for row in report["rows"]:
        assert row["hit_ratio"] == pytest.approx(row["share"], abs=1e-6)
    half, most = (target["enough"]["capacity"] for target in report["targets"])
    assert half == 200
    assert 380 <= most <= 382
    assert report["notes"] == ["25.0% of the uses are first ones, which miss whatever the size"]


def test_size_as_a_table(epochs):
    result = CliRunner().invoke(
        tiercache, ["size", str(epochs), "--policy", "pin", "--jobs", "1", "--equal-sizes"]
    )
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["200", "objects", "50.0%", "0.5000"] in rows
    assert "95% needs 380 objects, 95.0% of what is used" in result.stdout


def test_size_of_a_trace_without_repeats(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("1,1,5\n2,2,5\n")
    result = CliRunner().invoke(tiercache, ["size", str(path), "--policy", "lru", "--jobs", "1"])
    assert "95% needs" not in result.stdout
    assert "95%: not reached with any size" in result.stdout
    assert "no object is used twice" in result.stdout


def test_size_says_what_is_wrong(epochs, tmp_path, capsys):
    arguments = ["size", str(epochs), "--target", "95", "--target", "0", "--policy", "lur"]
    assert run(tiercache, arguments, "tiercache") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert '"95" is not a share; write "95%" or "0.95"' in lines[0]
    assert run(tiercache, ["size", str(tmp_path)], "tiercache") == 1
    assert capsys.readouterr().err == f"tiercache: {tmp_path} is not a tiercache mount\n"
