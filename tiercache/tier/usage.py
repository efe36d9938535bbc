"""How often objects and datasets were used lately, over restarts.

    Uo <ino:8>    score of an object
    Ug <group:8>  score of a dataset

Scores are written in batches and lost for the time since the last one when a process dies, which
costs a few uses. Both sets are bounded; what is forgotten in memory is forgotten in the catalog.
"""

from __future__ import annotations

import struct

from tiercache.config import HeatConfig
from tiercache.heat import Heat, group_name, group_number
from tiercache.types import KeyValues

_OBJECTS, _GROUPS = b"Uo", b"Ug"
_SCORE = struct.Struct("<d")

#: Directories whose dataset is remembered.
_NAMES_MAX = 4096


class Usage:
    """Heat of objects and of groups. On the loop. Times are seconds since the epoch."""

    def __init__(self, config: HeatConfig, kv: KeyValues, limit: int) -> None:
        """*limit*: objects, and groups, that are remembered."""
        self._kv = kv
        self._depth = config.group_depth
        self._heat = {
            _OBJECTS: Heat(config.half_life_s, limit),
            _GROUPS: Heat(config.half_life_s, limit),
        }
        self._objects, self._groups = self._heat.values()
        self._numbers: dict[bytes, int] = {}
        self._changed: dict[bytes, None] = {}
        for prefix, heat in self._heat.items():
            for key, value in kv.scan(prefix):
                if len(value) == _SCORE.size:
                    heat.add(int.from_bytes(key[2:], "big"), _SCORE.unpack(value)[0])

    def group_of(self, key: bytes) -> int:
        """The number of the dataset of *key*."""
        directory = key.rpartition(b"/")[0]
        number = self._numbers.get(directory)
        if number is None:
            if len(self._numbers) >= _NAMES_MAX:
                self._numbers.clear()
            number = group_number(group_name(key, self._depth))
            self._numbers[directory] = number
        return number

    def use(self, ino: int, group: int, now: float) -> None:
        """Object *ino* of *group* was opened."""
        self._use(_OBJECTS, self._objects, ino, now)
        self._use(_GROUPS, self._groups, group, now)

    def _use(self, prefix: bytes, heat: Heat, item: int, now: float) -> None:
        gone = heat.use(item, now)
        self._changed[prefix + item.to_bytes(8, "big")] = None
        if gone is not None:
            self._changed[prefix + gone.to_bytes(8, "big")] = None

    def count(self, ino: int, now: float) -> float:
        """Opens of object *ino*, each weighted by its age."""
        return self._objects.count(ino, now)

    def group_count(self, group: int, now: float) -> float:
        """Opens in *group*, each weighted by its age."""
        return self._groups.count(group, now)

    def flush(self) -> None:
        """Hand what changed to the catalog."""
        if self._changed:
            changed, self._changed = self._changed, {}
            self._kv.put_many([(key, self._record(key)) for key in changed])

    def _record(self, key: bytes) -> bytes | None:
        score = self._heat[key[:2]].score(int.from_bytes(key[2:], "big"))
        return None if score == float("-inf") else _SCORE.pack(score)
