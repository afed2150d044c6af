"""What the tests of clusters share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster


@pytest.fixture
def everybody_lives(cluster: Cluster) -> Iterator[None]:
    """Each test of a shared cluster finds all its brokers, whatever the one before has done."""
    yield
    for broker in cluster.brokers.values():
        if not broker.running.running():
            broker.start()
        broker.thaw()
