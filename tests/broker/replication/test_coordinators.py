"""C2 C6: who coordinates, and that nobody is sent to a broker that is being found dead."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.handlers.groups import join_group
from semel.broker.replication.coordinators import Coordinators
from semel.broker.replication.partition import ReplicatedPartition
from semel.broker.topics.internal import CONSUMER_OFFSETS, TRANSACTION_STATE
from semel.errors import ErrorCode, Refused
from semel.machines.groups.coordinator import GroupCoordinator
from semel.wire.messages.groups import JoinGroupRequest


class Cluster:
    """Broker 2 leads the partition of every transactional id. It may be suspected, and another may be elected."""

    def __init__(self) -> None:
        self.leader, self.suspected = 2, set[int]()
        self.changes = 0
        self.certificates = SimpleNamespace(expects_elections=lambda: False)
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


class Coordinator:
    """A broker that coordinates every group, with a cluster that tells when something has changed."""

    def __init__(self) -> None:
        self.leader = SimpleNamespace(has_enough_replicas=False, state=SimpleNamespace(leader_epoch=0))
        replica = SimpleNamespace(leader=self.leader, leads=True, knows_its_high_watermark=True)
        partition = object.__new__(ReplicatedPartition)
        partition.replica = cast("Any", replica)
        self.changes = 0
        self.has_waited = asyncio.Event()
        self.asked: list[Any] = []
        self.coordinators = Coordinators(cast("Any", self), cast("Any", self))
        self.cluster = self
        self.loop = asyncio.get_running_loop()
        self.topics = SimpleNamespace(topics={CONSUMER_OFFSETS: SimpleNamespace(partitions=[partition] * 50)})
        shell = SimpleNamespace(
            coordinator=GroupCoordinator(),
            host=SimpleNamespace(ready_for=lambda group: True),
            parked=SimpleNamespace(new_token=lambda: 1),
            answer_or_park=lambda decision, token: self.asked.append(decision) or "joined",
        )
        self.groups = shell
        self.access, self.now_ms = None, lambda: 0

    async def changed(self) -> None:
        self.changes += 1
        if self.changes == 3:
            self.has_waited.set()
        await asyncio.sleep(0.01)


CALL = SimpleNamespace(version=9, client_id="c", connection=SimpleNamespace(peer=("127.0.0.1", 1)), principal=None)


def test_who_joins_a_group_that_cannot_be_written_is_held_back_and_no_generation_begins() -> None:
    """Otherwise its members begin one generation after the other, and none can be written: 1,400 in 12 s were seen."""

    async def story() -> None:
        broker = Coordinator()
        request = JoinGroupRequest(group_id="g", session_timeout_ms=10_000, member_id="m")
        answer = await join_group(cast("Any", broker), request, cast("Any", CALL))
        assert (answer.error_code, answer.member_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "m")
        assert broker.changes > 3 and not broker.asked

    asyncio.run(story())


def test_who_joins_meanwhile_joins_as_soon_as_enough_replicas_are_in_sync() -> None:
    async def story() -> None:
        broker = Coordinator()
        request = JoinGroupRequest(group_id="g", session_timeout_ms=10_000, member_id="m")
        joining = asyncio.ensure_future(join_group(cast("Any", broker), request, cast("Any", CALL)))
        await broker.has_waited.wait()
        assert not broker.asked
        broker.leader.has_enough_replicas = True
        assert await joining == "joined" and len(broker.asked) == 1
        assert join_group(cast("Any", broker), request, cast("Any", CALL)) == "joined", "and nobody waits any more"

    asyncio.run(story())
