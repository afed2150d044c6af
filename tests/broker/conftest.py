"""A broker that the tests of one file share; a test that needs settings of its own asks for `semel_broker`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semel.broker.embedded import Broker
from tests.broker.raw import Raw


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def raw(broker: Broker) -> Iterator[Raw]:
    with Raw(broker) as connection:
        yield connection


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name no other test uses."""
    return str(request.node.name)[:200].replace("[", "-").replace("]", "").replace("/", "-").replace("_", "-")
