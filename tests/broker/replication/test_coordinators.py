"""C2 C6: who coordinates, and that nobody is sent to a broker that is being found dead."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.replication.coordinators import Coordinators
from semel.broker.topics.internal import TRANSACTION_STATE
from semel.errors import ErrorCode, Refused


class Cluster:
    """Broker 2 leads the partition of every transactional id. It may be suspected, and another may be elected."""

    def __init__(self) -> None:
        self.leader, self.suspected = 2, set[int]()
        self.changes = 0
        self.reader = SimpleNamespace(registrations={1: None, 2: None, 3: None})
        host = SimpleNamespace(coordinator=SimpleNamespace(partition_for=lambda key: 0))
        broker = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            topics=SimpleNamespace(topics={TRANSACTION_STATE: None}),
            transactions=SimpleNamespace(host=host),
        )
        self.coordinators = Coordinators(cast("Any", broker), cast("Any", self))

    def state_of(self, topic: str, index: int) -> tuple[Any, tuple[int, ...]]:
        return SimpleNamespace(leader=self.leader), ()

    def is_suspected(self, broker: int) -> bool:
        return broker in self.suspected

    async def changed(self) -> None:
        self.changes += 1
        await asyncio.sleep(0.01)
        if self.changes == 3:
            self.leader = 3


def test_a_client_is_not_sent_to_a_broker_that_is_being_found_dead() -> None:
    async def story() -> None:
        cluster = Cluster()
        assert await cluster.coordinators.find(TRANSACTION_STATE, "id") == 2
        cluster.suspected.add(2)
        assert await cluster.coordinators.find(TRANSACTION_STATE, "id") == 3

    asyncio.run(story())


def test_while_nobody_leads_a_client_is_held_back_and_then_told() -> None:
    async def story() -> None:
        cluster = Cluster()
        cluster.leader, cluster.changes = -1, 1000
        with pytest.raises(Refused) as refused:
            await cluster.coordinators.find(TRANSACTION_STATE, "id")
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    asyncio.run(story())
