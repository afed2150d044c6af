"""The client's tests run twice: against Semel's own broker and against Apache Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

import semel


@pytest.fixture(scope="session")
def session_broker() -> Iterator[semel.Broker]:
    """One Semel broker for all of these tests; each uses topics and groups of its own."""
    with semel.Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@pytest.fixture(params=["semel", pytest.param("kafka", marks=pytest.mark.java)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of a broker: ours, then Apache's."""
    fixture = "session_broker" if request.param == "semel" else "apache_kafka"
    address: str = request.getfixturevalue(fixture).bootstrap_servers
    return address


@pytest.fixture
def name() -> str:
    """A name no other test has, for a topic, a group or a transactional id."""
    return f"t-{uuid.uuid4().hex[:10]}"
