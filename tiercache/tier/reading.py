"""Reading from mirror files: inline when nothing can block, else in a thread that verifies.

A block is verified by reading all of it. Afterwards its pages are in the page cache, so the inline
way serves the rest of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import xxhash

from tiercache.tier.residency import Residency
from tiercache.tier.system import System, read_whole
from tiercache.types import BLOCK_SIZE, block_span


@dataclass(slots=True)
class Outcome:
    """What reading in a thread found out. `bad` maps blocks to the checksum they should have."""

    verified: list[int] = field(default_factory=list)
    bad: dict[int, int] = field(default_factory=dict)
    error: OSError | None = None


@dataclass(slots=True)
class Plan:
    """Blocks [first, end) as the loop saw them: what a thread may work on without looking back."""

    fd: int
    size: int
    first: int
    checks: list[int | None]  # checksum to verify, None: verified already
    sums: list[int]


def plan(item: Residency, fd: int, first: int, end: int, *, always: bool) -> Plan:
    """What there is to do for blocks [first, end), all of them resident."""
    sums = item.sums[first:end].tolist()
    checks = [
        None if item.verified[block] and not always else sums[block - first]
        for block in range(first, end)
    ]
    return Plan(fd, item.size, first, checks, sums)


def read_planned(system: System, what: Plan, offset: int, into: memoryview) -> Outcome:
    """Fill *into* from *offset*, verifying as planned; in a thread.

    *into* is good only if the outcome has neither bad blocks nor an error.
    """
    outcome = Outcome()
    end = offset + len(into)
    for index, check in enumerate(what.checks):
        block = what.first + index
        low, high = block_span(what.size, block)
        start, stop = max(low, offset), min(high, end)
        part = into[start - offset : stop - offset]
        try:
            if check is None:
                good = read_whole(system, what.fd, part, start)
            else:
                good = _read_checked(system, what.fd, part, (low, high, start), check)
        except OSError as error:
            outcome.error = error
            good = False
        if not good:
            outcome.bad[block] = what.sums[index]
        elif check is not None:
            outcome.verified.append(block)
    return outcome


def _read_checked(
    system: System, fd: int, part: memoryview, span: tuple[int, int, int], check: int
) -> bool:
    low, high, start = span
    whole = part if len(part) == high - low else memoryview(bytearray(high - low))
    if not read_whole(system, fd, whole, low) or xxhash.xxh3_64_intdigest(whole) != check:
        return False
    if whole is not part:
        part[:] = whole[start - low : start - low + len(part)]
    return True


def verify_planned(system: System, what: Plan) -> Outcome:
    """Read every block of the plan only to check it; in a thread."""
    outcome = Outcome()
    buffer = memoryview(bytearray(min(BLOCK_SIZE, what.size)))
    for index, check in enumerate(what.checks):
        if check is None:
            continue
        block = what.first + index
        low, high = block_span(what.size, block)
        try:
            good = _read_checked(system, what.fd, buffer[: high - low], (low, high, low), check)
        except OSError as error:
            outcome.error = error
            good = False
        if good:
            outcome.verified.append(block)
        else:
            outcome.bad[block] = check
    return outcome
