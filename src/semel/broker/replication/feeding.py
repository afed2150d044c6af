"""Feeding followers: what this broker leads, sent to each broker that follows it (P2).

Guarantees:

- A follower names its partitions once, then only those whose position has changed (the fetch sessions of KIP-227). What
  it does not name it still fetches, from where it was. A request out of order ends the session.
- An append marks the partition in the feed of each follower and wakes the fetch that waits there. What that costs does
  not grow with the number of partitions.
- What was sent is not sent again before the follower has named the partition: it may have more, or have failed.
- Nothing is sent under another leader epoch than the follower has asked for (R6), nor before the leader has seen that
  the follower's log is a part of its own (R7).
- A request that arrives while another waits ends the wait of the other.
- A high watermark that moved is told with the next records, or soon.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from semel.broker.later_reply import LaterReply
from semel.broker.replication.answers import check_replica
from semel.broker.replication.partition import ReplicatedPartition
from semel.errors import ErrorCode, Refused
from semel.log.reader import READ_TO_END
from semel.machines.replication.values import Diverging, FetchFrom
from semel.wire.messages.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
_LAST_EPOCH = 2**31 - 1
#: How much one answer has at most: more would keep other requests waiting.
ANSWER_BYTES, ANSWER_PARTITIONS = 2 * 1024 * 1024, 200
#: How long a high watermark that moved waits for records to go with it.
WATERMARK_WAIT_S = 0.025
#: A follower whose last fetch is older does not count as following.
STILL_FOLLOWS_MS = 2_000

_Row = FetchResponse.PartitionData
_TopicRow = FetchResponse.FetchableTopicResponse
_Key = tuple[UUID, int]


def fetch(broker: BrokerServer, request: FetchRequest, call: Call) -> Any:
    """A follower's fetch: answered at once if there is something for it, else when there is."""
    membership = broker.cluster
    try:
        check_replica(broker, request, call)
        assert membership is not None
        feed = membership.feeds.begin(request)
    except Refused as error:
        return FetchResponse(error_code=error.code)
    return feed.fetch(request)


class Fed:
    """One partition of a feed: how far its follower is, and what it was told."""

    __slots__ = (
        "_told_start",
        "_told_watermark",
        "awaits",
        "error",
        "feed",
        "fetch",
        "key",
        "max_bytes",
        "parted",
        "partition",
        "start_offset",
    )

    def __init__(self, feed: Feed, key: _Key, partition: ReplicatedPartition | None) -> None:
        self.feed = feed
        self.key = key
        #: None if there is no such partition here.
        self.partition = partition
        self.fetch = FetchFrom(feed.follower, -1, -1, -1, -1)
        self.max_bytes = 0
        #: Where the follower's log begins.
        self.start_offset = -1
        #: What the leader said when the follower named it last.
        self.error = ErrorCode.NONE
        self.parted: Diverging | None = None
        #: Whether it was answered, and nothing more is said before the follower names it again.
        self.awaits = False
        self._told_watermark = self._told_start = -1

    @property
    def is_sound(self) -> bool:
        """Whether what is known of the follower's position is true."""
        return self.error is ErrorCode.NONE and self.parted is None and not self.awaits

    def named(self, row: FetchRequest.FetchPartition, broker_epoch: int) -> None:
        """The follower says where it is."""
        has_other_start = self.start_offset != row.log_start_offset
        self.max_bytes, self.start_offset, self.awaits = row.partition_max_bytes, row.log_start_offset, False
        self.error, self.parted = ErrorCode.NONE, None
        self.fetch = FetchFrom(
            self.feed.follower, broker_epoch, row.current_leader_epoch, row.fetch_offset, row.last_fetched_epoch
        )
        replica = None if self.partition is None else self.partition.replica
        if self.partition is None:
            self.error = ErrorCode.UNKNOWN_TOPIC_ID
        elif replica is None:
            self.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            if has_other_start:
                replica.starts_moved()
            fetched = replica.fetched(self.fetch)
            self.error, self.parted = fetched.error, fetched.diverging
            if self.error is ErrorCode.NONE and self.parted is None:
                if replica.log.end_offset > row.fetch_offset:
                    self.feed.has_news(self)
                elif (replica.log.high_watermark, replica.log.log_start_offset) != (
                    self._told_watermark,
                    self._told_start,
                ):
                    self.feed.has_moved(self)
                return
        self.feed.has_news(self)

    def has_changed(self) -> None:
        """There is more to read, or another role."""
        if not self.awaits:
            self.feed.has_news(self)

    def has_moved(self) -> None:
        """The high watermark or the start of the log has moved."""
        if not self.awaits:
            self.feed.has_moved(self)

    def look_at_start(self) -> None:
        """Records may have been removed at the beginning: the follower removes them, too."""
        replica = None if self.partition is None else self.partition.replica
        if replica is not None and replica.log.log_start_offset > self._told_start >= 0:
            self.has_moved()

    def read(self, left_bytes: int, *, is_first: bool) -> FetchResponse.PartitionData:
        """What there is for the follower. Its records are empty if none fit."""
        row = _Row(partition_index=self.key[1], records=b"", aborted_transactions=None)
        partition = self.partition
        replica = None if partition is None else partition.replica
        leader = None if replica is None else replica.leader
        code = self.error
        if code is ErrorCode.NONE and leader is None:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif leader is not None and self.fetch.leader_epoch != leader.state.leader_epoch:
            is_old = self.fetch.leader_epoch < leader.state.leader_epoch
            code = ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH
        if code is ErrorCode.NONE and self.parted is not None:
            row.diverging_epoch = FetchResponse.EpochEndOffset(
                epoch=self.parted.epoch, end_offset=self.parted.end_offset
            )
            row.high_watermark = -1  # nothing else is taken from this answer
            self.awaits = True
            return row
        if code is ErrorCode.NONE:
            assert replica is not None
            try:
                limit = max(0, min(self.max_bytes, left_bytes))
                found = replica.log.reader.read(self.fetch.offset, limit, READ_TO_END, at_least_one=is_first)
            except Refused as error:
                code = error.code
            else:
                row.records = found.data
                row.high_watermark = self._told_watermark = found.high_watermark
                row.last_stable_offset = found.last_stable_offset
                row.log_start_offset = self._told_start = found.log_start_offset
                self.awaits = len(found.data) > 0
                return row
        row.error_code = code
        row.high_watermark = row.log_start_offset = -1
        self._told_watermark = -1
        self.awaits = True
        return row


class Feed:
    """What one follower fetches here."""

    def __init__(self, broker: BrokerServer, membership: Membership, follower: int, session_id: int) -> None:
        self._broker = broker
        self._loop = broker.loop
        self._membership = membership
        self.follower = follower
        #: 0: for one request only.
        self.session_id = session_id
        self.epoch = 1
        self.last_fetch_ms = 0
        self._partitions: dict[_Key, Fed] = {}
        #: Those of which there is something to read or to say, in their turn.
        self._news: dict[Fed, None] = {}
        #: Those whose high watermark or start has moved, and since when.
        self._moved: dict[Fed, float] = {}
        self._watermark_timer: asyncio.TimerHandle | None = None
        self._waiting: LaterReply | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_woken = False

    def close(self) -> None:
        """The follower fetches nothing of this any more."""
        self._answer()
        for fed in self._partitions.values():
            self._take_out(fed)
        self._partitions.clear()
        self._news.clear()
        self._moved.clear()
        if self._watermark_timer is not None:
            self._watermark_timer.cancel()

    def _take_out(self, fed: Fed) -> None:
        if fed.partition is not None and fed in fed.partition.feeds:
            fed.partition.feeds.remove(fed)
        self._news.pop(fed, None)
        self._moved.pop(fed, None)

    # The follower asks

    def fetch(self, request: FetchRequest) -> Any:
        self._answer()
        self.last_fetch_ms = self._broker.now_ms()
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                fed = self._partitions.pop((forgotten.topic_id, index), None)
                if fed is not None:
                    self._take_out(fed)
        broker_epoch = request.replica_state.replica_epoch
        for topic in request.topics:
            for row in topic.partitions:
                self._find(topic.topic_id, row.partition).named(row, broker_epoch)
        if self._news or request.max_wait_ms <= 0 or self._has_due_watermarks():
            return self._response()
        self._waiting = LaterReply(partial(self._membership.suspect, self.follower))
        self._timer = self._loop.call_later(request.max_wait_ms / 1000, self._time_is_up)
        return self._waiting

    def _find(self, topic_id: UUID, index: int) -> Fed:
        fed = self._partitions.get((topic_id, index))
        if fed is None or fed.partition is None:
            partition = None
            topic = self._broker.topics.by_id.get(topic_id)
            if topic is not None and 0 <= index < len(topic.partitions):
                found = topic.partitions[index]
                assert isinstance(found, ReplicatedPartition)
                partition = found
            if fed is not None:
                self._take_out(fed)
            fed = self._partitions[topic_id, index] = Fed(self, (topic_id, index), partition)
            if partition is not None:
                partition.feeds.append(fed)
        return fed

    # There is something for it

    def has_news(self, fed: Fed) -> None:
        self._news[fed] = None
        if self._waiting is not None and not self._is_woken:
            # At the end of this turn: one request may write to many partitions.
            self._is_woken = True
            self._loop.call_soon(self._answer)

    def has_moved(self, fed: Fed) -> None:
        if fed not in self._moved:
            self._moved[fed] = self._loop.time()
            if self._watermark_timer is None:
                self._watermark_timer = self._loop.call_later(WATERMARK_WAIT_S, self._look_at_watermarks)

    def _has_due_watermarks(self) -> bool:
        oldest = next(iter(self._moved.values()), None)
        return oldest is not None and self._loop.time() - oldest >= WATERMARK_WAIT_S

    def _look_at_watermarks(self) -> None:
        self._watermark_timer = None
        if not self._moved:
            return
        if self._waiting is not None and self._has_due_watermarks():
            self._answer()
        if self._moved:
            self._watermark_timer = self._loop.call_later(WATERMARK_WAIT_S, self._look_at_watermarks)

    def _time_is_up(self) -> None:
        self._timer = None
        self._answer()

    def _answer(self) -> None:
        """Answer the request that waits, with what there is."""
        self._is_woken = False
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            waiting.finish(self._response())

    def _response(self) -> FetchResponse:
        topics: dict[UUID, FetchResponse.FetchableTopicResponse] = {}
        left_bytes, count = ANSWER_BYTES, 0
        for fed in list(self._news):
            if left_bytes <= 0 or count >= ANSWER_PARTITIONS:
                break
            row = fed.read(left_bytes, is_first=left_bytes == ANSWER_BYTES)
            if fed.awaits:
                del self._news[fed]
                self._moved.pop(fed, None)
                left_bytes -= len(row.records or b"")
            elif left_bytes == ANSWER_BYTES:
                del self._news[fed]  # there is nothing after all
                self._moved.pop(fed, None)
            else:
                break  # it does not fit, and is the first next time
            count += 1
            self._add(topics, fed, row)
        if self._moved and self._has_due_watermarks():
            for fed in list(self._moved):
                if count >= ANSWER_PARTITIONS:
                    break
                del self._moved[fed]
                if fed not in self._news:
                    row = fed.read(0, is_first=False)
                    count += 1
                    self._add(topics, fed, row)
        if not self.session_id:
            self._membership.feeds.forget(self)
        return FetchResponse(session_id=self.session_id, responses=list(topics.values()))

    @staticmethod
    def _add(topics: dict[UUID, FetchResponse.FetchableTopicResponse], fed: Fed, row: Any) -> None:
        topic = topics.get(fed.key[0])
        if topic is None:
            topic = topics[fed.key[0]] = _TopicRow(topic_id=fed.key[0])
        topic.partitions.append(row)

    def still_follows(self, now_ms: int) -> bool:
        return now_ms - self.last_fetch_ms <= STILL_FOLLOWS_MS


class Feeds:
    """The feeds of all followers: `broker.cluster.feeds`."""

    def __init__(self, broker: BrokerServer, membership: Membership) -> None:
        self._broker = broker
        self._membership = membership
        self._by_follower: dict[int, Feed] = {}

    def begin(self, request: FetchRequest) -> Feed:
        """The feed that a request is about; `Refused` if its session is not known, or another request was expected."""
        follower = request.replica_state.replica_id
        if request.session_epoch == FINAL_EPOCH:
            return Feed(self._broker, self._membership, follower, 0)
        feed = self._by_follower.get(follower)
        if request.session_epoch == INITIAL_EPOCH:
            if feed is not None:
                feed.close()
            session_id = self._broker.environment.chance.randint(1, _LAST_EPOCH)
            feed = self._by_follower[follower] = Feed(self._broker, self._membership, follower, session_id)
            return feed
        if feed is None or feed.session_id != request.session_id:
            why = f"there is no fetch session {request.session_id} of broker {follower}"
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, why)
        if feed.epoch != request.session_epoch:
            why = f"expected epoch {feed.epoch}, got {request.session_epoch}"
            raise Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH, why)
        feed.epoch = 1 if feed.epoch == _LAST_EPOCH else feed.epoch + 1
        return feed

    def forget(self, feed: Feed) -> None:
        """After the answer to a request without a session."""
        self._broker.loop.call_soon(feed.close)

    def close(self) -> None:
        for feed in self._by_follower.values():
            feed.close()
        self._by_follower.clear()
