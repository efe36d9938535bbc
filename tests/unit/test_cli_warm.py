"""`tiercache warm`: options as requests to the worker, reports as lines and exit statuses."""

from __future__ import annotations

import json

import pytest

from tiercache.errors import ControlError
from tiercache.prefetch.warm import Fill, Wanted
from tiercache.types import MIB


def report(state="done", *, complete=None, **fields):
    """What the worker says of a fill of `d`; numbers of its survey by their name."""
    found = {
        "job": "7-1",
        "paths": ["d"],
        "manifest": None,
        "check": False,
        "cost": 0.0,
        "where": {},
        "excess_bytes": 0,
        **Fill(None, Wanted()).as_dict(),
        "state": state,
        "complete": state == "done" if complete is None else complete,
    }
    for name, value in fields.items():
        assert name in found or name in found["survey"], name
        (found if name in found else found["survey"])[name] = value
    return found


@pytest.fixture
def filled(mount):
    """A mount whose fills are over as soon as they are asked for."""
    mount.answers = {"warm_start": [report()], "pin": [{"objects": 1}]}
    return mount


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ([], {}),
        (["--rate", "100MiB/s"], {"rate": 100 * MIB}),
        (["--rate", "1GB"], {"rate": 10**9}),
        (["--tier", "hdd"], {"tier": "hdd"}),
        (["--check"], {"check": True}),
        (["--background"], {"watched": False}),
    ],
)
async def test_options_become_one_request(filled, options, changed):
    assert await filled.run("warm", filled.mountpoint / "d", *options) == 0
    usual = {"paths": ["d"], "manifest": None, "rate": 0, "tier": None}
    wanted = {**usual, "check": False, "watched": True, **changed}
    assert filled.asked == [("warm_start", wanted)]


async def test_paths_and_patterns_are_sent_as_they_lie_in_the_mount(filled, monkeypatch):
    monkeypatch.chdir(filled.mountpoint.parent)
    root = filled.mountpoint
    assert await filled.run("warm", root, f"{root}/a*/[0-9].tar", "mnt/./b/../c", "--json") == 0
    [(_, arguments)] = filled.asked
    assert arguments["paths"] == [".", "a*/[0-9].tar", "c"]


async def test_a_manifest_is_named_from_the_root(filled, monkeypatch):
    monkeypatch.chdir(filled.mountpoint.parent)
    assert await filled.run("warm", "--manifest", "x.plan", "--mount", "mnt") == 0
    [(_, arguments)] = filled.asked
    assert (arguments["paths"], arguments["manifest"]) == (
        [],
        str(filled.mountpoint.parent / "x.plan"),
    )


async def test_pins_come_before_the_fill(filled):
    place = filled.mountpoint / "d"
    assert await filled.run("warm", place, "--pin", "--tier", "nvme") == 0
    assert [name for name, _ in filled.asked] == ["pin", "warm_start"]
    assert filled.asked[0][1] == {"paths": ["d"], "tier": "nvme"}
    filled.asked.clear()
    assert await filled.run("warm", place, "--pin", "--check") == 0
    assert [name for name, _ in filled.asked] == ["warm_start"]


async def test_a_fill_is_watched_to_its_end_and_told(mount, capsys):
    missing = {"objects": 3, "bytes": 9 * MIB, "missing_objects": 2, "missing_bytes": 8 * MIB}
    missing |= {"requests": 4, "where": {"nvme": 8 * MIB}, "cost": 0.25}
    mount.answers = {
        "warm_start": [report("surveying", job="7-3")],
        "warm_wait": [
            report("fetching", job="7-3", **missing),
            report("done", job="7-3", fetched_bytes=8 * MIB, **missing),
        ],
    }
    assert await mount.run("warm", mount.mountpoint / "d") == 0
    waits = [arguments for name, arguments in mount.asked if name == "warm_wait"]
    assert [arguments["job"] for arguments in waits] == ["7-3", "7-3"]
    assert all(0 < arguments["wait_s"] < 5 for arguments in waits)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "tiercache: 3 files, 9.0 MiB; 1.0 MiB local",
        "tiercache: to fetch: 2 files, 8.0 MiB in 4 requests, cost 0.25",
        "tiercache: fits: 8.0 MiB to nvme",
        "tiercache: all of it is local",
    ]


@pytest.mark.parametrize(
    ("cost", "text"),
    [(0.0, ""), (0.00042, ", cost 0.0004"), (0.01, ", cost 0.01"), (12.345, ", cost 12.35")],
)
async def test_a_cost_is_never_rounded_away(mount, capsys, cost, text):
    missing = {"missing_objects": 1, "missing_bytes": MIB, "requests": 1, "cost": cost}
    mount.answers = {"warm_start": [report(**missing)]}
    await mount.run("warm", mount.mountpoint / "d")
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == f"tiercache: to fetch: 1 file, 1.0 MiB in 1 request{text}"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"bypassed_bytes": MIB}, "1.0 MiB no tier takes"),
        ({"failed_bytes": MIB, "state": "failed"}, "1.0 MiB could not be fetched"),
        ({"unknown": 2}, "2 names that are no files"),
        ({"archived": 1}, "1 archived files, which must be restored first"),
        ({"state": "failed", "error": "the bucket is gone"}, "the bucket is gone"),
    ],
)
async def test_what_is_not_all_local_then_is_status_1(mount, capsys, fields, words):
    mount.answers = {"warm_start": [report(**fields, complete=False)]}
    assert await mount.run("warm", mount.mountpoint / "d") == 1
    lines = capsys.readouterr().err.splitlines()
    assert f"tiercache: {words}" in lines
    assert "tiercache: 0 B are not local" not in lines


async def test_json_is_one_object_and_nothing_else(mount, capsys):
    last = report(complete=False, unknown=1)
    mount.answers = {"warm_start": [report("surveying")], "warm_wait": [report("fetching"), last]}
    assert await mount.run("warm", mount.mountpoint / "d", "--json") == 1
    said = capsys.readouterr()
    assert (json.loads(said.out), said.err) == (last, "")


async def test_in_the_background(mount, capsys):
    mount.answers = {"warm_start": [report("surveying", job="7-9")]}
    assert await mount.run("warm", mount.mountpoint, "--background") == 0
    said = capsys.readouterr()
    assert said.out == "filling in the background as 7-9; see `tiercache warm --status`\n"
    assert await mount.run("warm", mount.mountpoint, "--background", "--json") == 0
    assert json.loads(capsys.readouterr().out)["job"] == "7-9"
    assert [name for name, _ in mount.asked] == ["warm_start"] * 2


async def test_fills_are_listed(mount, capsys):
    some = report("fetching", missing_bytes=4 * MIB, fetched_bytes=MIB, unknown=1)
    other = report("cancelled", job="7-2", paths=[], manifest="/x.plan")
    mount.answers = {"warm_status": [[some, other], [some], []]}
    assert await mount.run("warm", mount.mountpoint / "any", "--status") == 0
    assert capsys.readouterr().out.splitlines() == [
        "7-1  fetching d: 1.0 MiB of 4.0 MiB fetched; 1 names that are no files",
        "7-2  cancelled /x.plan: 0 B of 0 B fetched",
    ]
    assert await mount.run("warm", "--mount", mount.mountpoint, "--status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [some]
    assert await mount.run("warm", mount.mountpoint, "--status") == 0
    assert capsys.readouterr().out == "no fills\n"
    assert mount.asked == [("warm_status", {})] * 3


async def test_fills_are_cancelled(mount, capsys):
    mount.answers = {"warm_cancel": [2]}
    assert await mount.run("warm", mount.mountpoint, "--cancel") == 0
    assert await mount.run("warm", mount.mountpoint, "--cancel", "--json") == 0
    assert capsys.readouterr().out == '2 fills ended\n{"cancelled": 2}\n'
    assert mount.asked == [("warm_cancel", {})] * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give PATHs inside a mount, or --manifest FILE"),
        (["{mount}/d", "--manifest", "x"], "give PATHs inside a mount, or --manifest FILE"),
        (["--manifest", "x", "--pin"], "--pin takes PATHs"),
        (["{mount}/d", "--rate", "fast"], "Invalid value for '--rate': \"fast\""),
        (["{mount}/d", "--nope"], "No such option"),
    ],
)
async def test_misuse_asks_nothing_and_is_status_2(mount, capsys, arguments, words):
    given = [text.format(mount=mount.mountpoint) for text in arguments]
    assert await mount.run("warm", *given) == 2
    said = capsys.readouterr()
    assert (said.out, mount.asked) == ("", [])
    assert words in said.err


async def test_a_refusal_is_one_line_and_status_1(mount, capsys):
    words = "there is no tier 'ssd'; tiers: nvme, hdd"
    mount.answers = {"warm_start": [ControlError(words)]}
    assert await mount.run("warm", mount.mountpoint / "d", "--tier", "ssd", "--json") == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"tiercache: {mount.mountpoint}: {words}\n")


async def test_what_is_not_mounted_is_one_line_and_status_1(mount, tmp_path, capsys):
    assert await mount.run("warm", tmp_path) == 1
    assert await mount.run("warm", mount.mountpoint / "d", tmp_path / "mnt2") == 1
    assert await mount.run("warm", "--manifest", "x", "--mount", mount.mountpoint / "d") == 1
    assert capsys.readouterr().err.splitlines() == [
        f"tiercache: {tmp_path} is not inside a tiercache mount",
        f"tiercache: {tmp_path}/mnt2 is not inside a tiercache mount",
        f"tiercache: {mount.mountpoint}/d is not a tiercache mount",
    ]
    assert mount.asked == []


async def test_a_worker_that_does_not_listen_is_one_line_and_status_1(unheard, capsys):
    assert await unheard.run("warm", unheard.mountpoint) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tiercache: {unheard.mountpoint}: ")
    assert line.endswith("No such file or directory")


async def test_a_worker_that_was_restarted_is_asked_anew(mount, capsys):
    mount.answers = {
        "warm_start": [report("surveying"), report("surveying", job="8-1")],
        "warm_wait": [{"job": "7-1", "state": "unknown"}, report("done", job="8-1")],
    }
    assert await mount.run("warm", mount.mountpoint / "d", "--rate", "1MiB") == 0
    starts = [arguments for name, arguments in mount.asked if name == "warm_start"]
    assert len(starts) == 2
    assert starts[0] == starts[1]
    assert mount.asked[-1][1]["job"] == "8-1"
    assert "the worker of the mount restarted; resuming" in capsys.readouterr().err


async def test_a_worker_that_never_stays_is_given_up(mount, capsys):
    mount.answers = {
        "warm_start": [report("surveying")],
        "warm_wait": [{"job": "7-1", "state": "unknown"}],
    }
    assert await mount.run("warm", mount.mountpoint / "d", "--json") == 1
    assert len(mount.asked) <= 20
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"tiercache: {mount.mountpoint}: the worker restarts all the time"


async def test_a_mount_that_goes_away_ends_the_command(mount, capsys):
    def go():
        mount.holder.kill()
        mount.holder.wait()
        raise ControlError("going away")

    mount.answers = {"warm_start": [report("surveying")], "warm_wait": [go]}
    assert await mount.run("warm", mount.mountpoint / "d") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("the mount went away; run it again to resume")
