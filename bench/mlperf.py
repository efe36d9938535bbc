"""`mlperf`: epochs shaped like MLPerf Storage's, cold, hot and native side by side.

Sample sizes, batches, step times and readers are those of the MLPerf Storage rules (v2.0 with an
A100; v3.0 with a B200 for retinanet), the number of files follows `--dataset-size`. A run by the
rules needs five times the memory in data and 500 steps an epoch; this one shows what a mount costs
an accelerator on this machine, with hot and native data in the page cache.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.epoch import Epoch, File, Pace, run_epoch
from bench.loaders import Format, Jpeg, Npz, TfRecord
from bench.machine import populate
from bench.rows import Pair, Row
from bench.store import COPIES, Store
from bench.workspace import say


@dataclass(frozen=True, slots=True)
class Workload:
    """A row of the rules. Sizes in bytes; `least` is the utilisation that passes."""

    name: str
    form: Callable[[], Format]
    suffix: str
    sample: int
    deviation: int
    per_file: int
    pace: Pace
    least: float

    def shrunk(self, factor: int) -> Workload:
        """The same rate of bytes, in smaller samples and shorter steps."""
        return replace(
            self,
            sample=self.sample // factor,
            deviation=self.deviation // factor,
            pace=replace(self.pace, step_s=self.pace.step_s / factor),
        )


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("unet3d", Npz, "npz", 146_600_628, 68_341_808, 1, Pace(7, 0.636, 4), 0.9),
        Workload("resnet50", TfRecord, "tfrecord", 114_660, 0, 1251, Pace(400, 0.435, 8), 0.9),
        Workload("cosmoflow", TfRecord, "tfrecord", 2_828_486, 71_311, 1, Pace(1, 0.00551, 4), 0.7),
        Workload("retinanet", Jpeg, "jpg", 322_957, 0, 1, Pace(24, 0.04755, 8), 0.85),
    )
}


@dataclass(frozen=True, slots=True)
class Samples:
    """The files of a workload: sizes of samples by name."""

    workload: Workload
    files: dict[str, list[int]]

    @classmethod
    def of(cls, workload: Workload, dataset_size: int, accelerators: int) -> Samples:
        """As many files as fit, and at least two batches for every accelerator."""
        rng = random.Random(workload.name)
        least = -(-2 * workload.pace.batch * accelerators // workload.per_file)
        files: dict[str, list[int]] = {}
        size = 0
        while size < dataset_size or len(files) < least:
            sizes = [_sample_size(workload, rng) for _ in range(workload.per_file)]
            files[f"{workload.name}/{len(files):06d}.{workload.suffix}"] = sizes
            size += sum(sizes)
        return cls(workload, files)

    @property
    def size(self) -> int:
        """Bytes of all samples."""
        return sum(map(sum, self.files.values()))

    def write(self, root: Path) -> None:
        """Make every file below `root`."""
        form, rng = self.workload.form(), random.Random(1)
        (root / self.workload.name).mkdir()
        for name, sizes in self.files.items():
            form.write(root / name, sizes, rng)

    def epoch(self, root: Path, accelerators: int, seed: int) -> Epoch:
        """Read all once below `root`, in an order that `seed` decides."""
        names = list(self.files)
        random.Random(seed).shuffle(names)
        files = [File(str(root / name), self.files[name]) for name in names]
        return run_epoch(files, self.workload.form(), self.workload.pace, accelerators)


def measure(
    store: Store, samples: Samples, native: Path, accelerators: int, rounds: int
) -> list[Row]:
    """Rows `mlperf.NAME.cold` and `.hot`; each round is a native, a cold and a hot epoch."""
    workload = samples.workload
    say(f"mlperf.{workload.name}: {samples.size / 1e9:.2f} GB, {rounds} rounds")
    samples.epoch(native, accelerators, 0)  # into the page cache
    natives, colds, hots = [], [], []
    for number in range(rounds):
        natives.append(samples.epoch(native, accelerators, number))
        populate(COPIES * samples.size)
        with store.cold_mount() as mount:
            colds.append(samples.epoch(mount.mountpoint, accelerators, number))
            hots.append(samples.epoch(mount.mountpoint, accelerators, number + rounds))
    name = f"mlperf.{workload.name}"
    return [
        _row(f"{name}.cold", workload, colds, natives),
        _row(f"{name}.hot", workload, hots, natives),
    ]


def _row(name: str, workload: Workload, ours: Sequence[Epoch], natives: Sequence[Epoch]) -> Row:
    pairs = [
        Pair(100 * mine.utilisation, 100 * native.utilisation)
        for mine, native in zip(ours, natives, strict=True)
    ]
    extra = {
        "least_utilisation": 100 * workload.least,
        "passes": median(epoch.utilisation for epoch in ours) >= workload.least,
        "native_passes": median(epoch.utilisation for epoch in natives) >= workload.least,
        "steps": ours[0].steps,
        "bytes_per_s": median(epoch.size / epoch.seconds for epoch in ours),
        "native_bytes_per_s": median(epoch.size / epoch.seconds for epoch in natives),
        "stalled_s": median(epoch.stalled_s for epoch in ours),
    }
    return Row(name, "% AU", "native directory", None, pairs, extra)


def _sample_size(workload: Workload, rng: random.Random) -> int:
    size = round(rng.gauss(workload.sample, workload.deviation))
    return min(max(size, workload.sample // 8), 2 * workload.sample)
