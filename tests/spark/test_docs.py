"""docs/spark.md, held: the tests it names exist, and the options it lists are the ones that are understood."""

from __future__ import annotations

import inspect
import re

import pytest

from semel.spark.source_options import KNOWN
from tests.support.requirements import CHECKOUT

PAGE = (CHECKOUT / "docs" / "spark.md").read_text()


def test_every_test_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    found = set()
    for folder in ("spark", "machines/pipeline"):
        for path in (CHECKOUT / "tests" / folder).glob("test_*.py"):
            found |= set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    assert len(named) > 15
    assert named - found == set()


@pytest.mark.parametrize("option", KNOWN)
def test_every_option_of_the_source_is_on_the_page(option: str) -> None:
    assert f"`{option}`" in PAGE


def test_every_argument_of_start_is_on_the_page() -> None:
    pytest.importorskip("pyspark")
    from semel.spark import start

    named = set(re.findall(r"`(\w+)`", PAGE))
    assert set(inspect.signature(start).parameters) - {"frame"} - named == set()


def test_the_demo_ends_as_the_tutorial_says() -> None:
    """What it prints is held by `test_demo.py`."""
    assert "\nexactly once: yes\n" in (CHECKOUT / "docs" / "tutorial.md").read_text()
