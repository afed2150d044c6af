"""The pytest plugin: a test that uses `semel_broker` gets its own running broker, which is removed afterwards.

Installing Semel registers the fixture with pytest, so a test only has to name it. The broker keeps its data in the
test's temporary directory and listens on a free port of 127.0.0.1. Settings are given in a marker, with Kafka's names:

    @pytest.mark.semel(**{"num.partitions": 3})
    def test_orders(semel_broker):
        producer = confluent_kafka.Producer({"bootstrap.servers": semel_broker.bootstrap_servers})
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from semel.broker.embedded import Broker


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "semel(**settings): settings of the broker behind the semel_broker fixture")


@pytest.fixture
def semel_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A running broker for this test, at `.bootstrap_servers`."""
    from semel.broker.embedded import Broker

    settings: dict[str, object] = {}
    for marker in reversed(list(request.node.iter_markers("semel"))):
        settings.update(marker.kwargs)
    with Broker(tmp_path / "semel-data", settings=settings) as broker:
        yield broker
