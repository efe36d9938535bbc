"""NumPy, Arrow, Parquet and safetensors, all of which map files into memory (D01)."""

import io
import mmap
import os

import pytest

np = pytest.importorskip("numpy", reason="extra `demo`: numpy")

pytestmark = pytest.mark.mount


@pytest.mark.parametrize("mode", ["r", "c"])
def test_memmap_windows(root, stored, mode):
    if "data/tokens/train.bin" not in stored.objects:
        pytest.skip("extra `demo`: the token file needs pillow and pyarrow to be made")
    tokens = np.memmap(root / "data/tokens/train.bin", dtype="<u2", mode=mode)
    whole = np.frombuffer(stored.objects["data/tokens/train.bin"], dtype="<u2")
    rng = np.random.default_rng(3)
    for start in rng.integers(0, len(whole) - 1000, 200):
        assert np.array_equal(tokens[start : start + 1000], whole[start : start + 1000])
    assert np.array_equal(tokens, whole)


@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, mmap.MAP_PRIVATE], ids=["shared", "private"])
def test_d01_every_size_can_be_mapped(root, stored, flags):
    for name, body in stored.below("plain").items():
        fd = os.open(root / "plain" / name, os.O_RDONLY)
        try:
            if not body:
                continue  # no file system can map an empty file
            with mmap.mmap(fd, 0, flags, mmap.PROT_READ) as mapping:
                assert mapping[:] == body, name
        finally:
            os.close(fd)


@pytest.mark.parametrize("mmap_mode", [None, "r", "c"])
def test_npy(root, stored, mmap_mode):
    found = np.load(root / "arrays/a.npy", mmap_mode=mmap_mode)
    assert np.array_equal(found, np.load(io.BytesIO(stored.objects["arrays/a.npy"])))


def test_npz(root):
    with np.load(root / "arrays/b.npz") as arrays:
        assert np.array_equal(arrays["x"], np.arange(200_000))
        assert arrays["y"].shape == (1000,)


def test_fromfile(root, stored):
    name = "arrays/a.npy"
    assert np.fromfile(root / name, dtype=np.uint8).tobytes() == stored.objects[name]


def test_arrow_memory_map(root, stored):
    pa = pytest.importorskip("pyarrow", reason="extra `demo`: pyarrow")
    name = "data/tables/train.parquet"
    with pa.memory_map(str(root / name), "r") as source:
        assert source.read() == stored.objects[name]


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
def test_parquet(root, stored, mapped):
    pytest.importorskip("pyarrow", reason="extra `demo`: pyarrow")
    pq = pytest.importorskip("pyarrow.parquet", reason="extra `demo`: pyarrow")
    name = "data/tables/train.parquet"
    found = pq.read_table(root / name, memory_map=mapped)
    assert found.equals(pq.read_table(io.BytesIO(stored.objects[name])))


def test_arrow_dataset_discovers_files(root, stored):
    dataset = pytest.importorskip("pyarrow.dataset", reason="extra `demo`: pyarrow")
    found = dataset.dataset(str(root / "data/tables"), format="parquet")
    assert found.count_rows() == found.to_table(columns=["id"]).num_rows > 0


def test_d01_safetensors(root, stored):
    numpy_tensors = pytest.importorskip("safetensors.numpy", reason="extra `loaders`: safetensors")
    from safetensors import safe_open

    name = "model/weights.safetensors"
    expected = numpy_tensors.load(stored.objects[name])
    with safe_open(root / name, framework="np") as file:
        assert set(file.keys()) == set(expected)
        for key, tensor in expected.items():
            assert np.array_equal(file.get_tensor(key), tensor)
    loaded = numpy_tensors.load_file(root / name)
    assert all(np.array_equal(loaded[key], tensor) for key, tensor in expected.items())


def test_safetensors_into_torch(root, stored):
    torch = pytest.importorskip("torch", reason="extra `loaders`: torch")
    tensors = pytest.importorskip("safetensors.torch", reason="extra `loaders`: safetensors")
    name = "model/weights.safetensors"
    expected = tensors.load(stored.objects[name])
    loaded = tensors.load_file(root / name)
    assert all(torch.equal(loaded[key], tensor) for key, tensor in expected.items())
