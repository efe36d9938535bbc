"""`tiercache config`: what it writes, refuses and explains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiercache.config_origins import setting_lines
from tiercache_cli.main import run, tiercache

GOOD = """\
log_level = "debug"

[origin]
url = "s3://bucket"

[mount]
mountpoint = "/mnt/x"
umask = "027"

[[tier]]
name = "one"
paths = ["{cache}"]

[transfer]
bandwidth = "64MiB"
"""


@pytest.fixture
def good(tmp_path):
    file = tmp_path / "good.toml"
    file.write_text(GOOD.format(cache=tmp_path / "cache"))
    return file


def config(*arguments):
    return run(tiercache, ["config", *map(str, arguments)], "tiercache")


def test_init_writes_the_example_and_never_overwrites(tmp_path, capsys):
    file = tmp_path / "new.toml"
    assert config("init", file) == 0
    example = Path(__file__).parents[2] / "tiercache.example.toml"
    assert file.read_text() == example.read_text()
    file.write_text("mine")
    assert config("init", file) == 1
    assert file.read_text() == "mine"
    assert "exists" in capsys.readouterr().err


def test_init_says_why_it_cannot_write(tmp_path, capsys):
    assert config("init", tmp_path / "absent" / "x.toml") == 1
    assert "cannot be written: No such file" in capsys.readouterr().err


def test_check_accepts_a_good_file(good, capsys):
    assert config("check", good) == 0
    assert capsys.readouterr().out == f"{good}: valid\n"
    assert config("check", good, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "problems": [], "warnings": []}


def test_check_names_every_problem_and_exits_2(tmp_path, capsys):
    file = tmp_path / "bad.toml"
    file.write_text('[origin]\nurl = "s3://b"\nregio = "x"\n[mount]\numask = 9\n')
    assert config("check", file) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "origin.regio",
        "mount.mountpoint",
    ]
    assert config("check", file, "--json") == 2
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], len(answer["problems"])) == (False, 2)


def test_show_says_where_each_value_comes_from(good, capsys):
    assert config("show", good, "-o", "metadata_ttl=5m", "--region", "eu", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["log_level"]["source"] == f"{good}:1"
    assert rows["mount.umask"] == {
        "name": "mount.umask",
        "value": 0o027,
        "text": '"0o027"',
        "source": f"{good}:8",
    }
    assert rows["tier[0].name"]["source"] == f"{good}:11"
    assert rows["transfer.bandwidth"]["text"] == '"64MiB/s"'
    assert (rows["mount.metadata_ttl"]["value"], rows["mount.metadata_ttl"]["source"]) == (
        300.0,
        "-o metadata_ttl",
    )
    assert rows["origin.region"]["source"] == "--region"
    assert rows["mount.uid"]["text"] == "not set"
    assert rows["transfer.threads"]["source"] == "default"


def test_show_without_json_has_one_line_for_each(good, capsys):
    assert config("show", good) == 0
    assert f'mount.umask = "0o027"  # {good}:8' in capsys.readouterr().out.splitlines()


def test_lines_of_several_tiers_are_told_apart():
    lines = setting_lines('[[tier]]\nname="a"\n#name="x"\n[[tier]]\n\nname = "b"\n[ mount ]\nuid=1')
    assert lines == {"tier[0].name": 2, "tier[1].name": 6, "mount.uid": 8}
