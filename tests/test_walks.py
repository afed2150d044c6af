"""The walks in docs/architecture.md are what `tests/walks.py` counts, so that nobody makes them longer unnoticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from semel.records._select import COMPILED
from tests.walks import end_txn

ARCHITECTURE = Path(__file__).parent.parent / "docs" / "architecture.md"


@pytest.mark.skipif(not COMPILED, reason="the Python twins of compiled code make the walk longer")
def test_an_end_of_a_transaction_is_followed_in_as_many_hops_as_the_page_says() -> None:
    row = re.search(r"^\| EndTxn to a visible record \|.*\| (\d+) hops, \d+ files \|$", ARCHITECTURE.read_text(), re.M)
    assert row is not None
    walk = end_txn()
    assert len(walk.hops) > 20, "the walk was not recorded"
    assert len(walk.hops) <= int(row.group(1)), walk
