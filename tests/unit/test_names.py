"""What of a listing becomes a name."""

import pytest

from tiercache.catalog import records
from tiercache.types import Inode, Kind, ListPage, ObjectInfo
from tiercache.vfs import names


def test_a_prefix_that_is_no_directory_is_hidden_not_cut():
    page = ListPage((), (b"d/whole/", b"d/nothing-after"), None)
    found, hidden = names.entries(b"d/", page)
    assert [entry.name for entry in found] == [b"whole"]
    assert hidden == 1


@pytest.mark.parametrize("year", [-1, 1, 2261, 2263, 9999])
def test_b01_a_time_of_any_year_can_be_stored(year):
    """One object with an odd date must not take its directory along."""
    mtime_ns = (year - 1970) * 31_556_952 * 10**9
    entry = names.file_entry(b"f", ObjectInfo(b"f", 1, "e", mtime_ns))
    inode = Inode(7, 1, Kind.FILE, 1, entry.mtime_ns, "e", b"f", False)
    packed = records.pack_inode(inode, dated=False)
    stored = records.unpack_inode(records.pack_ino(7), packed)
    assert stored == inode
    assert abs(entry.mtime_ns) <= abs(mtime_ns)
    if 1700 < year < 2262:
        assert entry.mtime_ns == mtime_ns
