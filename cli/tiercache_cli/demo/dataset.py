"""The demo's dataset: four shapes that training data really has, made from nothing but their names.

WebDataset tar shards of JPEGs, a tree of JPEGs as torchvision's ImageFolder wants it, a flat file
of tokens for `np.memmap`, and a Parquet file. Every object is built on its own and is the same in
every run (with the same library versions); beside its bytes come the digests of the samples in
it, as the loader program computes them.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tiercache.types import KIB, MIB

#: Shares of the whole by shape.
_SHARDS, _IMAGES, _TOKENS = 0.4, 0.25, 0.2
_SHARD_SIZE = 12 * MIB
#: What `_jpeg` makes on average: a picture of this side at this quality is about 110 KB.
_JPEG_SIZE, _JPEG_SIDE, _JPEG_QUALITY = 110_000, 464, 85
_CLASSES = 10
_VOCABULARY = 50_257
#: A window is 4,096 tokens of 2 bytes.
WINDOW_SIZE = 8 * KIB
_ROW_SIZE, ROWS_PER_GROUP = 8 * KIB, 128


@dataclass(frozen=True, slots=True)
class Built:
    """The bytes of one object and the SHA-256 of every sample in it, by sample id."""

    data: bytes
    samples: dict[str, str]


@dataclass(frozen=True, slots=True)
class Part:
    """One object to be built: `size` is an estimate, for progress only."""

    key: str
    size: int
    build: Callable[[], Built]


@dataclass(slots=True)
class Manifest:
    """What the loader must find: samples by id, and whole files as (size, SHA-256) by path."""

    samples: dict[str, str] = field(default_factory=dict)
    files: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, key: str, built: Built) -> None:
        """Take note of an object."""
        self.samples.update(built.samples)
        self.files[key] = (len(built.data), _sha256(built.data))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())


def plan(size: int) -> list[Part]:
    """The objects of a dataset of about `size` bytes, the largest first."""
    tokens = int(size * _TOKENS) // WINDOW_SIZE or 1
    rows = int(size * (1 - _SHARDS - _IMAGES - _TOKENS)) // _ROW_SIZE or 1
    return [
        Part("tables/train.parquet", rows * _ROW_SIZE, partial(_parquet, rows)),
        Part("tokens/train.bin", tokens * WINDOW_SIZE, partial(_tokens, tokens)),
        *_shards(int(size * _SHARDS)),
        *_images(int(size * _IMAGES)),
    ]


def sample_digest(*pieces: bytes) -> str:
    """SHA-256 of the pieces of a sample, in order."""
    return _sha256(b"".join(pieces))


def _shards(size: int) -> list[Part]:
    pictures = max(1, size // _JPEG_SIZE)
    per_shard = _SHARD_SIZE // _JPEG_SIZE
    parts = []
    for number, first in enumerate(range(0, pictures, per_shard)):
        members = range(first, min(first + per_shard, pictures))
        key = f"shards/train-{number:06d}.tar"
        parts.append(Part(key, len(members) * _JPEG_SIZE, partial(_tar, key, members)))
    return parts


def _images(size: int) -> list[Part]:
    parts = []
    for number in range(max(1, size // _JPEG_SIZE)):
        key = f"images/class_{number % _CLASSES:02d}/{number:06d}.jpg"
        parts.append(Part(key, _JPEG_SIZE, partial(_image_file, key)))
    return parts


def _tar(key: str, members: Sequence[int]) -> Built:
    """A shard as WebDataset writes it: `NUMBER.jpg` and `NUMBER.cls` make one sample."""
    buffer, samples = io.BytesIO(), {}
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in members:
            picture, label = _jpeg(f"{key}/{number}"), str(number % _CLASSES).encode()
            for suffix, data in (("jpg", picture), ("cls", label)):
                entry = tarfile.TarInfo(f"{number:06d}.{suffix}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
            samples[f"{key}/{number:06d}"] = sample_digest(picture, label)
    return Built(buffer.getvalue(), samples)


def _image_file(key: str) -> Built:
    data = _jpeg(key)
    return Built(data, {key: sample_digest(data)})


def _tokens(windows: int) -> Built:
    key = "tokens/train.bin"
    shape = windows * WINDOW_SIZE // 2
    data = _rng(key).integers(0, _VOCABULARY, shape, dtype=np.uint16).astype("<u2").tobytes()
    parts = (data[start : start + WINDOW_SIZE] for start in range(0, len(data), WINDOW_SIZE))
    return Built(data, {f"{key}@{n}": sample_digest(part) for n, part in enumerate(parts)})


def _parquet(rows: int) -> Built:
    key = "tables/train.parquet"
    raw = _rng(key).bytes(rows * _ROW_SIZE)
    payloads = [raw[start : start + _ROW_SIZE] for start in range(0, len(raw), _ROW_SIZE)]
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "payload": pa.array(payloads)})
    sink = io.BytesIO()
    # Snappy finds nothing to squeeze in random bytes, but it is what most files out there use.
    pq.write_table(table, sink, row_group_size=ROWS_PER_GROUP, compression="snappy")
    groups = (payloads[first : first + ROWS_PER_GROUP] for first in range(0, rows, ROWS_PER_GROUP))
    samples = {f"{key}#{number}": sample_digest(*group) for number, group in enumerate(groups)}
    return Built(sink.getvalue(), samples)


def _jpeg(name: str) -> bytes:
    """A picture with large shapes and grain, as photographs have, of about 110 KB."""
    rng, side = _rng(name), _JPEG_SIDE
    shapes = rng.integers(0, 256, (side // 16, side // 16, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(shapes).resize((side, side), Image.Resampling.BILINEAR))
    grain = rng.integers(0, 96, smooth.shape, dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(smooth // 2 + grain).save(out, "JPEG", quality=_JPEG_QUALITY)
    return out.getvalue()


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))


def _sha256(data: bytes | memoryview[Any]) -> str:
    return hashlib.sha256(data).hexdigest()
