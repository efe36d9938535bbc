"""Rows that are asked for by name, and what of the dataset they need."""

import pytest

from bench.cold_memory import resident_peak
from bench.cold_rows import ROWS, parts, usual
from bench.selection import SelectionError, select
from bench.workspace import BIG, MANY, SCALES, SMALL, STREAMS, Dataset, content

NAMES = ["cold.link.plan", "cold.link.plan.busy", "cold.sequential", "cold.streams"]


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["cold.sequential"], {"cold.sequential"}),
        (["cold.link"], {"cold.link.plan", "cold.link.plan.busy"}),
        (["cold.link.plan"], {"cold.link.plan"}),
        (["cold.link.plan.*"], {"cold.link.plan.busy"}),
        (["*.streams", "cold.se"], {"cold.streams", "cold.sequential"}),
        (["*"], set(NAMES)),
    ],
)
def test_rows_by_name_beginning_and_pattern(patterns, chosen):
    assert select(NAMES, patterns) == chosen


@pytest.mark.parametrize("wrong", ["sequential", "cold.x*", "COLD.STREAMS", ""])
def test_a_pattern_that_names_no_row_is_told_with_all_rows(wrong):
    with pytest.raises(SelectionError) as caught:
        select(NAMES, ["cold.streams", wrong])
    assert str(caught.value) == f"no row is named {wrong!r}; there are: {' '.join(NAMES)}"


@pytest.mark.parametrize(
    ("pattern", "needed"),
    [
        ("cold.cpu", {BIG}),
        ("cold.memory", {MANY}),
        ("cold.link.*", {BIG, SMALL, STREAMS}),
        ("peer.s3fs.small-files", {SMALL}),
        ("peer", {BIG, SMALL}),
    ],
)
def test_only_files_that_the_rows_read_are_made(pattern, needed):
    dataset = Dataset(SCALES["small"], 8, parts(select(tuple(ROWS), [pattern])))
    assert {name.split("/")[0] for name in dataset.sizes()} == needed


def test_no_two_files_hold_the_same():
    dataset = Dataset(SCALES["full"], 8, frozenset({BIG, SMALL, STREAMS, MANY}))
    seeds = [dataset.seed(name) for name in dataset.sizes()]
    assert len(seeds) == len(set(seeds)) == 1 + 2000 + 8 + 300
    starts = {content(0, 64, seed) for seed in seeds}
    assert len(starts) == len(seeds)


def test_other_file_systems_are_no_part_of_a_smoke_test():
    assert {name.split(".")[0] for name in usual(SCALES["small"])} == {"cold"}
    assert usual(SCALES["full"]) == set(ROWS)


def test_the_most_memory_that_a_process_had():
    assert resident_peak("Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t   2048 kB\nVmRSS:\t 7 kB\n") == 2 << 20
