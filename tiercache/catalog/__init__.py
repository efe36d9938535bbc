"""Names, inodes and listings in LMDB, and a key-value space for whoever needs one that lasts.

Start at `catalog.Catalog`. `listing` streams listings into it, `writer` decides what a name means,
`records` is the stored form, `store` the LMDB environment, `opening` distrusts what is on the disk,
`numbers` hands out inode numbers that never repeat, `keyvalues` is the space for others.
"""

from tiercache.catalog.catalog import Catalog, Child
from tiercache.catalog.listing import Listing
from tiercache.catalog.writer import Change, NewEntry

__all__ = ["Catalog", "Change", "Child", "Listing", "NewEntry"]
