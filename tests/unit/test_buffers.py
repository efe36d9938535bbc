from tiercache.transfer.buffers import BufferPool, rounded
from tiercache.types import MIB


def test_sizes_are_rounded_to_powers_of_two_above_a_block():
    assert [rounded(n) for n in (1, MIB - 1, MIB, MIB + 1, 5 * MIB)] == [
        1,
        MIB - 1,
        MIB,
        2 * MIB,
        8 * MIB,
    ]


def test_a_buffer_comes_back_whole():
    pool = BufferPool(8 * MIB)
    first = pool.take(3 * MIB)
    assert len(first) == 3 * MIB
    memory = first.obj
    pool.give(first)
    again = pool.take(4 * MIB)
    assert again.obj is memory and len(again) == 4 * MIB


def test_keeps_no_more_than_told():
    pool = BufferPool(2 * MIB)
    views = [pool.take(2 * MIB) for _ in range(2)]
    memories = {id(v.obj) for v in views}
    for view in views:
        pool.give(view)
    taken = [pool.take(2 * MIB) for _ in range(2)]
    assert len(memories & {id(v.obj) for v in taken}) == 1


def test_small_bodies_are_plain_memory():
    pool = BufferPool(8 * MIB)
    view = pool.take(100)
    assert isinstance(view.obj, bytearray) and not view.readonly
    pool.give(view)
