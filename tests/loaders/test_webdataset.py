"""WebDataset reads tar shards from a mount as from any directory."""

import hashlib
import time

import pytest

from tiercache.control.client import ask
from tiercache.fuse.mountpoint import runtime_dir
from tiercache.prefetch.planfile import items

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


@pytest.fixture
def plan(root):
    """`plan("follow", file=...)` and so on: what the mount says of its plan."""

    def operation(name, **arguments):
        return ask(runtime_dir(root) / "control.sock", f"plan_{name}", 20, arguments)

    yield operation
    operation("clear")


def read(shards, workers):
    """The shards of the samples, in the order of arrival."""
    dataset = wds.WebDataset(shards, shardshuffle=False, empty_check=False)
    loader = torch_data.DataLoader(dataset, batch_size=None, num_workers=workers)
    return [sample["__url__"] for sample in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_are_opened_as_the_plan_says(root, recipe, plan, tmp_path, workers):
    shards = sorted(str(path) for path in (root / "wds").glob("*.tar"))
    file = tmp_path / "epochs.plan"
    recipe["write_shard_plan"](file, shards, epochs=2)
    planned = [str(root / item.path.decode()) for item in items(file, root, 1000)]
    epochs = [planned[:12], planned[12:]]
    assert epochs[0] != epochs[1]
    assert plan("follow", file=str(file))["entries"] == 24
    for number, order in enumerate(epochs):
        found = read(order, workers)
        if workers:
            assert sorted(found) == sorted(2 * order)
        else:
            assert found == [shard for shard in order for _ in range(2)]
        assert followed(plan, 12 * (number + 1)) == (12 * (number + 1), 0, 0, 0)


def test_shards_in_an_order_of_their_own_are_seen_not_to_follow(root, recipe, plan, tmp_path):
    """What the test above goes by can tell the difference."""
    shards = sorted(str(path) for path in (root / "wds").glob("*.tar"))
    recipe["write_shard_plan"](tmp_path / "plan", shards[:6], epochs=1)
    plan("follow", file=str(tmp_path / "plan"))
    read(shards[3:9], 0)
    assert plan("status")["unplanned"] == 3


def followed(plan, position):
    """Position, skipped, unplanned and unknown entries, once readers are at *position*."""
    end = time.monotonic() + 20
    while (status := plan("status"))["position"] < position and time.monotonic() < end:
        time.sleep(0.05)
    return tuple(status[name] for name in ("position", "skipped", "unplanned", "unknown"))
