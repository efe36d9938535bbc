"""How often each dataset was used lately, for choosing the size of a cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import trio

from tiercache.catalog import Catalog
from tiercache.simulation.sizing import Dataset, densest_first
from tiercache.tier.usage import Usage

#: Objects looked up before others get their turn on the loop.
_SLICE: Final = 256

#: Datasets told apart in the answer.
_DATASETS_MAX: Final = 1000


async def popularity(usage: Usage, catalog: Catalog, now: Callable[[], float]) -> dict[str, Any]:
    """Control operation: the datasets used lately, the most used per byte first.

    `complete`: the sizes are those of all objects used, none of which had to be forgotten.
    """
    sizes: dict[int, int] = {}
    counts: dict[int, int] = {}
    for position, ino in enumerate(usage.objects()):
        obj = catalog.inode(ino)
        if obj is not None:
            group = usage.group_of(obj.key)
            sizes[group] = sizes.get(group, 0) + obj.size
            counts[group] = counts.get(group, 0) + 1
        if not position % _SLICE:
            await trio.lowlevel.checkpoint()
    moment = now()
    found = [
        Dataset(usage.group_count(group, moment), nbytes, counts[group])
        for group, nbytes in sizes.items()
    ]
    datasets = densest_first(found, _DATASETS_MAX)
    return {"datasets": [asdict(dataset) for dataset in datasets], "complete": usage.complete}
