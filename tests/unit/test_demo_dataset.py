"""The demo's dataset and the loader that reads it, over a plain directory."""

import ast
import json
import tarfile
from dataclasses import asdict

import pytest

pytest.importorskip("numpy", reason="extra `demo`")
pytest.importorskip("PIL", reason="extra `demo`")
pytest.importorskip("pyarrow", reason="extra `demo`")

from tiercache_cli.demo import loader
from tiercache_cli.demo.dataset import Manifest, plan
from tiercache_cli.demo.reader import PROGRAM, Reader, ReaderError

SIZE = 3_000_000


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    home = tmp_path_factory.mktemp("demo")
    manifest = Manifest()
    for part in plan(SIZE):
        built = part.build()
        manifest.add(part.key, built)
        path = home / "root" / part.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(built.data)
    (home / "manifest.json").write_text(json.dumps(asdict(manifest)))
    return home, manifest


def read_all(root):
    return [sample for unit in loader.find_units(str(root)) for sample in unit.read()]


def test_the_dataset_has_all_four_shapes_and_about_the_size(stored):
    home, manifest = stored
    assert 0.7 * SIZE < manifest.size < 1.3 * SIZE
    assert {key.partition("/")[0] for key in manifest.files} == {
        *("shards", "images", "tokens", "tables")
    }
    with tarfile.open(home / "root/shards/train-000000.tar") as tar:
        assert tar.getnames()[:2] == ["000000.jpg", "000000.cls"]
    jpeg = (home / "root/images/class_00/000000.jpg").read_bytes()
    assert jpeg.startswith(b"\xff\xd8")
    assert 80_000 < len(jpeg) < 140_000


def test_every_object_is_the_same_when_made_again(stored):
    _, manifest = stored
    again = Manifest()
    for part in plan(SIZE):
        again.add(part.key, part.build())
    assert again == manifest


def test_the_loader_reads_exactly_the_samples_that_were_stored(stored):
    home, manifest = stored
    found = loader.check_epoch(read_all(home / "root"), manifest.samples)
    assert (found["wrong"], found["missing"]) == ([], [])
    assert found["samples"] == len(manifest.samples)
    files = loader.check_files(str(home / "root"), manifest.files)
    assert files == {
        "files": len(manifest.files),
        "bytes": manifest.size,
        "wrong": [],
        "missing": [],
    }


@pytest.mark.parametrize("shape", ["shards", "images", "tokens"])
def test_one_wrong_byte_is_found(stored, shape):
    home, manifest = stored
    key = next(key for key in manifest.files if key.startswith(shape))
    path = home / "root" / key
    good = path.read_bytes()
    middle = len(good) // 2
    path.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
    try:
        assert len(loader.check_epoch(read_all(home / "root"), manifest.samples)["wrong"]) == 1
        assert loader.check_files(str(home / "root"), manifest.files)["wrong"] == [key]
    finally:
        path.write_bytes(good)


def test_missing_and_doubled_samples_are_found(stored):
    home, manifest = stored
    samples = read_all(home / "root")
    found = loader.check_epoch([*samples[1:], samples[1]], manifest.samples)
    assert found["missing"] == [samples[0].id]
    assert found["wrong"] == [samples[1].id]


def test_the_loader_imports_nothing_of_tiercache():
    tree = ast.parse(PROGRAM.read_text())
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or "."]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported
    assert not [name for name in imported if name.startswith(("tiercache", "."))]


def test_the_plain_loader_gives_the_same_samples(stored):
    home, manifest = stored
    epochs = loader.PlainEpochs(loader.find_units(str(home / "root")), 2)
    for number in (1, 2):
        found = loader.check_epoch(epochs.epoch(number), manifest.samples)
        assert (found["wrong"], found["missing"]) == ([], [])
    epochs.end()


def test_the_program_runs_step_by_step(stored, tmp_path):
    home, manifest = stored
    files = home / "root", home / "manifest.json"
    reader = Reader(*files, epochs=1, workers=2, log=tmp_path / "log")
    try:
        assert reader.expect("ready", 100.0)["units"] == len(loader.find_units(str(files[0])))
        reader.proceed()
        epoch = reader.expect("epoch", 100.0)
        assert (epoch["samples"], epoch["wrong"]) == (len(manifest.samples), [])
        reader.proceed()
        assert reader.expect("files", 100.0)["bytes"] == manifest.size
        with pytest.raises(ReaderError, match="ended early"):
            reader.expect("more", 100.0)
    finally:
        reader.end()


def test_a_program_that_fails_is_quoted(tmp_path):
    reader = Reader(tmp_path, tmp_path / "none", epochs=1, workers=0, log=tmp_path / "log")
    try:
        with pytest.raises(ReaderError, match="FileNotFoundError"):
            reader.expect("ready", 100.0)
    finally:
        reader.end()
