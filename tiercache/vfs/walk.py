"""All files that a path or a shell pattern names, however many, in little memory.

A directory stands for everything below it. `*`, `?` and `[...]` match within one component, `**`
any number of directories. A name that is there as it is written is never taken for a pattern.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import AsyncGenerator, Awaitable, Iterator
from typing import Final

from tiercache.catalog import Catalog
from tiercache.types import ROOT_INO, Inode, Kind
from tiercache.vfs import names
from tiercache.vfs.namespace import Namespace

_MAGIC: Final = re.compile(rb"[*?[]")
_ANY_DEPTH: Final = b"**"

#: A place in the tree, and the components that what is wanted must still match.
_Step = tuple[Inode, list[bytes]]


class Walker:
    """Walks the tree by its catalog; lists what the catalog does not hold."""

    def __init__(self, namespace: Namespace, catalog: Catalog) -> None:
        self._namespace = namespace
        self._catalog = catalog

    async def files(
        self, pattern: bytes, *, literal: bool = False, deep: bool = True
    ) -> AsyncGenerator[Inode, None]:
        """The files at or below *pattern*, relative to the root; none if there are none.

        *literal*: no character has a meaning. Not *deep*: directories stand for the files right
        in them. Raises what the origin raised.
        """
        stack = [iter([(self._namespace.inode(ROOT_INO), _components(pattern))])]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
                continue
            inode, rest = step
            if inode.kind is Kind.DIRECTORY:
                below = await self._below(inode, rest, literal=literal)
                stack.append(below if deep or rest else filter(_is_file, below))
            elif not rest:
                yield inode

    async def _below(self, inode: Inode, rest: list[bytes], *, literal: bool) -> Iterator[_Step]:
        if not rest:
            await self._list(inode.ino)
            return ((child, []) for _, child in self._catalog.children(inode.ino))
        head, tail = rest[0], rest[1:]
        child = await self._child(inode.ino, head)
        if child is not None:
            return iter([(child, tail)])
        if literal or not _MAGIC.search(head):
            return iter(())
        await self._list(inode.ino)
        if head == _ANY_DEPTH:
            return self._any_depth(inode, rest)
        return (
            (child, tail)
            for name, child in self._catalog.children(inode.ino)
            if fnmatch.fnmatchcase(name, head)
        )

    def _any_depth(self, inode: Inode, rest: list[bytes]) -> Iterator[_Step]:
        yield inode, rest[1:]
        for _, child in self._catalog.children(inode.ino):
            if child.kind is Kind.DIRECTORY:
                yield child, rest

    async def _child(self, ino: int, name: bytes) -> Inode | None:
        if not names.is_name(name):
            return None
        found = self._namespace.lookup(ino, name)
        return (await found if isinstance(found, Awaitable) else found).inode

    async def _list(self, ino: int) -> None:
        if not self._namespace.listed(ino):
            await self._namespace.list(ino)


def _is_file(step: _Step) -> bool:
    return step[0].kind is Kind.FILE


def _components(pattern: bytes) -> list[bytes]:
    """The components of *pattern*; what only repeats "everything below" is left out."""
    parts: list[bytes] = []
    for part in pattern.split(b"/"):
        if part and part != b"." and not (part == _ANY_DEPTH and parts[-1:] == [_ANY_DEPTH]):
            parts.append(part)
    return parts[:-1] if parts[-1:] == [_ANY_DEPTH] else parts
