import pytest

from tiercache.testing.tree import Trees


@pytest.fixture
def trees(tmp_path):
    return Trees(tmp_path / "cache")
