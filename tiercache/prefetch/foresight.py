"""When the files of a plan are read next, by inode number: what Belady's rule asks for.

One for all tiers of a mount. The plan knows paths, the policies know numbers; and only here is it
known which files are open: those are being read, however far away their next entry is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tiercache.policy import EvictionPolicy
from tiercache.prefetch.plan import Plan
from tiercache.prefetch.planned import Planned

#: Before every place of a plan.
_NOW: Final = -1


class Foresight:
    """What `Planned` policies share. On the loop."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._policies: list[Planned] = []
        self._open: dict[int, int] = {}  # files of the plan: handles
        #: The path of the version with that number, None unless its name means it now.
        self.key_of: Callable[[int], bytes | None] = lambda _ino: None

    def over(self, policy: EvictionPolicy) -> Planned:
        """*policy*, overruled by the plan while there is one."""
        planned = Planned(policy, self)
        self._policies.append(planned)
        return planned

    def follow(self, plan: Plan | None) -> None:
        """Look into *plan* from now on; whoever is resident has to be introduced again."""
        self._plan = plan
        self._open.clear()
        for policy in self._policies:
            policy.forget()

    # -- what the tree tells ---------------------------------------------------------------------

    def opened(self, ino: int, key: bytes) -> bool:
        """Version *ino* of the file *key* was opened; whether it is one of the plan's."""
        if self._plan is None or self._plan.number(key) is None:
            return False
        self._open[ino] = self._open.get(ino, 0) + 1
        self.moved(ino)
        return True

    def released(self, ino: int) -> bool:
        """A handle of *ino* was closed; whether it was the last one, as far as is known."""
        handles = self._open.pop(ino, 0)
        if handles > 1:
            self._open[ino] = handles - 1
        elif handles:
            self.moved(ino)
        return handles == 1

    def moved(self, ino: int) -> None:
        """The next use of *ino* is another one now."""
        for policy in self._policies:
            policy.moved(ino)

    # -- what policies ask -----------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether anything of a plan is left to be read."""
        return self._plan is not None and not self._plan.done

    @property
    def position(self) -> int:
        """The place that the readers have reached."""
        return 0 if self._plan is None else self._plan.position

    def number(self, ino: int) -> int | None:
        """The number of the path of *ino* in the plan, None if that does not mention it."""
        key = None if self._plan is None else self.key_of(ino)
        return None if self._plan is None or key is None else self._plan.number(key)

    def next_place(self, number: int) -> int:
        """Where path *number* is read next, or NEVER."""
        assert self._plan is not None
        return self._plan.next_place(number)

    def needed(self, ino: int, number: int) -> int:
        """As `next_place` for a resident, which nobody wants to lose while it is open."""
        return _NOW if ino in self._open else self.next_place(number)
