"""Plans that are followed by a whole tree: what stays, over several epochs."""

import random

import pytest
import trio
import trio.testing

from tiercache.simulation.replay import Access, replay
from tiercache.testing.data import check
from tiercache.tier.layout import allocated
from tiercache.types import KIB, MIB
from tiercache_policies.belady import Belady

COUNT, SIZE, EPOCHS = 240, 64 * KIB, 4
CAPACITY = COUNT * SIZE // 2


def gets(trees):
    return [call.key for call in trees.origin.calls if call.operation == "get_range"]


@pytest.fixture
def epochs(trees):
    for i in range(COUNT):
        trees.origin.put_pattern(b"d/%03d" % i, SIZE, seed=i)
    chance = random.Random(8)
    return [chance.sample(range(COUNT), COUNT) for _ in range(EPOCHS)]


async def read(tree, epoch):
    for i in epoch:
        check(await tree.cat(b"d/%03d" % i), seed=i)
        await trio.testing.wait_all_tasks_blocked()


def smallest():
    """Little memory, for bodies that no tier takes are served from it; a window of 16 files."""
    return {"transfer": {"memory": 2 * MIB}, "prefetch": {"plan_window": MIB, "files_ahead": 0}}


async def hit_ratio(trees, epochs, plan):
    """Of all epochs but the first: uses whose bytes were not fetched for them."""
    async with trees.open(policy="lru", capacity=CAPACITY, **smallest()) as tree:
        if plan is not None:
            await tree.stack.plans.follow(str(plan))
        await read(tree, epochs[0])
        before = len(gets(trees))
        for epoch in epochs[1:]:
            await read(tree, epoch)
        if plan is not None:
            assert tree.stack.plans.status()["done"]
        uses = sum(map(len, epochs[1:]))
        return 1 - (len(gets(trees)) - before) / uses


async def test_k07_a_plan_makes_a_small_tier_hit_what_belady_would(trees, epochs, tmp_path):
    order = [i for epoch in epochs for i in epoch]
    plan = tmp_path / "plan"
    plan.write_text("".join(f"d/{i:03}\n" for i in order))
    hits = await hit_ratio(trees, epochs, plan)

    files = CAPACITY // allocated(SIZE)
    first = replay(Belady(files, order), (Access(0.0, i) for i in epochs[0]), files)
    both = replay(Belady(files, order), (Access(0.0, i) for i in order), files)
    best = (both.hits - first.hits) / (both.uses - first.uses)
    # A part in 32 of the tier is kept free, and 16 files ahead of the reader take room as well.
    assert best - 2 / 32 - 16 / files < hits <= best + 16 / files


async def test_e03_without_a_plan_the_policy_alone_hits_much_less(trees, epochs):
    assert await hit_ratio(trees, epochs, None) < 0.3


async def test_what_was_there_before_the_plan_is_evicted_by_it(trees, tmp_path):
    for i in range(40):
        trees.origin.put_pattern(b"d/%03d" % i, SIZE, seed=i)
    capacity = 33 * allocated(SIZE)
    plan = tmp_path / "plan"
    order = [*range(30, 36), *range(20), *range(30)]
    plan.write_text("".join(f"d/{i:03}\n" for i in order))
    async with trees.open(policy="lru", capacity=capacity, **smallest()) as tree:
        await read(tree, range(30))
        [place] = tree.stack.store.tiers[0].places
        with trio.fail_after(20):
            while place.totals.objects < 30:  # noqa: ASYNC110 - threads write them
                await trio.sleep(0.01)
    async with trees.open(policy="lru", capacity=capacity, **smallest()) as tree:
        before = len(gets(trees))
        await tree.stack.plans.follow(str(plan))
        await read(tree, order[:26])
    # LRU would have lost the files from 0 on, which come next; nobody needs 20 to 29 so soon.
    assert gets(trees)[before : before + 6] == [b"d/%03d" % i for i in range(30, 36)]
    assert not {b"d/%03d" % i for i in range(20)} & set(gets(trees)[before:])
