"""An ordinary training input pipeline. It knows a directory, and nothing about what is behind it.

    python loader.py ROOT MANIFEST [--epochs N] [--workers N]

Reads WebDataset shards, image files, token windows and Parquet row groups below ROOT in random
order by a PyTorch DataLoader, or by plain worker processes and NumPy when torch is absent, and
compares the digest of every sample with MANIFEST. Afterwards it compares the digest of every whole
file. One JSON object per line on stdout says how it went; each epoch waits for a line on stdin.
Time is taken inside the workers, so that their start-up does not count.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import random
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

try:
    import torch
    from torch.utils.data import DataLoader
except ImportError:
    torch = None

WINDOW_TOKENS = 4096
WINDOWS_PER_UNIT = 32


@dataclass(frozen=True, slots=True)
class Sample:
    """What was read for one sample, and between which two moments."""

    id: str
    digest: str
    size: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of work for a worker: a file, or the part `place` of one."""

    root: str
    kind: str
    key: str
    place: int = 0

    def read(self) -> list[Sample]:
        """Read all samples of this unit."""
        samples, start = [], time.monotonic()
        for name, pieces in READERS[self.kind](self):
            digest = hashlib.sha256()
            for piece in pieces:
                digest.update(piece)
            end = time.monotonic()
            samples.append(Sample(name, digest.hexdigest(), sum(map(len, pieces)), start, end))
            start = end
        return samples

    @property
    def path(self) -> str:
        """Where the file is."""
        return f"{self.root}/{self.key}"


def read_shard(unit: Unit) -> Iterator[tuple[str, list[bytes]]]:
    """Samples of a WebDataset shard: neighbours with the same stem belong together."""
    with open(unit.path, "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        pieces: dict[str, list[bytes]] = {}
        for member in tar:
            content = tar.extractfile(member)
            if content is not None:
                pieces.setdefault(Path(member.name).stem, []).append(content.read())
    for stem, parts in pieces.items():
        yield f"{unit.key}/{stem}", parts


def read_image(unit: Unit) -> Iterator[tuple[str, list[bytes]]]:
    """The bytes of one JPEG."""
    yield unit.key, [Path(unit.path).read_bytes()]


def read_tokens(unit: Unit) -> Iterator[tuple[str, list[bytes]]]:
    """Neighbouring windows of a flat file of 16-bit tokens."""
    tokens = np.memmap(unit.path, dtype=np.uint16, mode="r")
    for number in range(unit.place, min(unit.place + WINDOWS_PER_UNIT, windows_in(unit.path))):
        window = tokens[number * WINDOW_TOKENS : (number + 1) * WINDOW_TOKENS]
        yield f"{unit.key}@{number}", [window.tobytes()]


def read_row_group(unit: Unit) -> Iterator[tuple[str, list[bytes]]]:
    """One row group of a Parquet file."""
    with pq.ParquetFile(unit.path, memory_map=True) as file:
        rows = file.read_row_group(unit.place, columns=["payload"])
    yield f"{unit.key}#{unit.place}", rows.column("payload").to_pylist()


READERS = {
    "shard": read_shard,
    "image": read_image,
    "tokens": read_tokens,
    "row group": read_row_group,
}


class Units:
    """A map-style dataset, as `torch.utils.data` wants it."""

    def __init__(self, units: list[Unit]) -> None:
        self.units = units

    def __len__(self) -> int:
        return len(self.units)

    def __getitem__(self, index: int) -> list[Sample]:
        return self.units[index].read()


def find_units(root: str) -> list[Unit]:
    """Look around below `root` as any training script does."""
    base = Path(root)
    units = [Unit(root, "shard", _key(base, path)) for path in base.glob("shards/*.tar")]
    units += [Unit(root, "image", _key(base, path)) for path in base.glob("images/*/*.jpg")]
    for path in base.glob("tokens/*.bin"):
        places = range(0, windows_in(path), WINDOWS_PER_UNIT)
        units += [Unit(root, "tokens", _key(base, path), place) for place in places]
    for path in base.glob("tables/*.parquet"):
        with pq.ParquetFile(path) as file:
            places = range(file.num_row_groups)
        units += [Unit(root, "row group", _key(base, path), place) for place in places]
    return sorted(units, key=lambda unit: (unit.kind, unit.key, unit.place))


def windows_in(path: str | Path) -> int:
    """Whole windows in a token file."""
    return Path(path).stat().st_size // (2 * WINDOW_TOKENS)


def read_unit(unit: Unit) -> list[Sample]:
    """For `Pool.imap`, which wants a plain function."""
    return unit.read()


def flatten(batch: Iterable[list[Sample]]) -> list[Sample]:
    """Collate function: a batch is the list of its samples."""
    return list(chain.from_iterable(batch))


class TorchEpochs:
    """Epochs by a PyTorch DataLoader, its workers kept from one to the next."""

    name = "PyTorch DataLoader"

    def __init__(self, units: list[Unit], workers: int) -> None:
        self._batches: Any = DataLoader(
            Units(units),
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=flatten,
        )

    def epoch(self, number: int) -> Iterator[Sample]:
        """Every sample once, in an order of its own."""
        torch.manual_seed(number)
        for batch in self._batches:
            yield from batch

    def end(self) -> None:
        """Let the worker processes go."""
        del self._batches


class PlainEpochs:
    """The same without torch: worker processes and a shuffled list."""

    name = "NumPy and multiprocessing"

    def __init__(self, units: list[Unit], workers: int) -> None:
        self._units = units
        self._pool = multiprocessing.Pool(workers or 1)

    def epoch(self, number: int) -> Iterator[Sample]:
        """Every sample once, in an order of its own."""
        order = random.Random(number).sample(self._units, len(self._units))
        for samples in self._pool.imap_unordered(read_unit, order):
            yield from samples

    def end(self) -> None:
        """Let the worker processes go."""
        self._pool.close()
        self._pool.join()


def check_epoch(samples: Iterable[Sample], expected: dict[str, str]) -> dict[str, Any]:
    """Compare an epoch's samples with what they should be; returns its figures."""
    seen, wrong, size = set(), [], 0
    first, last = float("inf"), 0.0
    for sample in samples:
        if sample.id in seen or expected.get(sample.id) != sample.digest:
            wrong.append(sample.id)
        seen.add(sample.id)
        size += sample.size
        first, last = min(first, sample.start), max(last, sample.end)
    missing = sorted(expected.keys() - seen)
    return {
        "samples": len(seen),
        "bytes": size,
        "seconds": max(last - first, 1e-9),
        "wrong": wrong,
        "missing": missing,
    }


def check_files(root: str, expected: dict[str, tuple[int, str]]) -> dict[str, Any]:
    """Compare every file, from first byte to last, with what was stored."""
    wrong, total = [], 0
    for key, (size, digest) in expected.items():
        with open(f"{root}/{key}", "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            total += file.tell()
            if found != digest or file.tell() != size:
                wrong.append(key)
    there = {_key(Path(root), path) for path in Path(root).rglob("*") if path.is_file()}
    missing = sorted(there ^ expected.keys())
    return {"files": len(expected), "bytes": total, "wrong": wrong, "missing": missing}


def main() -> None:
    """Run the epochs, then the check of whole files."""
    parser = argparse.ArgumentParser(description="Read a dataset directory, epoch by epoch.")
    parser.add_argument("root")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    manifest = json.loads(arguments.manifest.read_bytes())
    units = find_units(arguments.root)
    engine = PlainEpochs if torch is None else TorchEpochs
    epochs = engine(units, arguments.workers)
    say("ready", engine=epochs.name, units=len(units))
    for number in range(1, arguments.epochs + 1):
        sys.stdin.readline()
        say("epoch", epoch=number, **check_epoch(epochs.epoch(number), manifest["samples"]))
    epochs.end()
    sys.stdin.readline()
    say("files", **check_files(arguments.root, manifest["files"]))


def say(event: str, **facts: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """One line of progress for whoever started this program."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def _key(base: Path, path: Path) -> str:
    return path.relative_to(base).as_posix()


if __name__ == "__main__":
    main()
