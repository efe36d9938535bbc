"""Lookups and listings, and how long they are believed.

The catalog remembers what the origin said and when. Here it is decided whether that is recent
enough, and which single request renews it:

* the directory's first page, which for most directories is all of it and answers every later name;
* for a directory of more than one page, one listing of the name itself, which finds the file and
  the directory of that name at once;
* a HEAD where listing is denied.

Only a real answer makes a name absent. When the origin cannot answer, what was known stays in use
(except in `strict` mode), and what was not known is an error, never absence.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from tiercache.catalog import Catalog, NewEntry
from tiercache.config import MountConfig
from tiercache.errors import (
    AccessDeniedError,
    NotDirectoryError,
    ObjectChangedError,
    ObjectNotFoundError,
    OriginUnavailableError,
)
from tiercache.transfer.requests import Requests, SingleFlight
from tiercache.types import ROOT_INO, Inode, Kind, MaybeAwaitable
from tiercache.vfs import names
from tiercache.vfs.api import Entry, Invalidate

log = logging.getLogger(__name__)

#: "For ever" for the kernel: an immutable version's attributes, or any name in immutable mode.
FOREVER_S = 86_400.0

#: What the kernel may believe of a name that could not be confirmed just now.
_UNCONFIRMED_TTL_S = 1.0

#: Names near one that is asked for: enough to see both `x` and `x/` past most neighbours.
_PROBE_LIMIT = 100

#: Absent names remembered one by one; beyond it the oldest are forgotten.
_ABSENT_MAX = 65_536


@dataclass(slots=True)
class NamespaceStats:
    """Counters for `status`."""

    hidden_keys: int = 0
    unconfirmed: int = 0


class Namespace:
    """Names of the tree, as fresh as the consistency mode asks."""

    def __init__(
        self,
        catalog: Catalog,
        requests: Requests,
        flights: SingleFlight,
        config: MountConfig,
        now: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._requests = requests
        self._flights = flights
        self._now = now
        self._strict = config.consistency == "strict"
        self.reconfigure(config)
        self._absent: OrderedDict[tuple[int, bytes], float] = OrderedDict()
        self._large: dict[int, float] = {}
        self._invalidate: Invalidate = lambda _parent, _name: None
        self.stats = NamespaceStats()

    def reconfigure(self, config: MountConfig) -> None:
        """Believe names for other times, known ones too; the consistency mode stays.

        A kernel that was told of a name believes it for the time it was told then.
        """
        self._ttl = {"immutable": FOREVER_S, "strict": 0.0}.get(
            config.consistency, config.metadata_ttl_s
        )
        self._negative_ttl = 0.0 if self._strict else config.negative_ttl_s

    def on_invalidate(self, invalidate: Invalidate) -> None:
        """Install how to tell the kernel that a name changed."""
        self._invalidate = invalidate

    # -- questions -------------------------------------------------------------------------------

    def lookup(self, parent: int, name: bytes) -> MaybeAwaitable[Entry]:
        """Find *name*, from the catalog while it is fresh."""
        known = self._known(parent, name)
        return known if known is not None else self._renew(parent, name)

    def inode(self, ino: int) -> Inode:
        """The inode *ino*; ObjectChangedError if it is from a catalog that was lost."""
        inode = self._catalog.inode(ino)
        if inode is None:
            raise ObjectChangedError(f"inode {ino} is not known")
        return inode

    def attributes(self, ino: int) -> Entry:
        """Attributes of *ino*. A version's never change, a directory's age like names."""
        inode = self.inode(ino)
        ttl = FOREVER_S if inode.kind is Kind.FILE else max(self._ttl, _UNCONFIRMED_TTL_S)
        return Entry(inode, 0.0, ttl)

    def listed(self, ino: int) -> bool:
        """Whether the catalog holds a fresh, complete listing of directory *ino*."""
        return self.listing_ttl(ino) > 0

    def listing_ttl(self, ino: int) -> float:
        """Seconds for which the names of *ino*'s listing may still be believed."""
        return max(0.0, self._left(self._catalog.listed_at(ino), self._ttl))

    async def list(self, ino: int) -> None:
        """Bring the listing of *ino* up to date."""
        directory = self.directory(ino)
        try:
            await self._flights.do(("list", ino), lambda: self._list(directory, None))
        except OriginUnavailableError as error:
            if self._strict or self._catalog.listed_at(ino) is None:
                raise
            self._unconfirmed(directory.key, error)

    def directory(self, ino: int) -> Inode:
        """The directory *ino*; NotDirectoryError for a file."""
        inode = self.inode(ino)
        if inode.kind is not Kind.DIRECTORY:
            raise NotDirectoryError(f"inode {ino} is not a directory")
        return inode

    async def find(self, path: bytes) -> Inode | None:
        """The file at *path*, below the root, or None.

        Directories on the way are listed whole: whoever asks by path has many more to ask for.
        """
        ino, inode = ROOT_INO, None
        for name in path.split(b"/"):
            if not names.is_name(name):
                return None
            if self._catalog.listed_at(ino) is None:
                await self.list(ino)
            found = self.lookup(ino, name)
            inode = (await found if isinstance(found, Awaitable) else found).inode
            if inode is None:
                return None
            ino = inode.ino
        return inode if inode is not None and inode.kind is Kind.FILE else None

    def after(self, obj: Inode, count: int) -> Sequence[Inode]:
        """Up to *count* files that follow *obj* in its directory, as far as they are known.

        However old that is: what is fetched because of it is pinned to the version it names.
        """
        name = obj.key.rsplit(b"/", 1)[-1]
        files = self._catalog.after(obj.parent, name, count)
        return [file for file in files if file.size and not file.archived]

    def leads_to(self, obj: Inode) -> bool:
        """Whether *obj* is the version that the origin last named, as far as is known."""
        child = self._catalog.child(obj.parent, obj.key.rsplit(b"/", 1)[-1])
        return child is not None and child.inode.ino == obj.ino

    def key_of(self, ino: int) -> bytes | None:
        """The key of the file version *ino*, None if its name means another one, or nothing."""
        obj = self._catalog.inode(ino)
        return obj.key if obj is not None and self.leads_to(obj) else None

    def changed(self, obj: Inode, *, gone: bool) -> None:
        """Note that the origin serves another version of *obj* now, or (*gone*) none."""
        if not self.leads_to(obj):
            return
        name = obj.key.rsplit(b"/", 1)[-1]
        self._catalog.remove(obj.parent, name)
        self._catalog.forget_listing(obj.parent)
        if gone:
            self._note_absent(obj.parent, name)
        self._invalidate(obj.parent, name)

    # -- what is known ---------------------------------------------------------------------------

    def _left(self, seen_at: float | None, ttl: float) -> float:
        """Seconds for which something seen then may still be believed.

        A time in the future means the clock was set back: it says nothing about age.
        """
        now = self._now()
        if seen_at is None or seen_at > now + 1.0:
            return 0.0
        return seen_at + ttl - now

    def _known(self, parent: int, name: bytes) -> Entry | None:
        child = self._catalog.child(parent, name)
        if child is not None:
            left = self._left(child.seen_at, self._ttl)
            return Entry(child.inode, left, FOREVER_S) if left > 0 else None
        left = self._left(self._absent.get((parent, name)), self._negative_ttl)
        if left <= 0:
            left = self._left(self._catalog.listed_at(parent), self._negative_ttl)
        return Entry(None, left, 0.0) if left > 0 else None

    # -- renewing --------------------------------------------------------------------------------

    async def _renew(self, parent: int, name: bytes) -> Entry:
        directory = self.directory(parent)
        asked_at = self._now()
        try:
            await self._ask(directory, name)
        except OriginUnavailableError as error:
            child = self._catalog.child(parent, name)
            if child is None or self._strict:
                raise
            self._unconfirmed(child.inode.key, error)
            return Entry(child.inode, _UNCONFIRMED_TTL_S, FOREVER_S)
        child = self._catalog.child(parent, name)
        if child is None:
            return Entry(None, self._negative_ttl, 0.0)
        return Entry(child.inode, max(0.0, self._left(asked_at, self._ttl)), FOREVER_S)

    async def _ask(self, directory: Inode, name: bytes) -> None:
        """Put what the origin says of *name* now into the catalog, by one request if possible."""
        ino = directory.ino
        large = self._strict or self._left(self._large.get(ino), max(self._ttl, 1.0)) > 0
        if not large and not self.listed(ino):
            try:
                pages = self._flights.do(("page", ino), lambda: self._list(directory, 1))
                if await pages:
                    return
            except AccessDeniedError:
                log.debug("listing %r is denied; asking for single names", directory.key)
            self._large[ino] = self._now()
        await self._flights.do(("name", ino, name), lambda: self._probe(directory, name))

    async def _list(self, directory: Inode, pages_max: int | None) -> bool:
        """List *directory* into the catalog; False when it has more than *pages_max* pages."""
        listing = self._catalog.begin_listing(directory.ino)
        started_at, token, pages = self._now(), None, 0
        while True:
            page = await self._requests.list(directory.key, token)
            found, hidden = names.entries(directory.key, page)
            self._hide(directory.key, hidden)
            self._announce(directory.ino, listing.add(found))
            pages, token = pages + 1, page.token
            if token is None:
                break
            if pages == pages_max:
                return False
        self._announce(directory.ino, listing.finish(started_at))
        return True

    async def _probe(self, directory: Inode, name: bytes) -> None:
        """One listing of the name itself shows the file `x` and the directory `x/`."""
        key = directory.key + name
        seen_at = self._now()
        try:
            page = await self._requests.list(key, limit=_PROBE_LIMIT)
        except AccessDeniedError:
            await self._probe_unlisted(directory, name, seen_at)
            return
        entry = None
        if key + b"/" in page.prefixes or (page.token and await self._has_children(key)):
            entry = names.directory_entry(name)
        else:
            info = next((info for info in page.objects if info.key == key), None)
            if info is not None:
                entry = names.file_entry(name, info)
            elif page.token:
                entry = await self._head(key, name)
        self._record(directory.ino, name, entry, seen_at)

    async def _probe_unlisted(self, directory: Inode, name: bytes, seen_at: float) -> None:
        entry = await self._head(directory.key + name, name)
        self._record(directory.ino, name, entry, seen_at)

    async def _has_children(self, key: bytes) -> bool:
        page = await self._requests.list(key + b"/", delimiter=False, limit=1)
        return bool(page.objects or page.prefixes)

    async def _head(self, key: bytes, name: bytes) -> NewEntry | None:
        try:
            return names.file_entry(name, await self._requests.head(key))
        except ObjectNotFoundError:
            return None

    def _record(self, parent: int, name: bytes, entry: NewEntry | None, seen_at: float) -> None:
        if entry is not None:
            self._absent.pop((parent, name), None)
            self._announce(parent, self._catalog.put(parent, entry, seen_at))
            return
        if self._catalog.remove(parent, name):
            self._announce(parent, (name,))
        self._note_absent(parent, name)

    def _note_absent(self, parent: int, name: bytes) -> None:
        # Renewed only by a new answer of the origin: being asked does not extend it.
        self._absent[parent, name] = self._now()
        self._absent.move_to_end((parent, name))
        if len(self._absent) > _ABSENT_MAX:
            self._absent.popitem(last=False)

    def _announce(self, parent: int, changed: Iterable[bytes]) -> None:
        for name in changed:
            self._invalidate(parent, name)

    def _hide(self, key: bytes, hidden: int) -> None:
        if hidden:
            self.stats.hidden_keys += hidden
            log.info("%d keys below %r are no paths and stay hidden", hidden, key)

    def _unconfirmed(self, key: bytes, error: OriginUnavailableError) -> None:
        self.stats.unconfirmed += 1
        log.info("using what is known of %r: %s", key, error)
