"""Every state table has its page in docs/states, and each page says what its table says."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

import semel.machines
from semel.machines.state_pages import PAGES, documents
from semel.machines.table import StatePage, StateTable

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "states"


def all_tables() -> dict[str, StateTable]:
    """Every table that any module of the machines defines."""
    found = {}
    for module in pkgutil.walk_packages(semel.machines.__path__, "semel.machines."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, StateTable):
                found[name] = value
    return found


TABLES = all_tables()


def test_every_table_has_a_page() -> None:
    assert len(TABLES) >= 6
    drawn = [page.table for page in PAGES]
    assert [name for name, table in TABLES.items() if table not in drawn] == []
    assert len({page.name for page in PAGES}) == len(PAGES) == len(set(map(id, drawn)))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_a_row_for_every_state_and_a_use_for_every_event(name: str) -> None:
    table = TABLES[name]
    assert set(table.steps) == set(table.states)
    assert {event for row in table.steps.values() for event in row} == set(table.events)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_state_is_explained_in_a_sentence(page: StatePage) -> None:
    assert set(page.meanings) == set(page.table.states)
    assert all(words.endswith(".") for words in page.meanings.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_the_file_of_its_table(page: StatePage) -> None:
    module = importlib.import_module(page.source.removesuffix(".py").replace("/", "."))
    assert page.table in vars(module).values()


@pytest.mark.parametrize("name", documents())
def test_the_page_is_written_from_the_table(name: str) -> None:
    assert (FOLDER / name).read_text() == documents()[name], "write the pages again: make states"


def test_there_is_no_page_without_a_table() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(documents())
