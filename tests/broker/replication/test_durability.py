"""C1: what a coordinator wrote counts when it is committed, and a leader that is replaced has told nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from semel.broker.coordinators.host import CoordinatorHost
from semel.broker.durability import FsyncDurability
from semel.broker.replication.durability import ReplicatedDurability
from semel.broker.replication.partition import ReplicatedPartition
from semel.errors import ErrorCode
from semel.machines.contract import AnswerParked, Decision, Effect, StateRecord
from semel.machines.groups.committed_offsets import NO_TOPIC_ID, CommittedOffset
from semel.machines.groups.coordinator import GroupCoordinator
from semel.machines.groups.records import offset_record
from semel.wire.messages.groups import SyncGroupResponse
from semel.wire.messages.offsets import OffsetFetchRequest, OffsetFetchResponse

RECORDS = (StateRecord(0, b"key", b"value"),)


class Follows(Effect):
    """Something that follows from a written record."""


class Performed:
    def __init__(self) -> None:
        self.effects: list[Any] = []

    def perform(self, effect: Any) -> None:
        self.effects.append(effect)

    def is_awaited(self, effect: Any) -> bool:
        return True


class Replica:
    """A replica whose commits the test decides."""

    def __init__(self) -> None:
        self.log = SimpleNamespace(end_offset=7)
        self.waits: list[asyncio.Future[ErrorCode]] = []

    def committed(self, offset: int) -> asyncio.Future[ErrorCode]:
        assert offset == 7
        self.waits.append(asyncio.get_running_loop().create_future())
        return self.waits[-1]

    def tell(self, code: ErrorCode) -> None:
        for wait in self.waits:
            if not wait.done():
                wait.set_result(code)


class Hosted:
    """A coordinator that serves partition 0 under epoch 5."""

    def __init__(self) -> None:
        self.replica = Replica()
        partition = object.__new__(ReplicatedPartition)
        partition.replica = cast("Any", self.replica)
        self.performed = Performed()
        self.host: Any = SimpleNamespace(
            topic_name="__consumer_offsets",
            coordinator=GroupCoordinator(),
            loaded={0: partition},
            epochs={0: 5},
            performers={Follows: self.performed, AnswerParked: self.performed},
            partitions_of=lambda keys: {0},
        )
        loop = asyncio.get_running_loop()

        def spawn(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
            return loop.create_task(work)

        self.durability = ReplicatedDurability(cast("Any", None), cast("Any", None), spawn)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_effects_and_reply_wait_until_the_record_is_committed() -> None:
    async def story() -> None:
        hosted = Hosted()
        reply = SyncGroupResponse(assignment=b"yours")
        answer = asyncio.ensure_future(
            hosted.durability.answer(hosted.host, Decision(reply, RECORDS, (Follows(),)), reply, ())
        )
        await turns()
        assert not answer.done() and not hosted.performed.effects
        hosted.replica.tell(ErrorCode.NONE)
        assert await answer is reply
        assert len(hosted.performed.effects) == 1

    asyncio.run(story())


def test_who_waits_when_another_leads_is_told_not_coordinator_and_nothing_follows() -> None:
    async def story() -> None:
        hosted = Hosted()
        reply = SyncGroupResponse(assignment=b"yours")
        parked = AnswerParked(3, SyncGroupResponse(assignment=b"theirs"))
        answer = asyncio.ensure_future(
            hosted.durability.answer(hosted.host, Decision(reply, RECORDS, (Follows(), parked)), reply, ())
        )
        await turns()
        hosted.host.loaded.clear()
        hosted.host.epochs.clear()
        hosted.replica.tell(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert (await answer).error_code == ErrorCode.NOT_COORDINATOR
        (told,) = hosted.performed.effects
        assert (told.token, told.reply.error_code) == (3, ErrorCode.NOT_COORDINATOR), "who was parked is told as well"

    asyncio.run(story())


def test_a_decision_is_not_carried_out_under_a_later_leadership() -> None:
    """The later one has loaded the record, and does by itself what follows from it."""

    async def story() -> None:
        hosted = Hosted()
        hosted.durability.settle(hosted.host, Decision(None, RECORDS, (Follows(),)))
        await turns()
        hosted.host.epochs[0] = 6
        hosted.replica.tell(ErrorCode.NONE)
        await turns()
        assert not hosted.performed.effects

    asyncio.run(story())


def test_a_question_is_answered_once_all_that_it_may_tell_is_committed() -> None:
    async def story() -> None:
        hosted = Hosted()
        reply = SyncGroupResponse(assignment=b"yours")
        answer = asyncio.ensure_future(hosted.durability.answer(hosted.host, Decision(reply), reply, ("group",)))
        await turns()
        assert not answer.done()
        hosted.replica.tell(ErrorCode.NONE)
        assert await answer is reply

    asyncio.run(story())


def test_with_fsync_who_is_parked_is_answered_when_the_disk_fails() -> None:
    """Its group has forgotten the request: nobody else would answer it."""

    async def story() -> None:
        hosted = Hosted()
        partition = hosted.host.loaded[0]

        async def flush(partitions: Any) -> frozenset[Any]:
            return frozenset(partitions)

        hosted.host.unflushed = lambda indexes: [partition]
        loop = asyncio.get_running_loop()
        durability = FsyncDurability(cast("Any", SimpleNamespace(flush=flush)), loop.create_task)
        parked = AnswerParked(3, SyncGroupResponse(assignment=b"theirs"))
        durability.settle(hosted.host, Decision(None, RECORDS, (Follows(), parked)))
        await turns()
        (told,) = hosted.performed.effects
        assert (told.token, told.reply.error_code) == (3, ErrorCode.NOT_COORDINATOR)

    asyncio.run(story())


def test_offsets_that_were_read_before_another_broker_leads_are_told_to_nobody() -> None:
    """C1: an OffsetFetch is served in several turns. What it has read may not be committed, and is forgotten with the
    partition: nobody is left to wait for."""

    def story() -> tuple[CoordinatorHost, dict[int, int], OffsetFetchResponse]:
        coordinator = GroupCoordinator()
        never = SimpleNamespace(coordinators=SimpleNamespace(may_load=lambda topic, index: False))
        durability = SimpleNamespace(reply_once_durable=lambda host, reply, indexes: reply)
        broker: Any = SimpleNamespace(cluster=never, durability=durability)
        host = CoordinatorHost(broker, "__consumer_offsets", coordinator, {})
        index = coordinator.partition_for("g")
        coordinator.load(index, 5)
        host.loaded[index] = cast("Any", None)
        coordinator.loaded(index, 0)
        coordinator.replay(offset_record(index, "g", "t", 0, CommittedOffset(7, -1, "", 0, -1, NO_TOPIC_ID, 0)))
        terms: dict[int, int] = {}
        host.begin_reply("g", terms)
        kind = OffsetFetchRequest
        group = kind.OffsetFetchRequestGroup(
            group_id="g", topics=[kind.OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        )
        return host, terms, coordinator.offset_fetch(kind(groups=[group]), 9, 0).reply

    host, terms, reply = story()
    assert host.once_on_disk(reply, terms) is reply
    assert reply.groups[0].topics[0].partitions[0].committed_offset == 7

    host, terms, reply = story()
    (index,) = terms
    host.unload(index)
    told = host.once_on_disk(reply, terms)
    assert told.groups[0].error_code == ErrorCode.NOT_COORDINATOR
    assert told.groups[0].topics[0].partitions[0].committed_offset == -1


def test_a_refused_answer_to_offset_fetch_carries_no_offset() -> None:
    """What is not replicated may be lost with its leader: nobody may go on from it."""
    kind = OffsetFetchResponse
    old = kind.OffsetFetchResponsePartition(partition_index=1, committed_offset=7, metadata="m")
    new = kind.OffsetFetchResponsePartitions(partition_index=1, committed_offset=7, committed_leader_epoch=2)
    reply = kind(
        topics=[kind.OffsetFetchResponseTopic(name="t", partitions=[old])],
        groups=[
            kind.OffsetFetchResponseGroup(
                group_id="g", topics=[kind.OffsetFetchResponseTopics(name="t", partitions=[new])]
            )
        ],
    )
    told = GroupCoordinator().refused_reply(reply, ErrorCode.REQUEST_TIMED_OUT)
    for row in (told.topics[0].partitions[0], told.groups[0].topics[0].partitions[0]):
        assert row.error_code != ErrorCode.NONE
        assert (row.committed_offset, row.committed_leader_epoch, row.metadata) == (-1, -1, "")
    assert new.committed_offset == 7, "the reply itself is not changed"
