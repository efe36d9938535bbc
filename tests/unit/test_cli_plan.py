"""`tiercache plan`: options as requests to the worker, its answers as lines and exit statuses."""

from __future__ import annotations

import json

import pytest

from tiercache.errors import PlanError

REPORT = {
    "file": "/x.plan",
    "entries": 30,
    "position": 0,
    "kept_position": 0,
    "done": False,
    "ahead_bytes": 0,
    "window": 1 << 20,
    "skipped": 0,
    "unplanned": 0,
    "unknown": 0,
    "unknown_paths": [],
}


@pytest.fixture
def planned(mount, monkeypatch):
    """A mount that follows whatever it is told; relative paths are beside its mount point."""
    mount.answers = {f"plan_{name}": [REPORT] for name in ("follow", "status", "clear")}
    monkeypatch.chdir(mount.mountpoint.parent)
    return mount


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["x.plan", "mnt"], ("plan_follow", {"file": "{here}/x.plan"})),
        (["/a/b", "mnt", "--json"], ("plan_follow", {"file": "/a/b"})),
        (["--status", "mnt"], ("plan_status", {})),
        (["mnt", "--clear"], ("plan_clear", {})),
    ],
)
async def test_options_become_one_request(planned, arguments, asked):
    assert await planned.run("plan", *arguments) == 0
    name, wanted = asked
    here = planned.mountpoint.parent
    wanted = {key: value.format(here=here) for key, value in wanted.items()}
    assert planned.asked == [(name, wanted)]


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        ({}, ["/x.plan: 0 of 30 read"]),
        ({"position": 30, "done": True}, ["/x.plan: 30 of 30 read, all read"]),
        (
            {
                "position": 9,
                "skipped": 4,
                "unplanned": 2,
                "unknown": 3,
                "unknown_paths": ["a", "b"],
            },
            [
                "/x.plan: 9 of 30 read",
                "  4 passed over",
                "  2 opens outside the plan",
                "  3 names that are no files",
                "    a",
                "    b",
            ],
        ),
    ],
    ids=["new", "done", "troubles"],
)
async def test_how_far_readers_are_in_lines(planned, capsys, changed, lines):
    planned.answers["plan_status"] = [{**REPORT, **changed}]
    assert await planned.run("plan", "--status", "mnt") == 0
    said = capsys.readouterr()
    assert (said.out.splitlines(), said.err) == (lines, "")


async def test_json_is_what_the_worker_says(planned, capsys):
    for option in ("--status", "--clear"):
        planned.answers["plan_clear"] = [{"file": None}]
        assert await planned.run("plan", option, "mnt", "--json") == 0
    decoder, text = json.JSONDecoder(), capsys.readouterr().out
    first, end = decoder.raw_decode(text)
    assert (first, json.loads(text[end:])) == (REPORT, {"file": None})


async def test_without_a_plan(planned, capsys):
    planned.answers["plan_clear"] = [{"file": None}]
    assert await planned.run("plan", "--clear", "mnt") == 0
    assert capsys.readouterr().out == "no plan\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give FILE, --clear or --status"),
        (["--clear", "--status", "mnt"], "--clear or --status, not both"),
        (["x.plan", "mnt", "--status"], "with --clear or --status give MOUNTPOINT alone"),
        (["x.plan", "mnt", "more"], "Got unexpected extra argument (more)"),
    ],
)
async def test_misuse_asks_nothing_and_is_status_2(planned, capsys, arguments, words):
    assert await planned.run("plan", *arguments) == 2
    said = capsys.readouterr()
    assert (said.out, planned.asked) == ("", [])
    assert words in said.err


async def test_a_refusal_is_one_line_and_status_1(planned, capsys):
    planned.answers["plan_follow"] = [PlanError("/x.plan: line 2: no length")]
    assert await planned.run("plan", "/x.plan", "mnt", "--json") == 1
    said = capsys.readouterr()
    words = f"tiercache: {planned.mountpoint}: /x.plan: line 2: no length\n"
    assert (said.out, said.err) == ("", words)


async def test_what_is_not_mounted_is_one_line_and_status_1(planned, tmp_path, capsys):
    assert await planned.run("plan", "x.plan", tmp_path) == 1
    assert await planned.run("plan", "--status", "mnt/below") == 1
    assert capsys.readouterr().err.splitlines() == [
        f"tiercache: {tmp_path} is not a tiercache mount",
        f"tiercache: {planned.mountpoint}/below is not a tiercache mount",
    ]
    assert planned.asked == []
