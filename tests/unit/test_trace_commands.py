"""`tiercache trace info` and `convert` as a person runs them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from tiercache.simulation import tracefile, workloads
from tiercache.simulation.replay import Access
from tiercache.simulation.traces import Trace
from tiercache_cli.main import run, tiercache


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "t.tct"
    with tracefile.create(path) as file:
        tracefile.write(file, iter([Access(1.8e9, 1, 10, 3), Access(1.8e9 + 2.5, 2, 20, 3)]))
    return path


def test_info(recorded):
    result = CliRunner().invoke(tiercache, ["trace", "info", str(recorded)])
    assert result.output.splitlines() == [
        f"format      tiercache, {recorded.stat().st_size} bytes",
        "time        2027-01-15 08:00:00 UTC and 2.500 s from there",
        "uses        2 of 30 bytes",
        "objects     2 of 30 bytes",
        "used once   2",
        "repeats     0 (0.0%): what a cache can hit at most",
        "groups      1",
    ]


def test_info_as_json_tells_damage(recorded):
    recorded.write_bytes(recorded.read_bytes() + b"torn")
    result = CliRunner().invoke(tiercache, ["trace", "info", str(recorded), "--json"])
    report = json.loads(result.output)
    assert (report["uses"], report["footprint"], report["groups"]) == (2, 30, 1)
    assert "cut off" in report["damage"]


def test_info_of_times_that_are_no_dates(tmp_path):
    path = tmp_path / "t"
    with tracefile.create(path) as file:
        tracefile.write(file, workloads.timed([5, 6]))
    result = CliRunner().invoke(tiercache, ["trace", "info", str(path)])
    assert "time        0.000 s and 1.000 s from there" in result.output


@pytest.mark.parametrize("name", ["t.csv", "t.oracleGeneral", "u.tct"])
def test_convert_there_and_back(recorded, tmp_path, name):
    target, back = tmp_path / name, tmp_path / "back.tct"
    result = CliRunner().invoke(tiercache, ["trace", "convert", str(recorded), str(target)])
    assert result.output == f"{target}: 2 uses\n"
    assert run(tiercache, ["trace", "convert", str(target), str(back)], "tiercache") == 0
    assert [use[1:3] for use in Trace(back)] == [(1, 10), (2, 20)]


def test_convert_says_what_is_wrong(recorded, tmp_path, capsys):
    arguments = ["trace", "convert", str(recorded), str(recorded)]
    assert run(tiercache, arguments, "tiercache") == 1
    assert capsys.readouterr().err == f"tiercache: {recorded}: File exists\n"
