"""Following a leader: what it is told and when, and what is taken from its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from semel.broker.replication.fetching import MAX_WAIT_MS, LeaderFetcher
from semel.errors import ErrorCode
from semel.machines.replication.values import FetchFrom
from semel.wire.messages.fetch import FetchRequest, FetchResponse

TOPIC = UUID(int=7)


class Leader:
    """Remembers what it was asked, and answers when it is told to."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.asked: list[FetchRequest] = []
        self._answers: list[Any] = []
        self._was_asked = asyncio.Event()
        #: Not set while a connection is being opened.
        self.is_reachable = asyncio.Event()
        self.is_reachable.set()

    async def connected(self, broker: int, lane: str, timeout_s: float) -> None:
        await self.is_reachable.wait()
        if self._failures:
            self._was_asked.set()
            raise self._failures.pop(0)

    def send(self, connection: None, message: FetchRequest, version: int, answer: Any) -> None:
        self.asked.append(message)
        self._answers.append(answer)
        self._was_asked.set()

    @staticmethod
    def parse(kind: type, version: int, frame: Any) -> Any:
        return frame

    def answer(self, number: int, *rows: FetchResponse.PartitionData, session: int = 5, error: int = 0) -> None:
        topics = [FetchResponse.FetchableTopicResponse(topic_id=TOPIC, partitions=list(rows))]
        self._answers[number].set_result(
            FetchResponse(session_id=session, error_code=error, responses=topics if rows else [])
        )

    async def question(self) -> tuple[list[int], int]:
        """The next question: the partitions in it, and how long it may wait."""
        await asyncio.wait_for(self._was_asked.wait(), 30)
        self._was_asked.clear()
        message = self.asked[-1]
        return named(message), message.max_wait_ms


def named(message: FetchRequest) -> list[int]:
    return sorted(row.partition for topic in message.topics for row in topic.partitions)


class Follower:
    """A replica whose position the test sets."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(leader=2, leader_epoch=3)
        self.broker_epoch = 0
        self.offset = 0
        self.waits_until_ms = 0
        self.failures: list[object] = []

    def next_request(self, now_ms: int) -> FetchFrom | None:
        return FetchFrom(1, 0, self.state.leader_epoch, self.offset, -1) if now_ms >= self.waits_until_ms else None

    def failed(self, epoch: int, event: object, now_ms: int) -> None:
        self.failures.append(event)


def replica(follower: Follower | None = None) -> Any:
    return SimpleNamespace(
        follower=follower or Follower(),
        log=SimpleNamespace(failed=None, log_start_offset=0),
        partition="t-0",
        is_on_disk=lambda then: True,
    )


def play(story: Callable[[Leader, LeaderFetcher, Any], Coroutine[Any, Any, None]], *failures: Exception) -> None:
    async def run() -> None:
        leader = Leader(*failures)
        now = SimpleNamespace(ms=0)
        membership = SimpleNamespace(
            now_ms=lambda: now.ms, broker_id=1, broker_epoch=0, peers=leader, suspect=lambda _: None
        )
        fetcher = LeaderFetcher(cast(Any, membership), 2)
        running = asyncio.create_task(fetcher.run())
        try:
            await asyncio.wait_for(story(leader, fetcher, now), 60)
        finally:
            running.cancel()

    asyncio.run(run())


async def in_a_session(leader: Leader, fetcher: LeaderFetcher, replicas: dict[tuple[UUID, int], Any]) -> None:
    """Until a fetch of these replicas waits at the leader."""
    fetcher.follow(replicas)
    assert await leader.question() == (sorted(index for _, index in replicas), 0), "the first one opens a session"
    leader.answer(0)
    assert await leader.question() == ([], MAX_WAIT_MS), "what has not changed is not named again"
    assert (leader.asked[-1].session_id, leader.asked[-1].session_epoch) == (5, 1)


def test_a_replica_that_begins_to_follow_does_not_wait_for_the_fetch_of_the_others() -> None:
    async def story(leader: Leader, fetcher: LeaderFetcher, now: Any) -> None:
        first = replica()
        await in_a_session(leader, fetcher, {(TOPIC, 0): first})
        fetcher.follow({(TOPIC, 0): first, (TOPIC, 1): replica()})
        assert await leader.question() == ([1], MAX_WAIT_MS), "the first fetch waits on, and this one ends its wait"
        assert leader.asked[-1].session_epoch == 2

    play(story)


def test_a_replica_that_no_longer_follows_is_forgotten_by_the_leader() -> None:
    async def story(leader: Leader, fetcher: LeaderFetcher, now: Any) -> None:
        second = replica()
        await in_a_session(leader, fetcher, {(TOPIC, 0): replica(), (TOPIC, 1): second})
        fetcher.follow({(TOPIC, 1): second})
        await leader.question()
        (forgotten,) = leader.asked[-1].forgotten_topics_data
        assert (forgotten.topic_id, forgotten.partitions) == (TOPIC, [0])

    play(story)


def test_a_leader_that_is_elected_while_we_connect_is_asked_under_its_new_epoch() -> None:
    async def story(leader: Leader, fetcher: LeaderFetcher, now: Any) -> None:
        first = replica()
        leader.is_reachable.clear()
        fetcher.follow({(TOPIC, 0): first})
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.follower.state.leader_epoch = 4
        fetcher.follow({(TOPIC, 0): first})
        leader.is_reachable.set()
        assert (await leader.question())[0] == [0]
        assert leader.asked[-1].topics[0].partitions[0].current_leader_epoch == 4

    play(story)


def test_another_leader_epoch_is_told_to_the_leader() -> None:
    async def story(leader: Leader, fetcher: LeaderFetcher, now: Any) -> None:
        first = replica()
        await in_a_session(leader, fetcher, {(TOPIC, 0): first})
        first.follower.state.leader_epoch = 4
        fetcher.follow({(TOPIC, 0): first})
        assert (await leader.question())[0] == [0]

    play(story)


def test_a_replica_that_waits_after_an_error_is_named_after_it_and_the_others_do_not_wait_for_it() -> None:
    async def story(leader: Leader, fetcher: LeaderFetcher, now: Any) -> None:
        late = Follower()
        late.waits_until_ms = 50
        fetcher.follow({(TOPIC, 0): replica(), (TOPIC, 1): replica(late)})
        assert (await leader.question())[0] == [0]
        leader.answer(0)
        assert (await leader.question())[0] == []
        now.ms = 60
        assert (await leader.question())[0] == [1]

    play(story)


def test_after_an_error_a_partition_is_named_again() -> None:
    async def story(leader: Leader, fetcher: LeaderFetcher, now: Any) -> None:
        first = replica()
        await in_a_session(leader, fetcher, {(TOPIC, 0): first, (TOPIC, 1): replica()})
        leader.answer(1, FetchResponse.PartitionData(partition_index=0, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH))
        assert (await leader.question())[0] == [0], "the leader says nothing more before"
        assert len(first.follower.failures) == 1

    play(story)


def test_what_was_named_again_since_is_not_taken_from_an_older_answer() -> None:
    async def story(leader: Leader, fetcher: LeaderFetcher, now: Any) -> None:
        first = replica()
        await in_a_session(leader, fetcher, {(TOPIC, 0): first})
        first.follower.state.leader_epoch = 4
        fetcher.follow({(TOPIC, 0): first})
        await leader.question()
        first.follower.state.leader_epoch = 3  # so that nothing but the order tells that the answer is old
        leader.answer(1, FetchResponse.PartitionData(partition_index=0, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH))
        leader.answer(2)
        await leader.question()
        assert not first.follower.failures

    play(story)


def test_more_partitions_than_one_request_names_are_named_in_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.broker.replication.fetching.NAMED_AT_ONCE", 2)

    async def story(leader: Leader, fetcher: LeaderFetcher, now: Any) -> None:
        fetcher.follow({(TOPIC, index): replica() for index in range(5)})
        assert (await leader.question())[0] == [0, 1]
        await asyncio.sleep(0.05)
        assert len(leader.asked) == 1, "another one would open another session, and end this one"
        leader.answer(0)
        for _ in range(3000):
            if len(leader.asked) < 3:
                await asyncio.sleep(0.01)
        assert [named(each) for each in leader.asked] == [[0, 1], [2, 3], [4]]
        assert [(each.session_id, each.session_epoch) for each in leader.asked] == [(0, 0), (5, 1), (5, 2)]

    play(story)


@pytest.mark.parametrize("code", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_in_a_lost_session_everything_is_named_anew_and_at_once(code: ErrorCode) -> None:
    async def story(leader: Leader, fetcher: LeaderFetcher, now: Any) -> None:
        replicas = {(TOPIC, 0): replica(), (TOPIC, 1): replica()}
        await in_a_session(leader, fetcher, replicas)
        leader.answer(1, session=0, error=code)
        assert (await leader.question())[0] == [0, 1]
        assert (leader.asked[-1].session_id, leader.asked[-1].session_epoch) == (0, 0)
        assert not any(each.follower.failures for each in replicas.values())

    play(story)


def test_after_a_failure_that_nobody_expected_the_leader_is_followed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.broker.replication.fetching.FAILED_S", 0.01)

    async def story(leader: Leader, fetcher: LeaderFetcher, now: Any) -> None:
        fetcher.follow({(TOPIC, 0): replica()})
        await asyncio.wait_for(leader._was_asked.wait(), 30)
        leader._was_asked.clear()
        assert (await leader.question())[0] == [0]

    play(story, ValueError("a file that is closed"))
