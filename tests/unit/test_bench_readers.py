"""The reading loops notice what would make a wrong reader look fast."""

import json
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter

import pytest

from bench import hot
from bench.__main__ import main
from bench.machine import facts, filesystem
from bench.readers import (
    PAGE,
    ShortReadError,
    parallel_files,
    random_direct,
    sequential,
    side_by_side,
    streams_at_once,
    touch_pages,
    touched_buffer,
    whole_files,
)
from bench.rows import Pair, Row
from bench.workspace import SCALES, Dataset, Scale, verify_tree, workspace, write_tree
from tiercache.types import MIB

TINY = Scale("tiny", 2 * MIB, 5, 3000, 2, 16, 5, MIB, 4)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    write_tree(Dataset(TINY), root)
    return root


def test_every_reader_gives_a_rate(tree):
    buffer = touched_buffer(MIB)
    assert sequential(f"{tree}/big.bin", buffer) > 0
    assert random_direct(f"{tree}/big.bin", [0, PAGE], touched_buffer(PAGE)) > 0
    assert touch_pages(f"{tree}/big.bin", itemgetter(0, PAGE), 2) > 0
    paths = [f"{tree}/{name}" for name in Dataset(TINY).small_names()]
    assert whole_files(paths, TINY.small_size, buffer) > 0
    assert parallel_files(paths, TINY.small_size, 3) > 0
    assert streams_at_once(paths, buffer) > 0


def test_short_reads_are_refused(tree, tmp_path):
    (tmp_path / "short").write_bytes(b"x" * 100)
    with pytest.raises(ShortReadError, match="100 of 3000"):
        whole_files([str(tmp_path / "short")], 3000, touched_buffer(PAGE))
    with pytest.raises(ShortReadError, match="100 of 3000"):
        parallel_files([str(tmp_path / "short")] * 2, 3000, 2)
    with pytest.raises(ShortReadError):
        random_direct(f"{tree}/big.bin", [2 * MIB], touched_buffer(PAGE))


def test_streams_at_once_are_all_open_until_the_last_is_read(tmp_path):
    """Pipes: each is fed only after every one of them was opened."""
    paths = [tmp_path / str(number) for number in range(20)]
    for path in paths:
        os.mkfifo(path)

    def feed():
        ends = [path.open("wb", buffering=0) for path in paths]
        for end in ends:
            end.write(b"x" * 1000)
        for end in ends:
            end.close()

    with ThreadPoolExecutor(1) as pool:
        fed = pool.submit(feed)
        with pytest.raises(ShortReadError, match="1000 of 0 bytes"):
            streams_at_once([str(path) for path in paths], touched_buffer(PAGE))
        fed.result()


def test_a_run_that_is_stopped_does_not_wait_for_its_readers(tmp_path):
    """A reader that would never end, and a signal for us once it has begun."""
    begun = multiprocessing.get_context("fork").Event()

    def job():
        begun.set()
        signal.pause()

    def stop(*_):
        raise InterruptedError

    def interrupt():
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(interrupt)
            with pytest.raises(InterruptedError):
                side_by_side([lambda: job])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("damage", ["flip", "cut", "grow"])
def test_verification_sees_each_kind_of_damage(tmp_path, damage):
    dataset = Dataset(TINY)
    write_tree(dataset, tmp_path)
    verify_tree(dataset, tmp_path)
    victim = tmp_path / dataset.small_names()[3]
    data = victim.read_bytes()
    damaged = {"flip": b"\0" + data[1:], "cut": data[:-1], "grow": data + b"\0"}[damage]
    victim.write_bytes(damaged)
    with pytest.raises(ValueError, match="000003"):
        verify_tree(dataset, tmp_path)


def test_hot_rows_have_the_names_and_goals_of_the_contract(tree):
    rows = list(hot.measure(Dataset(TINY), tree, tree, 5))
    assert {row.name: row.goal for row in rows} == {
        "hot.sequential": 0.95,
        "hot.random-4k": 0.95,
        "hot.mmap": 0.95,
        "hot.small-files": 0.45,
    }
    assert all(len(row.pairs) == 5 for row in rows)


def test_hot_rows_that_are_asked_for_read_their_own_files_only(tmp_path):
    dataset = Dataset(TINY, parts=hot.parts({"hot.small-files"}))
    write_tree(dataset, tmp_path)
    [row] = hot.measure(dataset, tmp_path, tmp_path, 5, {"hot.small-files"})
    assert row.name == "hot.small-files"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small"]


def test_offsets_are_aligned_inside_the_file_and_the_same_in_every_run():
    offsets = hot.direct_offsets(TINY)
    assert offsets == hot.direct_offsets(TINY)
    assert all(offset % PAGE == 0 and offset + PAGE <= TINY.big_size for offset in offsets)
    pages = [place // PAGE for place in hot.page_places(TINY)]
    assert sorted(pages) == list(range(TINY.big_size // PAGE))
    assert pages != sorted(pages)


def test_scales_allow_a_median(tmp_path):
    assert all(scale.rounds >= 5 for scale in SCALES.values())
    assert SCALES["full"].big_size == 1 << 30
    assert SCALES["full"].small_count >= 2000
    with workspace(tmp_path, needed=1) as path:
        (path / "file").write_bytes(b"x")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small_is_refused(tmp_path):
    with pytest.raises(OSError, match="GiB free"), workspace(tmp_path, needed=1 << 60):
        pass


def test_machine_facts_are_json(tmp_path):
    found = json.loads(json.dumps(facts(tmp_path)))
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert {"kernel", "python", "load", "memory"} <= found.keys()
    assert filesystem(tmp_path) != "unknown"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "choose from"),
        (["hot", "--rounds", "3"], "fewer than 5"),
        ([], "required"),
        (["hot", "--only", "hot.mmap,cold.tls"], "'cold.tls'; there are: hot.sequential hot.ran"),
        (["policy", "--only", "policy.mixed"], "--only is for hot and cold"),
        (["all", "--only", "hot"], "--only is for hot and cold"),
        (["hot", "--json", "/dev/null"], "is not a file that can be replaced"),
    ],
)
def test_wrong_usage_exits_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_plot_is_a_png(tmp_path):
    pytest.importorskip("PIL", reason="charts are drawn with Pillow")
    from bench.plot import axis_end, draw

    rows = [
        Row("hot.a", "B/s", "native", 0.95, [Pair(9, 10), Pair(13, 10)]),
        Row("hot.b", "IO/s", "native", None, [Pair(1, 10)]),
    ]
    assert axis_end(rows) == 1.5
    draw(rows, "hot", tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
