"""`tiercache simulate` as a person runs it, on generated traces."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tiercache.simulation import tracefile, workloads
from tiercache.simulation.jobs import Outcome
from tiercache.simulation.replay import Counts


def shell(*arguments):
    return subprocess.run(
        [sys.executable, "-P", "-m", "tiercache_cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=110,
        check=False,
    )


@pytest.fixture(scope="module")
def epochs(tmp_path_factory):
    """Five shuffled epochs over 1000 objects of 1000 bytes."""
    path = tmp_path_factory.mktemp("traces") / "epochs.tct"
    accesses = workloads.timed(workloads.permutations(1000, 5))
    with tracefile.create(path) as file:
        tracefile.write(file, (access._replace(size=1000) for access in accesses))
    return path


def test_simulate_as_json(epochs):
    found = shell(
        *("simulate", epochs, "--policy", "pin", "--policy", "lru", "--policy", "pin"),
        *("--capacity", "50%", "--capacity", "250kB", "--skip", "1000", "--jobs", "2", "--json"),
    )
    assert (found.returncode, found.stderr) == (0, "")
    report = json.loads(found.stdout)
    assert report["trace"] | {"path": ""} == {
        "path": "",
        "format": "tiercache",
        "damage": None,
        "uses": 5000,
        "skipped": 1000,
        "objects": 1000,
        "footprint": 1_000_000,
        "equal_sizes": False,
    }
    ratios = {(row["policy"], row["capacity"]): row["hit_ratio"] for row in report["rows"]}
    assert list(ratios) == [
        *(("pin", 250_000), ("pin", 500_000), ("lru", 250_000), ("lru", 500_000)),
        *(("belady", 250_000), ("belady", 500_000), ("unbounded", None)),
    ]
    assert ratios["pin", 250_000] == ratios["belady", 250_000] == 0.25
    assert ratios["pin", 500_000] == ratios["belady", 500_000] == 0.5
    assert ratios["lru", 500_000] == pytest.approx(0.1534, abs=0.02)
    assert ratios["unbounded", None] == 1.0


def test_simulate_as_a_table(epochs):
    found = shell("simulate", epochs, "--all", "--capacity", "500", "--equal-sizes")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert lines[0] == f"{epochs}: 5,000 uses, 1,000 objects"
    assert [line.split()[0] for line in lines[-2:]] == ["belady", "unbounded"]
    assert ["pin", "0.4000"] in map(str.split, lines)
    assert "bytes hit" not in found.stdout


def test_parameters_reach_the_policy(tmp_path):
    path = tmp_path / "t.csv"
    order = [1, 2, 3, 1, 1, 2]
    path.write_text("".join(f"{time},{item},1\n" for time, item in enumerate(order)))
    hits = []
    for bypass in ("0", "1"):
        arguments = ("--policy=belady", "--capacity=1", f"--set=belady.bypass={bypass}", "--json")
        found = shell("simulate", path, *arguments)
        hits.append(json.loads(found.stdout)["rows"][0]["evictions"])
    assert hits[0] > hits[1]


def test_every_problem_at_once(epochs, tmp_path):
    found = shell(
        *("simulate", epochs, "--policy", "lur", "--policy", "pkg.missing:Class"),
        *("--capacity", "0", "--capacity", "12Q", "--capacity", "150%"),
        *("--set", "pin.x=1", "--set", "lur", "--set", "belady.bypass=7"),
        *("--plot", tmp_path / "no" / "chart.png"),
    )
    assert (found.returncode, found.stdout) == (2, "")
    lines = found.stderr.splitlines()
    words = (
        "'pin' is not among the policies to run",
        '"lur" is not POLICY.NAME=VALUE',
        "policy 'lur' is not installed; did you mean 'lru'?",
        "cannot load 'pkg.missing:Class'",
        "belady.bypass: 7 is not from 0 to 1",
        '"0" is too small',
        '"12Q" is not a size',
        '"150%" is not a share',
        "no such directory",
    )
    assert len(lines) == len(words)
    assert all(any(word in line for line in lines) for word in words)
    assert all(line.startswith("tiercache: ") for line in lines)


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (None, 1, "No such file or directory"),
        (b"\x00" * 7, 1, "not a trace; known formats: tiercache, csv, oracleGeneral"),
        (b"1,2,3\n1,2,x\n", 1, "line 2: size 'x' is not a number of bytes"),
        (b"time,id,size\n", 1, "no use is recorded in it"),
    ],
)
def test_traces_that_cannot_be_read(tmp_path, content, status, words):
    path = tmp_path / "t"
    if content is not None:
        path.write_bytes(content)
    found = shell("simulate", path, "--policy", "lru")
    assert (found.returncode, found.stdout) == (status, "")
    assert found.stderr == f"tiercache: {path}: {words}\n"


def test_skipping_everything_is_refused(epochs):
    found = shell("simulate", epochs, "--skip", "5000")
    assert found.returncode == 2
    assert "so none would be counted" in found.stderr


def test_a_torn_trace_is_used_as_far_as_it_goes(epochs, tmp_path):
    path = tmp_path / "torn.tct"
    path.write_bytes(epochs.read_bytes()[:-1])
    found = shell("simulate", path, "--policy", "lru", "--json", "--jobs", "1")
    assert found.returncode == 0
    assert json.loads(found.stdout)["trace"]["uses"] == 4096
    assert found.stderr.count("\n") == 1
    assert "cut off" in found.stderr


def test_the_chart_has_a_curve_per_policy(epochs, tmp_path):
    image = pytest.importorskip("PIL.Image")
    chart = tmp_path / "chart.png"
    found = shell("simulate", epochs, "--policy", "pin", "--policy", "lru", "--plot", chart)
    assert found.returncode == 0, found.stderr
    with image.open(chart) as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert {(0xC5, 0x30, 0x30), (0x2B, 0x6C, 0xB0), (0x1F, 0x29, 0x33)} <= colours


def test_points_of_the_curves():
    pytest.importorskip("PIL")
    from tiercache_cli.curves import curves

    def outcome(policy, capacity, hits):
        return Outcome(policy, capacity, Counts(uses=10, hits=hits), 0.0)

    found = curves([outcome("unbounded", 99, 8), outcome("lru", 50, 5), outcome("lru", 10, 2)], 100)
    assert list(found.items()) == [
        ("lru", [(0.1, 0.8), (0.5, 0.5)]),
        ("unbounded", [(0.0, pytest.approx(0.2)), (1.0, pytest.approx(0.2))]),
    ]


def test_names_in_a_trace_cannot_colour_a_terminal(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"1,\x1b[31mred,3\n2,\x1b[31mred,3\n")
    found = shell("simulate", path, "--policy", "lru", "--format", "csv")
    assert found.returncode == 0, found.stderr
    assert "\x1b" not in found.stdout + found.stderr


def test_policies_of_others_are_named_by_their_class(epochs):
    found = shell(
        *("simulate", epochs, "--policy", "tiercache_policies.pin:Pin"),
        *("--capacity", "50%", "--json", "--jobs", "1"),
    )
    assert json.loads(found.stdout)["rows"][0]["hits"] == 2000
