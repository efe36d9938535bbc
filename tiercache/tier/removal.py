"""How local copies go away.

Removing is immediate for the name and lazy for the bytes: the file is unlinked at once (large ones
are renamed and unlinked by a thread), and its bytes stay in the account until nothing holds them.
The kernel may hold a file as the backing of open handles; such a file is only ever unlinked, never
punched or truncated, because a hole would read as zeros.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext

from tiercache.tier.files import OpenFiles
from tiercache.tier.limits import Surroundings
from tiercache.tier.place import Place
from tiercache.tier.records import KEPT_PREFIX, decode_kept, encode_kept, kept_key, key_ino
from tiercache.tier.residency import Residency
from tiercache.tier.table import Table
from tiercache.types import KeyValues


class Removal:
    """Evicts, unlinks, and knows what the kernel still holds. On the loop."""

    def __init__(self, table: Table, files: OpenFiles, around: Surroundings) -> None:
        self._table = table
        self._files = files
        self._system = around.system
        self._inline_max = around.limits.unlink_inline
        self._kept: dict[int, int] = {}
        self._ghosts: dict[int, list[Residency]] = {}
        #: Renamed files for a thread to unlink.
        self.queue: deque[tuple[str, Residency]] = deque()
        self.on_evicted: Callable[[int], None] = lambda _ino: None
        self.on_queue: Callable[[], None] = lambda: None

    # -- removing --------------------------------------------------------------------------------

    def remove(self, item: Residency, *, evicted: bool = False) -> int:
        """Take away the local copy *item*; bytes that are or will come free.

        *evicted*: because the policy of its tier said so.
        """
        self._retire(item, evicted=evicted)
        self._table.forget(item)
        self._bury(item)
        return item.charged

    def replace(self, item: Residency, new: Residency) -> None:
        """*new*, a copy at another place, takes over from *item*: recorded first, then unlinked."""
        self._retire(item, evicted=False)
        self._table.replace(item, new)
        self._bury(item)

    def _retire(self, item: Residency, *, evicted: bool) -> None:
        """Take *item* out of the accounts of what is resident."""
        assert item.place is not None
        assert item.tier is not None
        if item.pinned:
            item.tier.pin(-item.charged)
        else:
            item.tier.policy.remove(item.ino, evicted=evicted)
        self._table.discharge(item)
        item.place.unlinked += item.charged
        with item.opening or nullcontext():
            item.dead = True

    def _bury(self, item: Residency) -> None:
        """Let go of the file, as soon as nobody holds it."""
        if not item.reads:
            self._files.close(item)
        self._discard(item)
        if self._kept.get(item.ino):
            self._haunt(item)
        self.on_evicted(item.ino)
        self._free_if_idle(item)

    def _discard(self, item: Residency) -> None:
        assert item.place is not None
        assert item.tier is not None
        data = item.place.data(item.name)
        with contextlib.suppress(OSError):
            self._system.unlink(item.place.meta(item.name))
        with contextlib.suppress(OSError):
            if item.charged <= self._inline_max:
                self._system.unlink(data)
                return
            # The name must be free at once: a new copy may be begun before the thread is done.
            trash = item.place.trash()
            self._system.rename(data, trash)
            item.holds += 1
            item.tier.leaving += item.charged
            self.queue.append((trash, item))
            self.on_queue()

    def unlink_queued(self, path: str) -> None:
        """Unlink a queued file; for a thread."""
        with contextlib.suppress(OSError):
            self._system.unlink(path)

    def unlinked(self, item: Residency) -> None:
        """A queued file of *item* is gone."""
        assert item.tier is not None
        item.tier.leaving -= item.charged
        self.unhold(item)

    def unhold(self, item: Residency) -> None:
        """One reason less for the bytes of *item* to stay."""
        item.holds -= 1
        self._free_if_idle(item)

    def _free_if_idle(self, item: Residency) -> None:
        if item.dead and not item.holds and item.place is not None:
            self._files.close(item)
            item.place.unlinked -= item.charged
            item.place = None

    # -- what the kernel holds -------------------------------------------------------------------

    def is_kept(self, ino: int) -> bool:
        """Whether the kernel holds the mirror file of *ino*."""
        return ino in self._kept

    def kept(self, ino: int) -> None:
        """The kernel holds the mirror file of *ino*, once more."""
        self._kept[ino] = self._kept.get(ino, 0) + 1

    def gone(self, ino: int) -> None:
        """The kernel holds it once less."""
        left = self._kept.pop(ino, 0) - 1
        if left > 0:
            self._kept[ino] = left
        else:
            self._exorcise(ino)

    def _haunt(self, item: Residency) -> None:
        assert item.place is not None
        item.holds += 1
        ghosts = self._ghosts.setdefault(item.ino, [])
        ghosts.append(item)
        nbytes = sum(ghost.charged for ghost in ghosts)
        self._table.note(kept_key(item.ino), encode_kept(item.place.ident, nbytes))

    def _exorcise(self, ino: int) -> None:
        ghosts = self._ghosts.pop(ino, None)
        if ghosts is None:
            return
        self._table.note(kept_key(ino), None)
        for ghost in ghosts:
            self.unhold(ghost)

    def recall(self, kv: KeyValues, places: dict[bytes, Place]) -> None:
        """Count again what an earlier process unlinked while the kernel held it."""
        for key, record in kv.scan(KEPT_PREFIX):
            note = decode_kept(record)
            if note is None or note[0] not in places:
                continue
            ghost = Residency(key_ino(key), 0, "")
            ghost.place = places[note[0]]
            ghost.tier = ghost.place.tier
            ghost.charged = note[1]
            ghost.dead = True
            ghost.holds = 1
            ghost.place.unlinked += ghost.charged
            self._ghosts[ghost.ino] = [ghost]

    def give_up_unclaimed(self) -> None:
        """Free the bytes of recalled files that no kernel claimed: the mount is another one."""
        for ino in [ino for ino in self._ghosts if ino not in self._kept]:
            self._exorcise(ino)
