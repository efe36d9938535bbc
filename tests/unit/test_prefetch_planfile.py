"""Plan files and manifests: what is understood, and hostile lines."""

from __future__ import annotations

import json
import os

import pytest

from tiercache.errors import PlanError
from tiercache.prefetch.plan import PlanItem
from tiercache.prefetch.planfile import LINE_MAX, items, parse


@pytest.mark.parametrize(
    ("line", "item"),
    [
        (b"a/b\n", PlanItem(b"a/b")),
        (b"a b \r\n", PlanItem(b"a b ")),
        (b"/mnt/x/a\n", PlanItem(b"a")),
        (b"/mnt/xy/a\n", PlanItem(b"mnt/xy/a")),
        (b"./#a", PlanItem(b"#a")),
        (b"./{a", PlanItem(b"{a")),
        (b"\xff\xfe", PlanItem(b"\xff\xfe")),
        (b"a\t5\t7\n", PlanItem(b"a", 5, 12)),
        (b'{"path": "a\\tb\\n"}', PlanItem(b"a\tb\n")),
        (b'{"path": "a", "offset": 5}', PlanItem(b"a", 5)),
        (b'{"path": "a", "offset": 5, "length": 7}', PlanItem(b"a", 5, 12)),
    ],
)
def test_one_entry(line, item):
    assert list(parse([b"# what\n", b"\n", line], b"/mnt/x")) == [item]


@pytest.mark.parametrize(
    "line",
    [
        b"a\t1\n",
        b"a\t1\t2\t3\n",
        b"a\t-1\t2\n",
        b"a\t1\t0\n",
        b"a\t99999999999999999999999\t1\n",
        b"\t1\t2\n",
        b"/\n",
        b"a/../b\n",
        b"a\0b\n",
        b"a" * 5000,
        b"a" * (LINE_MAX + 1),
        b"{\n",
        b"{" * 60000,
        b'{"a": ' * 10000,
        b'{"path": 1}',
        b'{"path": ""}',
        b'{"path": "a", "offset": true}',
        b'{"path": "a", "offset": 1.5}',
        b'{"path": "a", "length": 0}',
        b'{"path": "a", "offset": -1}',
        b'{"path": "a", "size": 1}',
        b'{"path": "\\ud800"}',
        b'{"path": "a", "offset": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_hostile_line_is_named_in_one_line(line):
    with pytest.raises(PlanError, match=r"^line 2: ") as raised:
        list(parse([b"ok\n", line]))
    assert len(str(raised.value).splitlines()) == 1
    assert len(str(raised.value)) < 300


def test_a_file_with_too_many_entries(tmp_path):
    file = tmp_path / "plan"
    file.write_text("a\nb\nc\n")
    assert len(list(items(file, tmp_path, 3))) == 3
    with pytest.raises(PlanError, match="more than 2 entries"):
        list(items(file, tmp_path, 2))


def test_only_regular_files(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "none", "."):
        with pytest.raises(PlanError):
            list(items(tmp_path / name, tmp_path, 1))


def test_json_as_written_by_json_dumps(tmp_path):
    name = os.fsdecode(b"\xff/\t")
    assert list(parse([json.dumps({"path": name}).encode()])) == [PlanItem(b"\xff/\t")]
