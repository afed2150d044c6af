"""Groups that rebalance while their members commit: nobody is forgotten, and nobody waits for a ghost."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from semel import Admin, Consumer
from semel.client.cluster.cluster import Cluster
from semel.client.consumer.consumer import AsyncConsumer
from semel.client.group.classic_member import ClassicGroupMember
from semel.client.group.member import Hooks
from semel.config import CONSUMER
from semel.errors import CommitFailed
from semel.machines.values import TopicPartition
from tests.support.waiting import until

SETTINGS = {
    "classic": {"partition.assignment.strategy": "cooperative-sticky"},
    "eager": {"partition.assignment.strategy": "range"},
    "consumer": {"group.protocol": "consumer"},
}


class Committer(threading.Thread):
    """A member that polls and commits in a loop, and writes down under which ids it did."""

    def __init__(self, bootstrap: str, name: str, settings: dict[str, object]) -> None:
        super().__init__(daemon=True)
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 300,
                **settings,
            }
        )
        self.topic = name
        self.over = threading.Event()
        self.member_ids: set[str] = set()
        self.lost: list[TopicPartition] = []
        self.share: set[TopicPartition] = set()
        self.refused = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.consumer.subscribe(self.topic, on_lost=self.lost.extend)
            while not self.over.is_set():
                self.consumer.poll(timeout_ms=100)
                try:
                    self.consumer.commit()
                except CommitFailed:
                    self.refused += 1
                self.share = self.consumer.assignment()
                self.member_ids.add(self.consumer.group_metadata().member_id)
        except BaseException as error:
            self.failure = error

    def end(self) -> None:
        self.over.set()
        self.join(30)
        self.consumer.close(timeout_ms=5_000)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", sorted(SETTINGS))
def test_members_that_join_one_after_another_and_commit_in_a_loop_stay_the_members_they_are(
    bootstrap: str, name: str, protocol: str
) -> None:
    """A member that forgets its id leaves a ghost behind, for which the group waits until its session ends: 45 s."""
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topic(name, 6)
    members: list[Committer] = []
    try:
        for _ in range(3):
            members.append(Committer(bootstrap, name, SETTINGS[protocol]))
            members[-1].start()
            threading.Event().wait(1.5)

        def shared() -> bool:
            assert not any(member.failure for member in members), [member.failure for member in members]
            return [len(member.share) for member in members] == [2, 2, 2]

        until(shared, within_s=40, what="two partitions for each of three")
        assert [len(member.member_ids - {""}) for member in members] == [1, 1, 1], "nobody joined as somebody else"
        assert [member.lost for member in members] == [[], [], []]
    finally:
        for member in members:
            member.end()


def test_a_commit_does_not_wait_behind_a_join(bootstrap: str, name: str) -> None:
    """A broker answers one connection in order, and holds a join until every member is there."""

    async def run() -> None:
        config = {"bootstrap.servers": bootstrap, "group.id": name, "enable.auto.commit": False}
        config |= {"heartbeat.interval.ms": 100, "partition.assignment.strategy": "cooperative-sticky"}
        async with AsyncConsumer(config) as first, AsyncConsumer(config) as second, AsyncConsumer(config) as third:
            for consumer in (first, second):
                await consumer.subscribe([name])
            while not (first.assignment() and second.assignment()):
                await asyncio.gather(first.poll(50), second.poll(50))
            # The third wants to join, the second does not come to poll: the join of the first is held.
            await third.subscribe([name])
            member = first._subscription.member
            assert member is not None
            deadline = time.monotonic() + 30
            while not member.busy or first._subscription._settling is None:
                assert time.monotonic() < deadline
                await asyncio.gather(first.poll(50), third.poll(50))
            (mine,) = first.assignment()
            await asyncio.wait_for(first.commit({mine: 1}), 10)
            found = await asyncio.wait_for(first.committed([mine]), 10)
            assert found[mine].offset == 1
            assert first._subscription._settling is not None, "the join is still held"

    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topic(name, 2)
    asyncio.run(run())


def test_partitions_that_are_to_change_hands_call_the_user_to_poll() -> None:
    """One who takes records one by one comes to `poll` only when called, or after hundreds of them."""

    async def run() -> None:
        called: list[bool] = []

        async def nothing() -> None:
            return None

        async with Cluster({"bootstrap.servers": "127.0.0.1:1"}) as cluster:
            hooks = Hooks(lambda partitions: None, nothing, lambda: called.append(True))
            member = ClassicGroupMember(cluster, CONSUMER.parse({"group.id": "g"}), hooks)

            async def hand_over() -> None:
                async with member._hand_over():
                    pass

            handing_over = asyncio.ensure_future(hand_over())
            await asyncio.sleep(0)
            assert called == [True]
            assert not handing_over.done()
            member.polled()
            await asyncio.wait_for(handing_over, 10)

    asyncio.run(run())
