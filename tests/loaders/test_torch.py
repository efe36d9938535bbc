"""Unmodified PyTorch DataLoaders over a mount (K01)."""

import mmap
import os
import signal

import pytest

torch_data = pytest.importorskip("torch.utils.data", reason="extra `loaders`: torch")
program = pytest.importorskip("tiercache_cli.demo.loader", reason="extra `demo`: pyarrow")

pytestmark = pytest.mark.mount


def data_loader(root, context, *, persistent):
    return torch_data.DataLoader(
        program.Units(program.find_units(str(root / "data"))),
        batch_size=2,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=context,
        persistent_workers=persistent,
        collate_fn=program.flatten,
    )


def samples_of(loader):
    return [sample for batch in loader for sample in batch]


@pytest.mark.parametrize(
    ("context", "persistent"),
    [
        ("fork", True),
        ("fork", False),
        ("spawn", True),
        # Every epoch imports torch twice.
        pytest.param("spawn", False, marks=pytest.mark.slow),
    ],
)
def test_k01_data_loader_after_the_parent_read(root, stored, context, persistent):
    """The parent reads first and holds a descriptor and a mapping open across the fork."""
    name = "data/shards/train-000000.tar"
    whole = stored.objects[name]
    fd = os.open(root / name, os.O_RDONLY)
    try:
        with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapping:
            assert os.read(fd, 1000) == whole[:1000]
            loader = data_loader(root, context, persistent=persistent)
            for _ in range(3):
                found = program.check_epoch(samples_of(loader), stored.samples)
                assert (found["wrong"], found["missing"]) == ([], [])
            assert mapping[:] == whole
            assert os.read(fd, 1000) == whole[1000:2000]
    finally:
        os.close(fd)


def test_k01_descriptor_shared_with_a_child_moves_as_one(root, stored):
    """After a fork both read from one offset, as POSIX says."""
    name = "data/shards/train-000000.tar"
    fd = os.open(root / name, os.O_RDONLY)
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if os.read(fd, 5000) == stored.objects[name][:5000] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert os.read(fd, 100) == stored.objects[name][5000:5100]
    finally:
        os.close(fd)


def test_k01_worker_killed_mid_epoch_leaves_the_mount_well(root, stored):
    loader = data_loader(root, "fork", persistent=False)
    batches = iter(loader)
    next(batches)
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly"):
        for _ in batches:
            pass
    del batches
    found = program.check_epoch(
        samples_of(data_loader(root, "fork", persistent=False)), stored.samples
    )
    assert (found["wrong"], found["missing"]) == ([], [])
