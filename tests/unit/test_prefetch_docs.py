"""The recipe in docs/PREFETCH.md writes plans that are understood."""

from __future__ import annotations

from tiercache.prefetch.planfile import items


def test_the_order_of_a_distributed_sampler(recipe, tmp_path):
    from torch.utils.data import DistributedSampler

    paths = [f"d/{i}" for i in range(40)]
    recipe["write_plan"](tmp_path / "plan", paths, ranks=2, batch=4, epochs=2, seed=5)
    found = [item.path.decode() for item in items(tmp_path / "plan", tmp_path, 1000)]
    assert len(found) == 80
    assert sorted(found[:40]) == sorted(found[40:]) == sorted(paths)
    assert found[:40] != found[40:]
    sampler = DistributedSampler(paths, num_replicas=2, rank=1, seed=5)
    sampler.set_epoch(1)
    assert found[44:48] == [paths[i] for i in list(sampler)[:4]]


def test_the_order_of_shards(recipe, tmp_path):
    shards = [f"s/{i:03}.tar" for i in range(9)]
    recipe["write_shard_plan"](tmp_path / "plan", shards, epochs=3)
    found = [item.path.decode() for item in items(tmp_path / "plan", tmp_path, 1000)]
    assert [sorted(found[i : i + 9]) for i in (0, 9, 18)] == [shards] * 3
