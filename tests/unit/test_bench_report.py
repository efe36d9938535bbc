"""A report keeps every row as soon as it is there."""

import json

import pytest

from bench.report import Report
from bench.rows import Pair, Row

ROWS = [Row(f"hot.{name}", "B/s", "native", None, [Pair(1, 2)]) for name in "ab"]


def names(file):
    found = json.loads(file.read_text())
    return [row["name"] for row in found["rows"]], found["complete"]


def test_the_file_grows_row_by_row_and_says_whether_it_is_complete(tmp_path, capsys):
    file = tmp_path / "report.json"
    report = Report("hot", {"cores": 2}, "small", file)
    assert names(file) == ([], False)
    report.add(ROWS[0])
    assert names(file) == (["hot.a"], False)
    report.add(ROWS[1])
    assert names(file) == (["hot.a", "hot.b"], False)
    report.finish()
    assert names(file) == (["hot.a", "hot.b"], True)
    assert file.read_text() == report.text() + "\n"
    assert list(tmp_path.iterdir()) == [file]
    said = capsys.readouterr()
    assert [line.split(":")[1] for line in said.err.splitlines()] == [" hot.a", " hot.b"]
    assert said.out == ""


def test_a_reader_of_the_file_never_meets_half_of_it(tmp_path):
    """Whoever opened it before a row came keeps the report as it was."""
    file = tmp_path / "report.json"
    report = Report("hot", {}, "small", file)
    with file.open() as opened:
        report.add(ROWS[0])
        assert json.loads(opened.read())["rows"] == []
    assert names(file) == (["hot.a"], False)


def test_a_link_to_the_file_stays_one(tmp_path):
    (tmp_path / "link").symlink_to("file")
    Report("hot", {}, "small", tmp_path / "link").finish()
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "file") == ([], True)


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path):
    with pytest.raises(FileNotFoundError):
        Report("hot", {}, "small", tmp_path / "gone" / "report.json")
