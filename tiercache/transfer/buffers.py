"""Memory for bodies in flight, recycled.

Fresh memory is slow to touch, above all on virtual machines, so large buffers are mmaps kept for
reuse by size class (1, 2, 4 ... MiB). Small bodies take a plain bytearray: the allocator already
recycles those. The caller keeps within its memory budget; this only remembers what is free.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap

from tiercache.types import BLOCK_SIZE, MIB

_HUGE = 2 * MIB

#: glibc's only; other allocators do it by themselves.
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _keep: 0)


def rounded(nbytes: int) -> int:
    """How much memory a body of *nbytes* takes: itself below a block, else a power of two."""
    return nbytes if nbytes < BLOCK_SIZE else 1 << (nbytes - 1).bit_length()


class BufferPool:
    """Free buffers by size class; holds at most *keep* bytes that nobody uses."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._kept = 0
        self._free: dict[int, list[memoryview]] = {}

    def take(self, nbytes: int) -> memoryview:
        """Writable memory of exactly *nbytes*, content undefined."""
        if nbytes < BLOCK_SIZE:
            return memoryview(bytearray(nbytes))
        size = rounded(nbytes)
        free = self._free.get(size)
        if free:
            self._kept -= size
            whole = free.pop()
        else:
            whole = memoryview(_map(size))
        return whole[:nbytes]

    def give(self, view: memoryview) -> None:
        """Take *view* back. Nobody may look at it any more."""
        whole = view.obj
        if not isinstance(whole, mmap.mmap):
            return
        size = len(whole)
        if self._kept + size <= self._keep:
            self._kept += size
            self._free.setdefault(size, []).append(memoryview(whole))

    def trim(self) -> None:
        """Give all free memory back to the system."""
        self._free.clear()
        self._kept = 0


def trim_heap() -> None:
    """Have the allocator give back what it holds free; on any thread, as it takes its time."""
    _malloc_trim(0)


def _map(size: int) -> mmap.mmap:
    """Private anonymous memory, in huge pages where there are any: one fault per 2 MiB."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
