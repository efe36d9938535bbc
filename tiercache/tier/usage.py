"""How often objects and datasets were used lately, over restarts.

    Uo <ino:8>    score of an object
    Ug <group:8>  score of a dataset
    Uh            the half-life they are counted with

Scores are written in batches and lost for the time since the last one when a process dies, which
costs a few uses. Both sets are bounded; what is forgotten in memory is forgotten in the catalog.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tiercache.config import HeatConfig
from tiercache.heat import Heat, group_name, group_number
from tiercache.types import KeyValues

_OBJECTS, _GROUPS = b"Uo", b"Ug"
_HALF_LIFE = b"Uh"
_SCORE = struct.Struct("<d")

#: Directories whose dataset is remembered.
_NAMES_MAX = 4096

#: Opens collected before they are added up: so many objects, within this part of the half-life.
#: The error is below a tenth of a per cent.
_BATCH_MAX = 1024
_BATCH_PART = 1e-3


class Usage:
    """Heat of objects and of groups. On the loop. Times are seconds since the epoch."""

    def __init__(self, config: HeatConfig, kv: KeyValues, limit: int, now: float) -> None:
        """*limit*: objects, and groups, that are remembered."""
        self._kv = kv
        self._limit = limit
        self._depth = config.group_depth
        kept = _half_life(kv)
        self._half_life_s = kept or config.half_life_s
        self._heat = {
            _OBJECTS: Heat(self._half_life_s, limit),
            _GROUPS: Heat(self._half_life_s, limit),
        }
        self._objects, self._groups = self._heat.values()
        self._numbers: dict[bytes, int] = {}
        # Opens that count as of `_since`, collected until `_until`.
        self._batch_s = self._half_life_s * _BATCH_PART
        self._since = self._until = 0.0
        self._opened: dict[int, int] = {}
        self._entered: dict[int, int] = {}
        self._changed: dict[bytes, None] = {}
        for prefix, heat in self._heat.items():
            for key, value in kv.scan(prefix):
                if len(value) == _SCORE.size:
                    heat.add(int.from_bytes(key[2:], "big"), _SCORE.unpack(value)[0])
        if kept is None:
            self._flush((self._pace(),))
        self.reconfigure(config, now)

    def reconfigure(self, config: HeatConfig, now: float) -> None:
        """Forget at another pace from *now* on; what is a dataset stays."""
        if config.half_life_s == self._half_life_s:
            return
        self._fold()
        self._half_life_s = config.half_life_s
        self._batch_s = config.half_life_s * _BATCH_PART
        for prefix, heat in self._heat.items():
            heat.set_half_life(config.half_life_s, now)
            self._changed.update(
                (prefix + item.to_bytes(8, "big"), None) for item, _ in heat.items()
            )
        # In one transaction: scores mean nothing under another half-life.
        self._flush((self._pace(),))

    def _pace(self) -> tuple[bytes, bytes]:
        return _HALF_LIFE, _SCORE.pack(self._half_life_s)

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
        if (
            not self._opened
            or not self._since <= now < self._until
            or len(self._opened) >= _BATCH_MAX
        ):
            self._fold()
            self._since, self._until = now, now + self._batch_s
        self._opened[ino] = self._opened.get(ino, 0) + 1
        self._entered[group] = self._entered.get(group, 0) + 1

    def count(self, ino: int, now: float) -> float:
        """Opens of object *ino*, each weighted by its age."""
        self._fold()
        return self._objects.count(ino, now)

    def objects(self) -> list[int]:
        """The objects whose heat is known."""
        self._fold()
        return [ino for ino, _ in self._objects.items()]

    @property
    def complete(self) -> bool:
        """Whether no object was forgotten for want of room."""
        return len(self._objects) < self._limit

    def group_count(self, group: int, now: float) -> float:
        """Opens in *group*, each weighted by its age."""
        self._fold()
        return self._groups.count(group, now)

    def _fold(self) -> None:
        """Add what was collected to the averages: an open itself costs two dictionary entries."""
        if self._opened:
            opened, self._opened = self._opened, {}
            entered, self._entered = self._entered, {}
            self._add(_OBJECTS, self._objects, opened)
            self._add(_GROUPS, self._groups, entered)

    def _add(self, prefix: bytes, heat: Heat, uses: dict[int, int]) -> None:
        for item, times in uses.items():
            gone = heat.use(item, self._since, times)
            self._changed[prefix + item.to_bytes(8, "big")] = None
            if gone is not None:
                self._changed[prefix + gone.to_bytes(8, "big")] = None

    def flush(self) -> None:
        """Hand what changed to the catalog."""
        self._fold()
        if self._changed:
            self._flush(())

    def _flush(self, more: Sequence[tuple[bytes, bytes | None]]) -> None:
        changed, self._changed = self._changed, {}
        self._kv.put_many([*((key, self._record(key)) for key in changed), *more])

    def _record(self, key: bytes) -> bytes | None:
        score = self._heat[key[:2]].score(int.from_bytes(key[2:], "big"))
        return None if score == float("-inf") else _SCORE.pack(score)


def _half_life(kv: KeyValues) -> float | None:
    """The half-life that kept scores were counted with; None when that is not known."""
    record = kv.get(_HALF_LIFE)
    return _SCORE.unpack(record)[0] if record is not None and len(record) == _SCORE.size else None
