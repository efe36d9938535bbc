"""One bucket with the file formats that loaders read, mounted by the real command.

A format whose package is missing is simply not stored; its tests skip themselves.
"""

from __future__ import annotations

import importlib.util
import io
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tiercache.testing.data import pattern
from tiercache.testing.mounting import CommandMount, mounted
from tiercache.testing.seaweed import SeaweedServer
from tiercache.types import BLOCK_SIZE, MIB

BUCKET = "loaders"
#: Sizes around pages and blocks, where tools that trust st_size or splice have gone wrong (D08).
SIZES = (0, 1, 4095, 4096, 65_536, 65_537, BLOCK_SIZE - 1, BLOCK_SIZE, 3 * BLOCK_SIZE + 17)
DEMO_SIZE = 6_000_000


@dataclass(slots=True)
class Stored:
    """What the bucket holds: bytes by key, and the demo dataset's sample digests by id."""

    objects: dict[str, bytes] = field(default_factory=dict)
    samples: dict[str, str] = field(default_factory=dict)

    def below(self, prefix: str) -> dict[str, bytes]:
        """The objects below a directory, by path inside it."""
        start = prefix.rstrip("/") + "/"
        return {
            key.removeprefix(start): body
            for key, body in self.objects.items()
            if key.startswith(start)
        }


def have(*modules: str) -> bool:
    """Whether all of `modules` can be imported."""
    return all(importlib.util.find_spec(module) for module in modules)


def plain_files(stored: Stored, _scratch: Path) -> None:
    for seed, size in enumerate(SIZES):
        stored.objects[f"plain/{size:08d}.bin"] = pattern(0, size, seed)
    for number in range(40):
        stored.objects[f"plain/many/{number % 4}/f{number:03d}"] = pattern(0, 3000, 100 + number)


def demo_dataset(stored: Stored, _scratch: Path) -> None:
    from tiercache_cli.demo.dataset import plan

    for part in plan(DEMO_SIZE):
        built = part.build()
        stored.objects[f"data/{part.key}"] = built.data
        stored.samples |= built.samples


def numpy_arrays(stored: Stored, _scratch: Path) -> None:
    import numpy as np

    rng = np.random.default_rng(7)
    out = io.BytesIO()
    np.save(out, rng.standard_normal((512, 700)))
    stored.objects["arrays/a.npy"] = out.getvalue()
    out = io.BytesIO()
    np.savez(out, x=np.arange(200_000), y=rng.integers(0, 9, 1000))
    stored.objects["arrays/b.npz"] = out.getvalue()


def safetensors_file(stored: Stored, _scratch: Path) -> None:
    import numpy as np
    from safetensors.numpy import save

    rng = np.random.default_rng(8)
    tensors = {f"layer{n}": rng.standard_normal((256, 300)).astype("f4") for n in range(6)}
    stored.objects["model/weights.safetensors"] = save(tensors)


def lmdb_dataset(stored: Stored, scratch: Path) -> None:
    import lmdb

    with lmdb.open(str(scratch / "lmdb"), map_size=64 * MIB) as env, env.begin(write=True) as txn:
        for number in range(300):
            txn.put(b"%06d" % number, pattern(0, 5000, number))
    for name in ("data.mdb", "lock.mdb"):
        stored.objects[f"lmdb/{name}"] = (scratch / "lmdb" / name).read_bytes()


def tiny_shards(stored: Stored, _scratch: Path) -> None:
    """More shards than a window or a worker holds, of two samples each."""
    for number in range(12):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for sample in range(2):
                member = tarfile.TarInfo(f"{number}-{sample}.bin")
                member.size = 3000
                tar.addfile(member, io.BytesIO(pattern(0, 3000, 10 * number + sample)))
        stored.objects[f"wds/{number:03d}.tar"] = out.getvalue()


FORMATS: tuple[tuple[Callable[[Stored, Path], None], tuple[str, ...]], ...] = (
    (plain_files, ()),
    (demo_dataset, ("numpy", "PIL", "pyarrow")),
    (numpy_arrays, ("numpy",)),
    (safetensors_file, ("numpy", "safetensors")),
    (lmdb_dataset, ("lmdb",)),
    (tiny_shards, ()),
)


@pytest.fixture(scope="session")
def stored(seaweed: SeaweedServer, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Fill the bucket once per run."""
    stored = Stored()
    for add, needs in FORMATS:
        if have(*needs):
            add(stored, tmp_path_factory.mktemp("make"))
    seaweed.create_bucket(BUCKET)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: seaweed.put(BUCKET, *item), stored.objects.items()))
    return stored


@pytest.fixture(scope="module", params=["kernel", "libfuse"])
def mount(
    request: pytest.FixtureRequest,
    seaweed: SeaweedServer,
    stored: Stored,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[CommandMount]:
    """The bucket, mounted cold under each driver, once per test module."""
    if not Path("/dev/fuse").exists():
        pytest.skip("no /dev/fuse")
    home = tmp_path_factory.mktemp("mount")
    options = [
        f"--driver={request.param}",
        f"--cache-dir={home / 'cache'}",
        f"--endpoint-url={seaweed.endpoint_url}",
    ]
    with mounted(f"s3://{BUCKET}", home / "mnt", options, seaweed.env()) as mount:
        assert mount.status()["driver"] == request.param
        yield mount


@pytest.fixture
def root(mount: CommandMount) -> Path:
    """Where the bucket is mounted."""
    return mount.mountpoint
