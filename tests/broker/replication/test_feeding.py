"""Feeding followers: what an append costs, what is sent, and what is not sent again (P2, R6, R7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from semel.broker.later_reply import LaterReply
from semel.broker.replication.feeding import WATERMARK_WAIT_S, Feeds
from semel.broker.replication.partition import ReplicatedPartition
from semel.environment import MACHINE
from semel.errors import ErrorCode, Refused
from semel.machines.replication.leader import Fetched
from semel.machines.replication.values import Diverging, FetchFrom
from semel.wire.messages.fetch import FetchRequest, FetchResponse

TOPIC = UUID(int=7)


class Partition(ReplicatedPartition):
    """One whose replica the test decides about."""

    __slots__ = ("end", "epoch", "reads", "said", "start", "watermark")

    is_served = True  # type: ignore[assignment]

    def __init__(self) -> None:
        self.end = self.watermark = self.reads = self.start = 0
        self.epoch = 3
        self.said = Fetched()
        self.feeds = []
        self.watchers = {}
        self.replica = cast(Any, _Replica(self))

    # What a feed asks of a log

    reader = property(lambda self: self)  # type: ignore[assignment]
    end_offset = property(lambda self: self.end)
    high_watermark = property(lambda self: self.watermark)
    log_start_offset = property(lambda self: self.start)

    def read(self, offset: int, most: int, isolation: int, *, at_least_one: bool) -> Any:
        self.reads += 1
        data = b"x" * (self.end - offset)
        if len(data) > most and not at_least_one:
            data = b""
        return SimpleNamespace(
            data=data, high_watermark=self.watermark, last_stable_offset=self.watermark, log_start_offset=self.start
        )

    def append(self, count: int = 1) -> None:
        self.end += count
        for fed in self.feeds:
            fed.has_changed()


class _Replica:
    """The replica of a `Partition`."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.log = partition

    @property
    def leader(self) -> Any:
        return SimpleNamespace(state=SimpleNamespace(leader_epoch=self._partition.epoch))

    def fetched(self, fetch: FetchFrom) -> Fetched:
        return self._partition.said


class Stage:
    def __init__(self, partitions: int) -> None:
        self.partitions = [Partition() for _ in range(partitions)]
        self.suspected: list[int] = []
        topic = SimpleNamespace(partitions=self.partitions)
        broker = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            now_ms=lambda: 0,
            topics=SimpleNamespace(by_id={TOPIC: topic}),
            environment=MACHINE,
        )
        membership = SimpleNamespace(suspect=self.suspected.append)
        self.feeds = membership.feeds = Feeds(cast(Any, broker), cast(Any, membership))
        self.session_id = 0
        self.epoch = 0

    def fetch(self, *named: tuple[int, int], wait_ms: int = 60_000, epoch: int | None = None) -> Any:
        """A fetch of broker 2 that names these (partition, offset)."""
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=2, replica_epoch=9),
            max_wait_ms=wait_ms,
            session_id=self.session_id,
            session_epoch=self.epoch if epoch is None else epoch,
            topics=[
                FetchRequest.FetchTopic(
                    topic_id=TOPIC,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=index, current_leader_epoch=3, fetch_offset=offset, partition_max_bytes=1000
                        )
                        for index, offset in named
                    ],
                )
            ],
        )
        return self.feeds.begin(request).fetch(request)

    async def open(self) -> None:
        """A session over all partitions, whose follower knows every high watermark."""
        answer = self.fetch(*((index, 0) for index in range(len(self.partitions))), wait_ms=0)
        self.session_id, self.epoch = answer.session_id, 1
        known = len(rows(answer))
        while known < len(self.partitions):
            await asyncio.sleep(WATERMARK_WAIT_S)
            known += len(rows(self.fetch(wait_ms=0)))
            self.epoch += 1

    def next(self, *named: tuple[int, int]) -> Any:
        answer = self.fetch(*named)
        self.epoch += 1
        return answer


def rows(response: FetchResponse) -> dict[int, FetchResponse.PartitionData]:
    return {row.partition_index: row for topic in response.responses for row in topic.partitions}


def play(story: Callable[[Stage], Any], partitions: int = 3) -> None:
    async def run() -> None:
        stage = Stage(partitions)
        await stage.open()
        await asyncio.wait_for(story(stage), 60)
        stage.feeds.close()

    asyncio.run(run())


def test_an_append_wakes_the_fetch_and_costs_the_same_with_a_thousand_partitions() -> None:
    async def story(stage: Stage) -> None:
        waiting = stage.next()
        assert isinstance(waiting, LaterReply)
        before = sum(each.reads for each in stage.partitions)
        stage.partitions[500].append(7)
        answer = await waiting.wait()
        assert {index: bytes(row.records or b"") for index, row in rows(answer).items()} == {500: b"x" * 7}
        assert sum(each.reads for each in stage.partitions) == before + 1

    play(story, partitions=1000)


def test_what_one_turn_writes_to_several_partitions_is_one_answer() -> None:
    async def story(stage: Stage) -> None:
        waiting = stage.next()
        stage.partitions[0].append()
        stage.partitions[2].append()
        assert sorted(rows(await waiting.wait())) == [0, 2]

    play(story)


def test_what_was_sent_is_not_sent_again_before_the_follower_has_said_where_it_is() -> None:
    async def story(stage: Stage) -> None:
        waiting = stage.next()
        stage.partitions[0].append(5)
        await waiting.wait()
        waiting = stage.next()  # it has not taken the answer yet
        stage.partitions[0].append(5)
        stage.partitions[1].append(1)
        assert sorted(rows(await waiting.wait())) == [1]
        answer = stage.next((0, 5))
        assert bytes(rows(answer)[0].records or b"") == b"x" * 5

    play(story)


def test_a_later_request_ends_the_wait_of_an_earlier_one() -> None:
    async def story(stage: Stage) -> None:
        first = stage.next()
        second = stage.next()
        assert rows(await first.wait()) == {}
        assert not second.is_finished

    play(story)


def test_nothing_is_sent_under_another_leader_epoch() -> None:
    async def story(stage: Stage) -> None:
        waiting = stage.next()
        stage.partitions[0].epoch = 4  # elected again; the follower does not know yet
        stage.partitions[0].append(5)
        row = rows(await waiting.wait())[0]
        assert (row.error_code, bytes(row.records or b"")) == (ErrorCode.FENCED_LEADER_EPOCH, b"")

    play(story)


def test_where_the_logs_part_nothing_else_is_said() -> None:
    async def story(stage: Stage) -> None:
        stage.partitions[0].append(5)
        stage.partitions[0].said = Fetched(diverging=Diverging(2, 1))
        row = rows(stage.next((0, 3)))[0]
        assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (2, 1)
        assert (bytes(row.records or b""), row.high_watermark) == (b"", -1)

    play(story)


def test_a_high_watermark_that_moved_is_told_though_nothing_is_written() -> None:
    async def story(stage: Stage) -> None:
        stage.partitions[0].append(5)
        rows(stage.next())
        waiting = stage.next((0, 5))
        stage.partitions[0].watermark = 5
        stage.partitions[0].feeds[0].has_moved()
        began = asyncio.get_running_loop().time()
        row = rows(await waiting.wait())[0]
        assert row.high_watermark == 5
        assert asyncio.get_running_loop().time() - began >= WATERMARK_WAIT_S * 0.9

    play(story)


def test_a_request_out_of_order_and_one_of_another_session_are_refused() -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(Refused) as out_of_order:
            stage.fetch(epoch=stage.epoch + 1)
        assert out_of_order.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
        stage.session_id += 1
        with pytest.raises(Refused) as another:
            stage.fetch()
        assert another.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    play(story)


def test_a_request_without_a_session_leaves_nothing_behind() -> None:
    async def story(stage: Stage) -> None:
        stage.partitions[0].append(5)
        assert rows(stage.fetch((0, 0), epoch=-1))[0].records == b"xxxxx"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(stage.partitions[0].feeds) == 1, "only the session's"

    play(story)


def test_a_full_answer_leaves_the_rest_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.broker.replication.feeding.ANSWER_BYTES", 6)

    async def story(stage: Stage) -> None:
        for each in stage.partitions:
            each.append(5)
        assert sorted(rows(stage.next())) == [0]
        assert sorted(rows(stage.next((0, 5)))) == [1]
        stage.partitions[0].append(5)
        assert sorted(rows(stage.next((1, 5)))) == [2], "who was served comes last"

    play(story)
