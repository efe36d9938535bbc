"""docs/CONFIGURATION.md says what the config classes say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tiercache.config import Config, TierConfig
from tiercache.config_fields import settings
from tiercache.config_file import SECTIONS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "configuration_docs.py"


@pytest.fixture(scope="module")
def docs():
    spec = importlib.util.spec_from_file_location("configuration_docs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(docs):
    page = (ROOT / "docs" / "CONFIGURATION.md").read_text()
    assert page == docs.document(), "run scripts/configuration_docs.py"


@pytest.mark.parametrize("name", [*SECTIONS, "tier"])
def test_every_key_has_a_line_that_explains_it(docs, name):
    kind = {**SECTIONS, "tier": TierConfig}[name]
    lines = list(docs.rows(kind))[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0].strip("`") for row in cells] == list(settings(kind))
    assert [row[0] for row in cells if not row[-1]] == []


def test_the_log_level_is_there_and_sections_are_not_keys(docs):
    [line] = list(docs.rows(Config))[2:]
    assert line.startswith("| `log_level` | text | `info` |")
