"""One replica of a partition on this broker: the machine decides, this carries it out on the log and in ZooKeeper.

Guarantees:

- What the register says is applied in the order of its versions, and a role begins only after the log is ready for it:
  as leader with the entry of its epoch (R4), as follower without entries for nothing (R5).
- Whoever waits for a record to be committed is answered when the high watermark has passed it, or at once when this
  broker no longer leads or too few replicas are left (P3).
- A change of the in-sync set is one conditional write. If its answer is lost, the register is read again (Z3).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from semel.cluster.session import MultiRefused, ZooKeeperError
from semel.errors import ErrorCode, Refused
from semel.machines.controller.writing import leader_write
from semel.machines.replication.follower import FollowerReplica
from semel.machines.replication.leader import Fetched, LeaderReplica, LeadershipState
from semel.machines.replication.replica import Replica
from semel.machines.replication.values import (
    BeginEpoch,
    Effect,
    FetchFrom,
    HighWatermark,
    PartitionState,
    ReadState,
    StepDown,
    WriteState,
)
from semel.machines.values import TopicPartition

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.broker.replication.partition import ReplicatedPartition
    from semel.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

#: How long a follower waits after an error. A new leader often knows of its election a moment later than we do.
BACK_OFF_MS = 50
RETRY_S = 0.2


class LocalReplica:
    """The replica and who waits for it."""

    def __init__(self, membership: Membership, partition: ReplicatedPartition, replicas: tuple[int, ...]) -> None:
        self._membership = membership
        self.partition = partition
        self.key = TopicPartition(partition.topic.name, partition.index)
        self.log: PartitionLog = partition.own_log
        # A log that was led by an earlier life may have an entry for nothing.
        self.log.following.begin(self.log.leader_epoch)
        self.machine = Replica(
            membership.broker_id,
            membership.broker_epoch,
            replicas,
            min(partition.topic.min_insync_replicas, len(replicas)),
            self.log.end_offset,
            self.log.high_watermark,
            self.log.following.last_fetched_epoch,
            membership.lag_time_max_ms,
        )
        #: Who waits for which offset to be committed, in the order in which they were written.
        self._waiting: deque[tuple[int, asyncio.Future[ErrorCode]]] = deque()

    # Roles

    @property
    def leader(self) -> LeaderReplica | None:
        role = self.machine.role
        if isinstance(role, LeaderReplica) and role.status is not LeadershipState.RESIGNED:
            return role
        return None

    @property
    def follower(self) -> FollowerReplica | None:
        role = self.machine.role
        return role if isinstance(role, FollowerReplica) else None

    @property
    def leads(self) -> bool:
        return self.leader is not None

    @property
    def knows_its_high_watermark(self) -> bool:
        leader = self.leader
        return leader is None or leader.knows_its_high_watermark

    def register(self, state: PartitionState, version: int, *, synced: bool = False) -> None:
        """What ZooKeeper says about the partition."""
        if not isinstance(self.machine.role, LeaderReplica):
            self.machine.end_offset = self.log.end_offset
        effects = self.machine.register(state, version, self._membership.now_ms(), synced=synced)
        follower = self.follower
        if follower is not None:
            follower.back_off_ms = BACK_OFF_MS
            if self.log.leader_epoch != follower.state.leader_epoch:
                self.log.following.begin(follower.state.leader_epoch)
        self.perform(effects)
        leader = self.leader
        if leader is not None and not leader.has_enough_replicas:
            self._end_waits(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def resign(self) -> None:
        """This life of the broker is over: it leads and follows nothing until it is registered again (Z5)."""
        self.machine.role = None
        self.perform([StepDown()])

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case BeginEpoch(leader_epoch, _):
                    self.log.begin_leader_epoch(leader_epoch)
                case HighWatermark(offset):
                    self._committed(offset)
                case WriteState():
                    self._membership.spawn(self._write(effect))
                case ReadState():
                    self._membership.spawn(self._read_again())
                case StepDown():
                    self._end_waits(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    self.partition.wake_watchers()

    # Leading

    def appended(self) -> None:
        """The leader has written to the log."""
        leader = self.leader
        if leader is not None:
            self.perform(leader.appended(self.log.end_offset))

    def fetched(self, fetch: FetchFrom) -> Fetched:
        """A follower asks the leader."""
        leader = self.leader
        if leader is None:
            return Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.perform(leader.appended(self.log.end_offset))
        fetched = leader.fetched(
            fetch,
            self.log.leader_epochs,
            self._membership.now_ms(),
            may_join=self._membership.image.may_lead(fetch.follower),
        )
        self.perform(fetched.effects)
        return fetched

    def tick(self, now_ms: int) -> None:
        leader = self.leader
        if leader is not None:
            self.perform(leader.tick(now_ms))

    def check_enough_replicas(self) -> None:
        """Before a write that all in-sync replicas must have."""
        leader = self.leader
        if leader is not None and not leader.has_enough_replicas:
            raise Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.partition}: {len(leader.state.isr)} replicas are in sync, min.insync.replicas asks for "
                f"{leader.needed}",
            )

    def wait_for(self, offset: int) -> asyncio.Future[ErrorCode]:
        """Done when everything below `offset` is committed, or with the error when that cannot be waited for."""
        waiting: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        leader = self.leader
        if leader is None:
            waiting.set_result(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.log.high_watermark >= offset:
            waiting.set_result(ErrorCode.NONE)
        elif not leader.has_enough_replicas:
            waiting.set_result(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        else:
            self._waiting.append((offset, waiting))
        return waiting

    def _committed(self, offset: int) -> None:
        self.log.advance_high_watermark(offset)
        waiting = self._waiting
        while waiting and waiting[0][0] <= offset:
            done = waiting.popleft()[1]
            if not done.done():
                done.set_result(ErrorCode.NONE)
        self.partition.wake_watchers()

    def _end_waits(self, code: ErrorCode) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, done in waiting:
            if not done.done():
                done.set_result(code)

    # The register

    async def _write(self, effect: WriteState) -> None:
        session = self._membership.session
        try:
            results = await session.multi(leader_write(self.key, effect).operations)
        except (MultiRefused, ZooKeeperError) as error:
            leader = self.leader
            if leader is not None:
                self.perform(leader.not_written(effect.version, refused=isinstance(error, MultiRefused)))
            return
        stat = results[-1]
        leader = self.leader
        if leader is not None and stat is not None and not isinstance(stat, str):
            logger.info("%s: in sync are now %s", self.partition, list(effect.state.isr))
            self.perform(leader.written(effect.version, stat.version))

    async def _read_again(self) -> None:
        """Until ZooKeeper has said what became of the write (Z3)."""
        while self.leader is not None:
            try:
                state, version = await self._membership.read_state(self.key)
            except ZooKeeperError:
                await asyncio.sleep(RETRY_S)
                continue
            self.register(state, version, synced=True)
            return
