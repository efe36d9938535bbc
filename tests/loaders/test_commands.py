"""`tiercache demo` and `python -m bench` as a person runs them, in small."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tiercache.fuse.mountpoint import mount_table
from tiercache.testing.mounting import COMMAND

pytestmark = pytest.mark.mount

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def leftovers(tmp_path):
    """Below TMPDIR of the command nothing may be left: no file, no mount, no process."""
    home = tmp_path / "tmp"
    home.mkdir()
    yield home
    assert [str(m.mountpoint) for m in mount_table() if m.mountpoint.is_relative_to(home)] == []
    assert [p.pid for p in psutil.process_iter(["cmdline"]) if mentions(p, home)] == []
    assert list(home.iterdir()) == []


def mentions(process, path):
    return any(str(path) in part for part in process.info["cmdline"] or ())


def start(command, home):
    return subprocess.Popen(
        # Whoever runs the tests in the background has them ignore Ctrl-C.
        ["env", "--default-signal=INT", *command],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process, timeout_s=110):
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
        process.wait()
    return out, err


@pytest.mark.parametrize("driver", ["kernel", "libfuse"])
def test_demo_reads_every_byte_and_leaves_nothing_behind(leftovers, driver):
    for module in ("numpy", "PIL", "pyarrow"):
        pytest.importorskip(module, reason="extra `demo`")
    process = start([*COMMAND, "demo", "--size=4MB", f"--driver={driver}", "--json"], leftovers)
    out, err = finish(process)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert result["ok"]
    assert result["driver"] == driver
    cold, warm = result["epochs"]
    assert cold["samples"] == warm["samples"] == result["samples"]
    assert cold["origin_bytes"] >= 0.9 * result["bytes"]
    assert warm["origin_bytes"] == 0
    assert result["checked_bytes"] == result["bytes"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_interrupted_leaves_nothing_behind(leftovers, number):
    for module in ("numpy", "PIL", "pyarrow"):
        pytest.importorskip(module, reason="extra `demo`")
    process = start([*COMMAND, "demo", "--size=2MB", "--keep"], leftovers)
    for line in process.stderr:
        if "stays mounted" in line:
            break
    process.send_signal(number)
    out, err = finish(process)
    assert process.returncode == 0, err
    assert "each byte is as stored" in out


def test_demo_interrupted_half_way_leaves_nothing_behind(leftovers):
    for module in ("numpy", "PIL", "pyarrow"):
        pytest.importorskip(module, reason="extra `demo`")
    process = start([*COMMAND, "demo", "--size=2MB"], leftovers)
    for line in process.stderr:
        if "Making and storing" in line:  # so it is about to mount
            break
    process.send_signal(signal.SIGINT)
    finish(process)
    assert process.returncode == 130


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["hot", pytest.param("cold", marks=pytest.mark.slow)])
def test_bench_in_small(leftovers, name):
    command = [sys.executable, "-m", "bench", name, "--scale=small", "--json=-"]
    process = start([*command, f"--dir={leftovers}"], leftovers)
    out, err = finish(process, timeout_s=280)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert (result["bench"], result["complete"]) == (name, True)
    expected = {
        "hot": ["hot.sequential", "hot.random-4k", "hot.mmap", "hot.small-files"],
        "cold": [
            *("cold.sequential", "cold.streams", "cold.small-files", "cold.cpu"),
            *("cold.random-64k.useful", "cold.link.sequential", "cold.link.streams"),
            *("cold.link.small-files", "cold.link.plan", "cold.link.plan.busy", "cold.memory"),
        ],
    }
    assert set(expected[name]) <= {row["name"] for row in result["rows"]}
    for row in result["rows"]:
        assert len(row["samples"]) >= 5
        assert row["ratio"] > 0


def rows(report):
    found = json.loads(report.read_text())
    return [row["name"] for row in found["rows"]], found["complete"]


def test_bench_measures_what_is_asked_for(leftovers, tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "bench", "cold", "--only=cold.cpu", "--scale=small"]
    process = start([*command, f"--json={report}", f"--dir={leftovers}"], leftovers)
    out, err = finish(process)
    assert process.returncode == 0, err
    assert rows(report) == (["cold.cpu"], True)
    assert [line.split()[0] for line in out.splitlines()] == ["row", "cold.cpu"]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_bench_that_is_stopped_keeps_what_it_measured(leftovers, tmp_path, number):
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "bench", "cold", "--only=cold.small-files,cold.memory"]
    process = start(
        [*command, "--scale=small", f"--json={report}", f"--dir={leftovers}"], leftovers
    )
    for line in process.stderr:
        if line.startswith("bench: cold.memory, "):
            break
    assert rows(report) == (["cold.small-files"], False)
    process.send_signal(number)
    out, err = finish(process)
    assert process.returncode == 1, err
    assert "stopped; what was measured is kept" in err
    assert rows(report) == (["cold.small-files"], False)
    assert [line.split()[0] for line in out.splitlines()] == ["row", "cold.small-files"]
