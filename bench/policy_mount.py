"""`policy` on a real mount: shuffled epochs over a dataset that is larger than its tiers.

A row is the share of the dataset's bytes that came from local tiers in an epoch; the rest came from
the origin. Reads are O_DIRECT and the mount's memory is small, for both would serve some of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.readers import touched_buffer
from bench.rows import Pair, Row
from bench.workspace import Scale, say
from tiercache.testing.data import check, pattern
from tiercache.testing.mounting import CommandMount, mounted
from tiercache.types import MIB

#: Tiers as shares of the dataset, by row.
TIERS: Final[Mapping[str, Mapping[str, float]]] = {
    "policy.mount-nvme": {"nvme": 0.5},
    "policy.mount-nvme-hdd": {"nvme": 0.25, "hdd": 0.5},
}

#: The first epoch fills; the others are counted.
EPOCHS: Final = 5

#: The origin may be asked for this much more than what does not fit.
SLACK: Final = 1.03


@dataclass(frozen=True, slots=True)
class Epochs:
    """A dataset of equal files and the order they are read in."""

    files: int
    size: int

    @property
    def nbytes(self) -> int:
        """Bytes of the dataset."""
        return self.files * self.size

    def write(self, root: Path) -> None:
        """Write every file below `root`."""
        for number in range(self.files):
            (root / self.name(number)).write_bytes(pattern(0, self.size, number))

    def read(self, root: Path, epoch: int) -> None:
        """Read and check every file once, in an order of that epoch's own."""
        order = list(range(self.files))
        random.Random(epoch).shuffle(order)
        with touched_buffer(MIB) as buffer:
            for number in order:
                descriptor = os.open(root / self.name(number), os.O_RDONLY | os.O_DIRECT)
                try:
                    for offset in range(0, self.size, MIB):
                        count = os.preadv(descriptor, [buffer], offset)
                        check(buffer[:count], offset, number)
                finally:
                    os.close(descriptor)

    @staticmethod
    def name(number: int) -> str:
        """Name of a file."""
        return f"{number:05d}.bin"


def dataset(scale: Scale) -> Epochs:
    """What is read at *scale*: 512 MiB, or 16 for a smoke test."""
    return Epochs(16, MIB) if scale.name == "small" else Epochs(128, 4 * MIB)


def measure(epochs: Epochs, home: Path, options: list[str]) -> Iterator[Row]:
    """All rows of the mount part, below the empty directory `home`."""
    source = home / "source"
    source.mkdir()
    epochs.write(source)
    for name, tiers in TIERS.items():
        yield _run(name, tiers, epochs, home / name.rpartition(".")[2], source, options)


def _run(
    name: str,
    tiers: Mapping[str, float],
    epochs: Epochs,
    home: Path,
    source: Path,
    options: list[str],
) -> Row:
    say(f"{name}, {EPOCHS} shuffled epochs of {epochs.nbytes / 1e6:.0f} MB")
    home.mkdir()
    config = home / "tiers.toml"
    config.write_text(_config(tiers, epochs.nbytes, home), encoding="utf-8")
    with mounted(f"file://{source}", home / "mount", [f"--config={config}", *options]) as mount:
        shares = [_local_share(mount, epochs, number) for number in range(EPOCHS)]
    return row(name, sum(tiers.values()), shares)


def row(name: str, fits: float, shares: Sequence[float]) -> Row:
    """What the local *shares* of the epochs after the first say, when a share of *fits* does."""
    goal = (1 - SLACK * (1 - fits)) / fits
    pairs = [Pair(100 * share, 100 * fits) for share in shares[1:]]
    return Row(name, "% local", "share that fits", goal, pairs)


def _local_share(mount: CommandMount, epochs: Epochs, number: int) -> float:
    before = _origin_bytes(mount)
    epochs.read(mount.mountpoint, number)
    return 1 - (_origin_bytes(mount) - before) / epochs.nbytes


def _origin_bytes(mount: CommandMount) -> int:
    return int(mount.status()["counters"]["origin_bytes"])


def _config(tiers: Mapping[str, float], nbytes: int, home: Path) -> str:
    lines = ["[transfer]", 'memory = "16MiB"']
    for name, share in tiers.items():
        lines += [
            "[[tier]]",
            f'name = "{name}"',
            f'paths = ["{home / name}"]',
            f"capacity = {round(share * nbytes)}",
            'reserve_free = "0"',
            'policy = "adaptive"',
        ]
    return "\n".join(lines) + "\n"
