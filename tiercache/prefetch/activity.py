"""Which datasets readers are streaming through. Pure: time is an argument, in seconds.

A dataset is active once enough of it was read that was not local, be it many small files or much of
a few large ones: who looks at a file or two does not want the rest. It stays so as long as anything
of it is used.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from tiercache.types import MIB

#: Opens of files that are not all local, or bytes read of such: readers stream through the dataset.
PROOF_OPENS: Final = 8
PROOF_BYTES: Final = 32 * MIB

#: Unused for so long, a dataset is no longer active.
IDLE_S: Final = 60.0

#: What was filled, or found no room, is not looked at again for so long.
AGAIN_S: Final = 60.0

#: Datasets that are told apart; the one not used for the longest time is forgotten first.
_DATASETS_MAX: Final = 256


@dataclass(slots=True)
class _Dataset:
    opens: int = 0
    nbytes: int = 0
    used_at: float = 0.0
    again_at: float = float("-inf")

    def due(self, now: float) -> bool:
        proven = self.opens >= PROOF_OPENS or self.nbytes >= PROOF_BYTES
        return proven and self.again_at <= now <= self.used_at + IDLE_S


class Activity:
    """The datasets in use, by name."""

    def __init__(self) -> None:
        self._datasets: OrderedDict[bytes, _Dataset] = OrderedDict()

    def used(self, name: bytes, now: float, *, opens: int = 0, nbytes: int = 0) -> bool:
        """Something of *name* was used; whether it is due to be filled.

        *opens* of files that are not all local, and *nbytes* read of such.
        """
        found = self._datasets.get(name)
        if found is None:
            found = self._datasets[name] = _Dataset()
            if len(self._datasets) > _DATASETS_MAX:
                self._datasets.popitem(last=False)
        else:
            self._datasets.move_to_end(name)
        found.opens += opens
        found.nbytes += nbytes
        found.used_at = now
        return found.due(now)

    def due(self, now: float) -> bytes | None:
        """The dataset to fill, of several the one used last; None: there is none."""
        names = (name for name in reversed(self._datasets) if self._datasets[name].due(now))
        return next(names, None)

    def over(self, name: bytes, now: float) -> None:
        """There is nothing more to do for *name* until more of it is read that is not local."""
        found = self._datasets.get(name)
        if found is not None:
            found.opens = found.nbytes = 0
            found.again_at = now + AGAIN_S
