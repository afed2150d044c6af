"""E6: who is certified dead, and that clients who ask who leads are held back until another does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.handlers.metadata import _once_elected
from semel.broker.replication import certificates as module
from semel.broker.replication.answers import led
from semel.broker.replication.certificates import Certificates
from semel.errors import ErrorCode
from semel.machines.replication.values import PartitionState
from semel.machines.values import TopicPartition
from semel.wire.messages.metadata import MetadataRequest


class Cluster:
    """Broker 2 leads the only partition; its port answers as the test wants, and each change elects nobody yet."""

    def __init__(self, *ports: bool) -> None:
        #: Whether the port refuses, one probe after the other.
        self.ports = list(ports)
        self.leader, self.epoch = 2, 7
        self.multis: list[Any] = []
        self.waits = 0
        self.has_waited = asyncio.Event()
        self.reader = SimpleNamespace(registrations={1: None, 2: None, 3: None}, refresh_brokers=lambda: None)
        #: Whose connection has ended, though nobody was told.
        self.lost: set[int] = set()
        self.peers = SimpleNamespace(probe=self._probe, lost=lambda: self.lost)
        self.session = SimpleNamespace(multi=self._multi)
        self.tasks: list[asyncio.Task[Any]] = []
        self.certificates = Certificates(cast("Any", self))

    async def _probe(self, broker: int, timeout_s: float) -> bool:
        return self.ports.pop(0)

    async def _multi(self, operations: Any) -> None:
        self.multis.append(operations)

    @property
    def image(self) -> Any:
        state = PartitionState(self.leader, 4, (1, 2, 3), self.epoch)
        return SimpleNamespace(
            states={TopicPartition("t", 0): (state, 9)},
            controller=1,
            controller_epoch_version=3,
            broker_epoch=lambda broker: self.epoch,
        )

    def state_of(self, topic: str, index: int) -> tuple[Any, tuple[int, ...]]:
        return self.image.states[TopicPartition(topic, index)][0], (1, 2, 3)

    def live_brokers(self) -> list[int]:
        return [1, 2, 3]

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    async def changed(self) -> None:
        self.waits += 1
        if self.waits == 3:
            self.has_waited.set()
        await asyncio.sleep(0.01)

    async def found_out(self) -> None:
        self.certificates.suspect(2)
        await asyncio.gather(*self.tasks)


def told_leader(cluster: Cluster) -> int:
    return led(cast("Any", cluster), "t", 0)[1]


def test_a_port_that_refuses_twice_is_certified_and_nobody_is_sent_there() -> None:
    async def story() -> None:
        cluster = Cluster(True, True)
        assert told_leader(cluster) == 2
        await cluster.found_out()
        assert len(cluster.multis) == 1
        assert led(cast("Any", cluster), "t", 0)[:2] == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        cluster.leader = 3
        assert told_leader(cluster) == 3

    asyncio.run(story())


@pytest.mark.parametrize("ports", [(False,), (True, False)])
def test_a_broker_that_answers_is_not_certified_and_still_told(ports: tuple[bool, ...]) -> None:
    async def story() -> None:
        cluster = Cluster(*ports)
        await cluster.found_out()
        assert not cluster.multis and told_leader(cluster) == 2
        assert not cluster.certificates.expects_elections()

    asyncio.run(story())


def test_the_next_life_of_a_broker_that_was_certified_is_told_at_once() -> None:
    async def story() -> None:
        cluster = Cluster(True, True)
        await cluster.found_out()
        cluster.epoch += 1
        assert told_leader(cluster) == 2 and not cluster.certificates.expects_elections()

    asyncio.run(story())


def test_who_asks_who_leads_is_answered_when_another_is_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ELECTED_WITHIN_S", 60.0)

    async def story() -> None:
        cluster = Cluster(True, True)
        await cluster.found_out()
        described: list[int] = []

        def describe(broker: Any, request: Any, call: Any) -> Any:
            described.append(told_leader(cluster))
            return "described"
            yield

        monkeypatch.setattr("semel.broker.handlers.metadata._metadata", describe)
        broker: Any = SimpleNamespace(
            cluster=cluster,
            topics=SimpleNamespace(by_id={}),
            turns=SimpleNamespace(clock=lambda: 0.0, is_over=lambda since: False),
        )
        call: Any = SimpleNamespace()
        row = MetadataRequest.MetadataRequestTopic
        other = MetadataRequest(topics=[row(name="other")])
        assert await _once_elected(broker, other, call) == "described", "another topic is not waited for"
        asked = asyncio.ensure_future(_once_elected(broker, MetadataRequest(topics=[row(name="t")]), call))
        every = asyncio.ensure_future(_once_elected(broker, MetadataRequest(topics=None), call))
        await cluster.has_waited.wait()
        assert len(described) == 1
        cluster.leader = 3
        assert [await asked, await every] == ["described", "described"]
        assert described == [-1, 3, 3]

    asyncio.run(story())


def test_who_asks_in_the_moment_in_which_a_connection_was_lost_waits_for_the_first_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka asks in the same millisecond. If it is told of the dead leader, it asks again after a second."""
    monkeypatch.setattr(module, "ELECTED_WITHIN_S", 60.0)
    monkeypatch.setattr(module, "REFUSED_WITHIN_S", 60.0)

    async def story(*ports: bool) -> bool:
        cluster = Cluster(*ports)
        cluster.certificates.suspect(2)
        assert cluster.certificates.expects_elections() and told_leader(cluster) == 2
        asked = asyncio.ensure_future(cluster.certificates.elected(["t"]))
        await asyncio.gather(*cluster.tasks)
        if cluster.multis:
            assert not asked.done()
            cluster.leader = 3
        await asyncio.wait_for(asked, 30)
        return bool(cluster.multis)

    assert asyncio.run(story(True, True))
    assert not asyncio.run(story(False)), "it lives, and who waits is answered"


def test_a_connection_that_has_ended_unnoticed_is_noticed_when_a_client_asks() -> None:
    async def story() -> None:
        cluster = Cluster(True, True)
        assert not cluster.certificates.expects_elections()
        cluster.lost.add(2)
        assert cluster.certificates.expects_elections() and cluster.certificates.awaits_election(["t"])
        await asyncio.gather(*cluster.tasks)
        assert len(cluster.multis) == 1

    asyncio.run(story())


def test_who_asks_is_answered_after_a_moment_although_nobody_is_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ELECTED_WITHIN_S", 0.15)

    async def story() -> None:
        cluster = Cluster(True, True)
        await cluster.found_out()
        await asyncio.wait_for(cluster.certificates.elected(["t"]), 30)
        assert told_leader(cluster) == 2, "what the register says"

    asyncio.run(story())
