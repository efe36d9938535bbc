"""The planned epoch: all of every stream object once, in the same order each time."""

from bench.cold_plan import PIECE, pieces
from bench.workspace import Dataset, Scale
from tiercache.types import MIB

SCALE = Scale("tiny", 2 * MIB, 5, 3000, 2, 16, 5, PIECE * 2 + 5, 4)


def test_the_epoch_covers_every_byte_once():
    dataset = Dataset(SCALE, streams=3)
    epoch = pieces(dataset)
    for name in dataset.stream_names():
        place = 0
        for piece in sorted(piece for piece in epoch if piece.name == name):
            assert piece.offset == place
            place += piece.size
        assert place == SCALE.stream_size


def test_the_epoch_is_shuffled_alike_in_every_run():
    dataset = Dataset(SCALE, streams=3)
    assert pieces(dataset) == pieces(dataset)
    assert pieces(dataset) != sorted(pieces(dataset))
