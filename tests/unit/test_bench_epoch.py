"""Training epochs: what the loaders read, and how waiting and computing are told apart."""

import random
import time

import pytest

from bench.epoch import EpochError, File, Pace, run_epoch
from bench.loaders import Jpeg, Npz, TfRecord
from bench.mlperf import WORKLOADS, Samples

FORMATS = [Npz, TfRecord, Jpeg]


class Slow:
    """Samples that take longer to read than to compute on."""

    def read(self, path, samples):
        for _ in samples:
            time.sleep(0.02)
            yield


@pytest.mark.parametrize("form", FORMATS)
def test_a_reader_yields_an_item_per_sample(tmp_path, form):
    samples = [300_000, 10, 700_000]
    form().write(tmp_path / "file", samples, random.Random(0))
    assert len(list(form().read(str(tmp_path / "file"), samples))) == 3


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_too_short_is_refused(tmp_path, form):
    form().write(tmp_path / "file", [1000], random.Random(0))
    with pytest.raises(ValueError, match="1000 of 2000 bytes"):
        list(form().read(str(tmp_path / "file"), [2000]))


def test_an_accelerator_that_waits_is_not_used(tmp_path):
    files = [File("none", [1, 1]) for _ in range(6)]
    epoch = run_epoch(files, Slow(), Pace(batch=2, step_s=0.001, readers=1), accelerators=1)
    assert epoch.steps == 6
    assert epoch.utilisation < 0.5
    assert epoch.stalled_s > 5 * 0.02


def test_an_accelerator_whose_data_is_there_is_used(tmp_path):
    Jpeg().write(tmp_path / "file", [1000], random.Random(0))
    files = [File(str(tmp_path / "file"), [1000])] * 12
    epoch = run_epoch(files, Jpeg(), Pace(batch=2, step_s=0.05, readers=2), accelerators=2)
    assert epoch.steps == 6
    assert epoch.size == 12_000
    assert 0 < epoch.utilisation <= 1


def test_a_failing_reader_ends_the_epoch(tmp_path, capfd):
    files = [File(str(tmp_path / "absent"), [1000])] * 4
    with pytest.raises(EpochError):
        run_epoch(files, Jpeg(), Pace(batch=2, step_s=0.01, readers=2), accelerators=1)
    assert "absent" in capfd.readouterr().err


@pytest.mark.parametrize("name", WORKLOADS)
def test_there_is_data_for_two_batches_of_every_accelerator(name):
    workload = WORKLOADS[name]
    samples = Samples.of(workload, 1, 3)
    assert sum(map(len, samples.files.values())) >= 2 * 3 * workload.pace.batch
    assert samples.files == Samples.of(workload, 1, 3).files


def test_a_shrunk_workload_asks_for_the_same_rate():
    whole, part = WORKLOADS["resnet50"], WORKLOADS["resnet50"].shrunk(10)
    assert part.sample / part.pace.step_s == pytest.approx(whole.sample / whole.pace.step_s)
