"""The walks in docs/architecture.md are what `tests/walks.py` counts, so that nobody makes them longer unnoticed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from semel.records._select import COMPILED
from tests.walks import Walk, end_txn, micro_batch, produce

ARCHITECTURE = Path(__file__).parent.parent / "docs" / "architecture.md"


needs_compiled = pytest.mark.skipif(not COMPILED, reason="the Python twins of compiled code make the walk longer")


def hops_on_the_page(walk: str) -> int:
    row = re.search(rf"^\| {walk} \|.*\| (\d+) hops, \d+ files \|$", ARCHITECTURE.read_text(), re.M)
    assert row is not None
    return int(row.group(1))


def check(walk: Walk, most: int) -> None:
    assert len(walk.hops) > 15, "the walk was not recorded"
    assert len(walk.hops) <= most, walk


@needs_compiled
def test_a_produce_is_followed_in_as_many_hops_as_the_page_says() -> None:
    check(produce(), hops_on_the_page("Produce of an idempotent producer"))


@needs_compiled
def test_an_end_of_a_transaction_is_followed_in_as_many_hops_as_the_page_says() -> None:
    check(end_txn(), hops_on_the_page("EndTxn to a visible record"))


@needs_compiled
def test_a_micro_batch_is_followed_in_as_many_hops_as_the_page_says() -> None:
    pytest.importorskip("pyarrow")
    check(micro_batch(), hops_on_the_page("Spark micro-batch to its commit"))
