"""The examples in the client's docstrings are run."""

from __future__ import annotations

import doctest
import importlib
from types import ModuleType

import pytest

import semel
from semel.client import blocking

MODULES = ["arguments", "blocking", "blocking_admin", "cluster", "links", "offsets", "session"]


@pytest.mark.parametrize("module", MODULES)
def test_every_example_does_what_it_says(module: str, semel_broker: semel.Broker) -> None:
    imported: ModuleType = importlib.import_module(f"semel.client.{module}")
    names = {name: getattr(blocking, name) for name in blocking.__all__}
    found = doctest.testmod(imported, extraglobs={**names, "broker": semel_broker.bootstrap_servers}, report=True)
    assert found.attempted > 0
    assert found.failed == 0
