"""Following: one task for each leader, which fetches what this broker's replicas follow there.

Guarantees:

- The leader is told where a replica is when that has changed, and not otherwise: a fetch session (KIP-227). If the
  session is lost, or an answer, everything is named anew.
- An answer is applied only under the leader epoch that it was asked for (R6), and while the replica still follows. What
  was named again since is not taken from it: the leader answers that again.
- Where the logs part, ours is cut, beside the loop, and nothing else is taken from that answer (R7). If the replica
  gets another role meanwhile, nothing is cut.
- The high watermark is raised after the batches are written (scenario 32).
- One partition that fails waits by itself. The others go on.
- A replica that begins to follow is fetched at once, also while a fetch for the others waits at the leader: until its
  first fetch the new leader commits nothing. A second request ends the wait of the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from semel.errors import Disconnected, ErrorCode, InvariantViolation, Refused
from semel.machines.replication.follower import AskOffsets, FollowerReplica, FollowingEvent, FollowingState
from semel.machines.replication.values import Append, Diverging, Effect, FetchFrom, RestartAt, Truncate
from semel.records.batch import split
from semel.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.broker.replication.replica import LocalReplica

logger = logging.getLogger(__name__)

FETCH_VERSION, OFFSETS_VERSION, EPOCHS_VERSION = 17, 9, 4
MAX_WAIT_MS = 500
TIMEOUT_S = 30.0
PARTITION_MAX_BYTES = 1024 * 1024
MAX_BYTES = 10 * 1024 * 1024
#: How many partitions one request names, and how many requests are under way.
NAMED_AT_ONCE, MOST_PENDING = 300, 2
#: How long to wait after the leader was lost.
IDLE_S = 0.05
#: And after a failure that nobody expected.
FAILED_S = 1.0
EARLIEST = -2

_FAILURES = {
    ErrorCode.FENCED_LEADER_EPOCH: FollowingEvent.FENCED,
    ErrorCode.UNKNOWN_LEADER_EPOCH: FollowingEvent.UNKNOWN_EPOCH,
    ErrorCode.OFFSET_OUT_OF_RANGE: FollowingEvent.OFFSET_OUT_OF_RANGE,
}
#: The leader does not know the session any more.
_SESSION_IS_GONE = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)
_LAST_EPOCH = 2**31 - 1
_Key = tuple[UUID, int]


class _Pending:
    """A request under way. To its connection it is the future of an answer; who waits is woken without a detour."""

    __slots__ = ("_fetcher", "error", "frame", "is_done", "number")

    def __init__(self, fetcher: LeaderFetcher, number: int) -> None:
        self._fetcher = fetcher
        self.number = number
        self.is_done = False
        self.frame: memoryview | None = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self.is_done

    def set_result(self, frame: memoryview) -> None:
        self.is_done, self.frame = True, frame
        self._fetcher.ring()

    def set_exception(self, error: BaseException) -> None:
        self.is_done, self.error = True, error
        self._fetcher.ring()

    def exception(self) -> BaseException | None:
        return self.error


class LeaderFetcher:
    """Fetches from one leader."""

    def __init__(self, membership: Membership, leader: int) -> None:
        self._membership = membership
        self._leader = leader
        self._replicas: dict[_Key, LocalReplica] = {}
        #: What the leader knows of each, and the number of the request that said so.
        self._named: dict[_Key, tuple[FetchFrom, int]] = {}
        #: Those that it has to be told of, now or after a wait; and those that it may forget.
        self._unnamed: dict[_Key, None] = {}
        self._forgotten: dict[_Key, None] = {}
        self._session_id = self._session_epoch = 0
        self._sent = 0
        self._pending: deque[_Pending] = deque()
        self._bell: asyncio.Future[None] | None = None

    def follow(self, replicas: dict[_Key, LocalReplica]) -> None:
        """These replicas follow this leader now, and no others."""
        for key in self._named.keys() - replicas.keys():
            del self._named[key]
            self._forgotten[key] = None
        self._replicas = replicas
        for key, replica in replicas.items():
            follower, named = replica.follower, self._named.get(key)
            if follower is not None and (
                named is None
                or (named[0].leader_epoch, named[0].broker_epoch)
                != (follower.state.leader_epoch, follower.broker_epoch)
            ):
                self._unnamed[key] = None
        self.ring()

    def ring(self) -> None:
        """Something has changed."""
        if self._bell is not None and not self._bell.done():
            self._bell.set_result(None)

    async def run(self) -> None:
        while True:
            try:
                await self._step()
            except Disconnected as error:
                logger.info("no answer from broker %d: %s", self._leader, error.why)
                self._start_over()
                self._membership.suspect(self._leader)
                await asyncio.sleep(IDLE_S)
            except InvariantViolation:
                raise
            except Exception:
                # A topic may be deleted while its log is cut. Whatever it is, the other replicas must follow on.
                logger.exception("following broker %d failed; it is tried again", self._leader)
                self._start_over()
                await asyncio.sleep(FAILED_S)

    def _start_over(self) -> None:
        """Nobody knows what the leader has got. It is asked anew, in a new session."""
        self._pending.clear()
        self._session_id = self._session_epoch = 0
        now_ms = self._membership.now_ms()
        for key, (fetch, _) in self._named.items():
            follower = self._follower(key, fetch.leader_epoch)
            if follower is not None:
                follower.failed(fetch.leader_epoch, FollowingEvent.DISCONNECTED, now_ms)
        self._named.clear()
        self._forgotten.clear()
        self._unnamed = dict.fromkeys(self._replicas)

    async def _step(self) -> None:
        """Take an answer, or ask, or wait until there is something to do."""
        pending = self._pending
        if pending and pending[0].is_done:
            answered = pending.popleft()
            if answered.error is not None:
                raise answered.error
            assert answered.frame is not None
            response = self._membership.peers.parse(FetchResponse, FETCH_VERSION, answered.frame)
            await self._take(answered.number, response)
            return
        due, wait_ms = self._due()
        for key, request in due.items():
            if isinstance(request, AskOffsets):
                await self._ask_offsets(key, request)
                return
        # A second request that opens a session would end the one of the first.
        most = MOST_PENDING if self._session_id else 1
        if len(pending) < most and (due or self._forgotten or (self._named and not pending)):
            await self._send()
            return
        await self._rest(wait_ms)

    def _due(self) -> tuple[dict[_Key, FetchFrom | AskOffsets], int]:
        """What the leader is to be told now, and how long until somebody has waited long enough after an error."""
        due: dict[_Key, FetchFrom | AskOffsets] = {}
        wait_ms = int(TIMEOUT_S * 1000)
        if not self._unnamed:
            return due, wait_ms
        now_ms = self._membership.now_ms()
        for key in list(self._unnamed):
            replica = self._replicas.get(key)
            follower = None if replica is None else replica.follower
            if (
                replica is None
                or follower is None
                or follower.state.leader != self._leader
                or replica.log.failed is not None
            ):
                del self._unnamed[key]
                continue
            if not replica.is_on_disk(self.ring):
                continue  # the leader would take it for safe (R10)
            request = follower.next_request(now_ms)
            if request is None:
                wait_ms = min(wait_ms, max(1, follower.waits_until_ms - now_ms))
                continue
            due[key] = request
            if len(due) >= NAMED_AT_ONCE:
                break
        return due, wait_ms

    async def _rest(self, wait_ms: int) -> None:
        loop = asyncio.get_running_loop()
        number = self._pending[0].number if self._pending else 0
        self._bell = loop.create_future()
        timer = loop.call_later(wait_ms / 1000, self.ring)
        began_s = loop.time()
        try:
            await self._bell
        finally:
            timer.cancel()
            self._bell = None
        if number and self._pending and self._pending[0].number == number and loop.time() - began_s >= TIMEOUT_S:
            self._membership.peers.forget(self._leader)
            why = f"broker {self._leader} did not answer within {TIMEOUT_S} s"
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, why)

    def _follower(self, key: _Key, leader_epoch: int) -> FollowerReplica | None:
        """The follower, if it still follows this leader under this epoch."""
        replica = self._replicas.get(key)
        follower = None if replica is None else replica.follower
        if follower is None or (follower.state.leader, follower.state.leader_epoch) != (self._leader, leader_epoch):
            return None
        return follower

    # Asking

    async def _send(self) -> None:
        membership = self._membership
        connection = await membership.peers.connected(self._leader, "fetch", TIMEOUT_S)
        # What is due is looked up only now: while we connected, somebody may have been elected.
        fetches = {key: request for key, request in self._due()[0].items() if isinstance(request, FetchFrom)}
        by_topic: dict[UUID, list[FetchRequest.FetchPartition]] = {}
        self._sent += 1
        for key, fetch in fetches.items():
            replica = self._replicas.get(key)
            if replica is None:
                continue
            del self._unnamed[key]
            self._named[key] = fetch, self._sent
            self._forgotten.pop(key, None)
            by_topic.setdefault(key[0], []).append(
                FetchRequest.FetchPartition(
                    partition=key[1],
                    current_leader_epoch=fetch.leader_epoch,
                    fetch_offset=fetch.offset,
                    last_fetched_epoch=fetch.last_fetched_epoch,
                    log_start_offset=replica.log.log_start_offset,
                    partition_max_bytes=PARTITION_MAX_BYTES,
                )
            )
        forgotten: dict[UUID, list[int]] = {}
        if self._session_epoch:
            for topic_id, index in self._forgotten:
                forgotten.setdefault(topic_id, []).append(index)
        self._forgotten.clear()
        wanted = FetchRequest(
            replica_state=FetchRequest.ReplicaState(
                replica_id=membership.broker_id, replica_epoch=membership.broker_epoch
            ),
            max_wait_ms=MAX_WAIT_MS if self._session_id else 0,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=rows) for topic_id, rows in by_topic.items()],
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in forgotten.items()
            ],
        )
        pending = _Pending(self, self._sent)
        self._pending.append(pending)
        if self._session_id:
            self._session_epoch = 1 if self._session_epoch == _LAST_EPOCH else self._session_epoch + 1
        membership.peers.send(connection, wanted, FETCH_VERSION, cast(Any, pending))

    # Answers

    async def _take(self, number: int, response: FetchResponse) -> None:
        code = ErrorCode(response.error_code)
        if code in _SESSION_IS_GONE:
            # Nothing has failed: the replicas need not wait.
            self._named.clear()
            self._start_over()
            return
        if code is not ErrorCode.NONE:
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, f"broker {self._leader} answers {code.name}")
        if not self._session_id:
            self._session_id, self._session_epoch = response.session_id, 1
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                named = self._named.get(key)
                if named is not None and named[1] <= number:
                    await self._apply(key, named[0], data)

    async def _apply(self, key: _Key, fetch: FetchFrom, data: FetchResponse.PartitionData) -> None:
        follower = self._follower(key, fetch.leader_epoch)
        if follower is None:
            return
        replica, now_ms = self._replicas[key], self._membership.now_ms()
        if data.records or data.error_code != ErrorCode.NONE or data.diverging_epoch.epoch >= 0:
            # The leader says nothing more before it is told what has become of this.
            self._unnamed[key] = None
        try:
            if data.error_code != ErrorCode.NONE:
                event = _FAILURES.get(ErrorCode(data.error_code), FollowingEvent.DISCONNECTED)
                follower.failed(fetch.leader_epoch, event, now_ms)
            elif data.diverging_epoch.epoch >= 0:
                parted = Diverging(data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
                effects = follower.diverging(fetch.leader_epoch, parted, replica.log.leader_epochs)
                await self._cut(key, fetch.leader_epoch, effects)
            else:
                self._append(key, replica, follower, fetch, data, now_ms)
        except Refused as error:
            logger.error("%s cannot follow broker %d: %s", replica.partition, self._leader, error)
            follower.failed(fetch.leader_epoch, FollowingEvent.DISCONNECTED, now_ms)

    def _append(
        self,
        key: _Key,
        replica: LocalReplica,
        follower: FollowerReplica,
        fetch: FetchFrom,
        data: FetchResponse.PartitionData,
        now_ms: int,
    ) -> None:
        records = data.records or b""
        batches = split(records, partial_tail=True) if len(records) else []
        end_offset = batches[-1].next_offset if batches else fetch.offset
        log = replica.log
        effects = follower.data(fetch.leader_epoch, fetch.offset, end_offset, data.high_watermark)
        if any(isinstance(effect, Append) for effect in effects):
            log.following.append(records, now_ms)
            follower.appended(log.end_offset, log.following.last_fetched_epoch)
        if follower.status is FollowingState.FETCHING:
            start_offset = log.log_start_offset
            log.following.take_watermarks(data.high_watermark, data.log_start_offset)
            if log.log_start_offset != start_offset:
                self._unnamed[key] = None  # whoever deletes records waits for it
        if effects:
            replica.partition.wake_watchers()

    async def _cut(self, key: _Key, leader_epoch: int, effects: list[Effect]) -> None:
        membership = self._membership
        for effect in effects:
            replica = self._replicas[key]
            log = replica.log
            if isinstance(effect, RestartAt):
                logger.warning("%s begins anew at offset %d", replica.partition, effect.offset)
                log.following.restart_at(effect.offset, membership.now_ms())
            elif isinstance(effect, Truncate):
                if effect.offset < log.end_offset:
                    logger.info("%s is cut from %d to %d", replica.partition, log.end_offset, effect.offset)
                while effect.offset < log.end_offset:
                    truncation = log.following.truncation(effect.offset, membership.now_ms())
                    await membership.beside(truncation.run)
                    if self._follower(key, leader_epoch) is None:
                        return  # it has another role now
                    truncation.apply()
                log.following.begin(log.leader_epoch)
            follower = self._follower(key, leader_epoch)
            if follower is not None:
                follower.truncated(log.end_offset, log.following.last_fetched_epoch)

    async def _ask_offsets(self, key: _Key, asked: AskOffsets) -> None:
        """Where the leader's log begins and ends. The end is that of its epoch: ListOffsets has only the watermark."""
        replica = self._replicas[key]
        name, index = replica.key
        ask, node = self._membership.peers.ask, self._membership.broker_id
        first = ListOffsetsRequest(
            replica_id=node,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=index, current_leader_epoch=asked.leader_epoch, timestamp=EARLIEST
                        )
                    ],
                )
            ],
        )
        last = OffsetForLeaderEpochRequest(
            replica_id=node,
            topics=[
                OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                    topic=name,
                    partitions=[
                        OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                            partition=index, current_leader_epoch=asked.leader_epoch, leader_epoch=asked.leader_epoch
                        )
                    ],
                )
            ],
        )
        start = (await ask(self._leader, "offsets", first, OFFSETS_VERSION, TIMEOUT_S)).topics[0].partitions[0]
        end = (await ask(self._leader, "offsets", last, EPOCHS_VERSION, TIMEOUT_S)).topics[0].partitions[0]
        follower = self._follower(key, asked.leader_epoch)
        if follower is None:
            return
        code = start.error_code or end.error_code
        if code != ErrorCode.NONE:
            event = _FAILURES.get(ErrorCode(code), FollowingEvent.DISCONNECTED)
            follower.failed(asked.leader_epoch, event, self._membership.now_ms())
            return
        try:
            effects = follower.offsets(asked.leader_epoch, start.offset, end.end_offset)
            await self._cut(key, asked.leader_epoch, effects)
        except Refused as error:
            logger.error("%s cannot follow broker %d: %s", replica.partition, self._leader, error)
            follower.failed(asked.leader_epoch, FollowingEvent.DISCONNECTED, self._membership.now_ms())
