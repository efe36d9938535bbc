"""WebDataset reads tar shards from a mount as from any directory."""

import hashlib

import pytest

wds = pytest.importorskip("webdataset", reason="extra `loaders`: webdataset")
torch_data = pytest.importorskip("torch.utils.data", reason="extra `loaders`: torch")

pytestmark = [
    pytest.mark.mount,
    # WebDataset leaves it to the garbage collector to close its shards.
    pytest.mark.filterwarnings("ignore:.*unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def digests(samples):
    return sorted(hashlib.sha256(s["jpg"] + s["cls"]).hexdigest() for s in samples)


def expected(stored):
    return sorted(digest for name, digest in stored.samples.items() if name.startswith("shards/"))


def test_webdataset_reads_every_sample(root, stored):
    shards = sorted(str(path) for path in (root / "data/shards").glob("*.tar"))
    samples = list(wds.WebDataset(shards, shardshuffle=False))
    assert digests(samples) == expected(stored)


def test_webdataset_through_data_loader_workers(root, stored):
    shards = sorted(str(path) for path in (root / "data/shards").glob("*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=False, empty_check=False)
    loader = torch_data.DataLoader(dataset, batch_size=None, num_workers=2)
    for _ in range(2):
        assert digests(loader) == expected(stored)
