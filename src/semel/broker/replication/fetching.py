"""Following: one task for each leader, which fetches what this broker's replicas follow there.

Guarantees:

- An answer is applied only under the leader epoch that it was asked for (R6), and while the replica still follows.
- Where the logs part, ours is cut, beside the loop, and nothing else is taken from that answer (R7). If the replica
  gets another role meanwhile, nothing is cut.
- The high watermark is raised after the batches are written (scenario 32).
- One partition that fails waits by itself. The others go on.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from uuid import UUID

from semel.errors import Disconnected, ErrorCode, Refused
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
#: How long to wait where nothing can be asked.
IDLE_S = 0.05
EARLIEST = -2

_FAILURES = {
    ErrorCode.FENCED_LEADER_EPOCH: FollowingEvent.FENCED,
    ErrorCode.UNKNOWN_LEADER_EPOCH: FollowingEvent.UNKNOWN_EPOCH,
    ErrorCode.OFFSET_OUT_OF_RANGE: FollowingEvent.OFFSET_OUT_OF_RANGE,
}


class LeaderFetcher:
    """Fetches from one leader."""

    def __init__(self, membership: Membership, leader: int) -> None:
        self._membership = membership
        self._leader = leader
        self._replicas: dict[tuple[UUID, int], LocalReplica] = {}
        self._wake = asyncio.Event()

    def follow(self, replicas: dict[tuple[UUID, int], LocalReplica]) -> None:
        """These replicas follow this leader now, and no others."""
        self._replicas = replicas
        self._wake.set()

    async def run(self) -> None:
        while True:
            asked = self._next_requests()
            if not asked:
                self._wake.clear()
                try:
                    async with asyncio.timeout(IDLE_S if self._replicas else None):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            try:
                await self._ask(asked)
            except Disconnected as error:
                logger.info("no answer from broker %d: %s", self._leader, error.why)
                self._failed(asked, FollowingEvent.DISCONNECTED)
                self._membership.suspect(self._leader)
                await asyncio.sleep(IDLE_S)

    def _next_requests(self) -> dict[tuple[UUID, int], FetchFrom | AskOffsets]:
        now_ms = self._membership.now_ms()
        asked = {}
        for key, replica in self._replicas.items():
            follower = replica.follower
            if follower is not None and follower.state.leader == self._leader and replica.log.failed is None:
                request = follower.next_request(now_ms)
                if request is not None:
                    asked[key] = request
        return asked

    def _failed(self, asked: dict[tuple[UUID, int], FetchFrom | AskOffsets], event: FollowingEvent) -> None:
        for key, request in asked.items():
            follower = self._follower(key, request.leader_epoch)
            if follower is not None:
                follower.failed(request.leader_epoch, event, self._membership.now_ms())

    def _follower(self, key: tuple[UUID, int], leader_epoch: int) -> FollowerReplica | None:
        """The follower, if it still follows this leader under this epoch."""
        replica = self._replicas.get(key)
        follower = None if replica is None else replica.follower
        if follower is None or (follower.state.leader, follower.state.leader_epoch) != (self._leader, leader_epoch):
            return None
        return follower

    async def _ask(self, asked: dict[tuple[UUID, int], FetchFrom | AskOffsets]) -> None:
        fetches = {key: request for key, request in asked.items() if isinstance(request, FetchFrom)}
        for key, request in asked.items():
            if isinstance(request, AskOffsets):
                await self._ask_offsets(key, request)
        if not fetches:
            return
        by_topic: dict[UUID, list[FetchRequest.FetchPartition]] = {}
        for (topic_id, index), fetch in fetches.items():
            by_topic.setdefault(topic_id, []).append(
                FetchRequest.FetchPartition(
                    partition=index,
                    current_leader_epoch=fetch.leader_epoch,
                    fetch_offset=fetch.offset,
                    last_fetched_epoch=fetch.last_fetched_epoch,
                    log_start_offset=self._replicas[topic_id, index].log.log_start_offset,
                    partition_max_bytes=PARTITION_MAX_BYTES,
                )
            )
        membership = self._membership
        wanted = FetchRequest(
            replica_state=FetchRequest.ReplicaState(
                replica_id=membership.broker_id, replica_epoch=membership.broker_epoch
            ),
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=rows) for topic_id, rows in by_topic.items()],
        )
        response: FetchResponse = await membership.peers.ask(
            self._leader, "fetch", wanted, FETCH_VERSION, TIMEOUT_S
        )
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode(response.error_code)
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, f"broker {self._leader} answers {code.name}")
        for topic in response.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                fetch_from = fetches.get(key)
                if fetch_from is not None:
                    await self._apply(key, fetch_from, data)

    async def _apply(self, key: tuple[UUID, int], fetch: FetchFrom, data: FetchResponse.PartitionData) -> None:
        follower = self._follower(key, fetch.leader_epoch)
        if follower is None:
            return
        replica, now_ms = self._replicas[key], self._membership.now_ms()
        try:
            if data.error_code != ErrorCode.NONE:
                event = _FAILURES.get(ErrorCode(data.error_code), FollowingEvent.DISCONNECTED)
                follower.failed(fetch.leader_epoch, event, now_ms)
            elif data.diverging_epoch.epoch >= 0:
                parted = Diverging(data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
                effects = follower.diverging(fetch.leader_epoch, parted, replica.log.leader_epochs)
                await self._cut(key, fetch.leader_epoch, effects)
            else:
                self._append(replica, follower, fetch, data, now_ms)
        except Refused as error:
            logger.error("%s cannot follow broker %d: %s", replica.partition, self._leader, error)
            follower.failed(fetch.leader_epoch, FollowingEvent.DISCONNECTED, now_ms)

    def _append(
        self,
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
            log.following.take_watermarks(data.high_watermark, data.log_start_offset)
        if effects:
            replica.partition.wake_watchers()

    async def _cut(self, key: tuple[UUID, int], leader_epoch: int, effects: list[Effect]) -> None:
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

    async def _ask_offsets(self, key: tuple[UUID, int], asked: AskOffsets) -> None:
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
        start = (await ask(self._leader, "fetch", first, OFFSETS_VERSION, TIMEOUT_S)).topics[0].partitions[0]
        end = (await ask(self._leader, "fetch", last, EPOCHS_VERSION, TIMEOUT_S)).topics[0].partitions[0]
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
