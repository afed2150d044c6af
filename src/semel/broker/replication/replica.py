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
from collections.abc import Callable, Iterable
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
from semel.machines.znodes.values import UnreadableZnode

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
        #: With fsync: whether the disk is being written to, and who waits for it besides the leader.
        self._is_flushing = False
        self._when_flushed: list[Callable[[], None]] = []
        #: Who waits for which offset to be committed, in the order in which they were written.
        self._waiting: deque[tuple[int, Callable[[ErrorCode], None]]] = deque()
        #: Those of them who wait also while too few replicas are in sync.
        self._patient: deque[tuple[int, asyncio.Future[ErrorCode]]] = deque()
        #: Who waits until every replica begins at an offset.
        self._deleting: list[tuple[int, asyncio.Future[ErrorCode]]] = []
        self._is_internal = partition.topic.internal

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
    def reader_role(self) -> int:
        """Another number for every leadership, as leader and as follower; -1 without one."""
        leader, follower = self.leader, self.follower
        if leader is not None:
            return 2 * leader.state.leader_epoch
        return -1 if follower is None or follower.state.leader < 0 else 2 * follower.state.leader_epoch + 1

    @property
    def knows_its_high_watermark(self) -> bool:
        leader = self.leader
        return leader is None or leader.knows_its_high_watermark

    def register(self, state: PartitionState, version: int, *, synced: bool = False) -> None:
        """What ZooKeeper says about the partition."""
        role = self.reader_role
        if not isinstance(self.machine.role, LeaderReplica):
            self.machine.end_offset = self.log.end_offset
        if self._membership.with_fsync:
            self.machine.durable_offset = self._durable_offset
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
        if self._is_internal:
            self._membership.coordinators.look(self)
        if self.reader_role != role:
            self.partition.wake_watchers()

    def assigned(self, replicas: tuple[int, ...], needed: int) -> None:
        """Which brokers have the partition now, and how many it takes to commit."""
        self.perform(self.machine.assigned(replicas, needed))

    def resign(self) -> None:
        """This life of the broker is over: it leads and follows nothing until it is registered again (Z5)."""
        self.perform(self.machine.resign())

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case BeginEpoch(leader_epoch, _):
                    self.log.begin_leader_epoch(leader_epoch)
                    self._flush_soon()
                    for fed in self.partition.feeds:
                        fed.has_changed()
                    if self._is_internal:
                        self._membership.coordinators.announce(self.partition, leader_epoch)
                case HighWatermark(offset):
                    self._committed(offset)
                case WriteState():
                    self._membership.spawn(self._write(effect))
                case ReadState():
                    self._membership.spawn(self._read_again())
                case StepDown():
                    self._end_waits(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    self._end_patient_waits()
                    if self._is_internal:
                        self._membership.coordinators.unload(self.partition)
                    self.partition.wake_watchers()

    # Leading

    def appended(self) -> None:
        """The leader has written to the log."""
        leader = self.leader
        if leader is None:
            return
        feeds = self.partition.feeds
        effects = leader.appended(self.log.end_offset, [(fed.feed.follower, fed.feed.last_fetch_ms) for fed in feeds])
        for fed in feeds:
            fed.has_changed()
        if effects:
            self.perform(effects)
        self._flush_soon()

    # The disk (semel.durability=fsync)

    @property
    def _durable_offset(self) -> int:
        return min(self.log.flusher.recovery_point, self.log.end_offset)

    def is_on_disk(self, then: Callable[[], None]) -> bool:
        """Whether all of the log counts as written; if not, `then` is called when that may be so."""
        if not self._membership.with_fsync or self._durable_offset >= self.log.end_offset:
            return True
        if then not in self._when_flushed:
            self._when_flushed.append(then)
        self._flush_soon()
        return False

    def _flush_soon(self) -> None:
        if (
            self._membership.with_fsync
            and not self._is_flushing
            and self._durable_offset < self.log.end_offset
            and self.log.failed is None
        ):
            self._is_flushing = True
            self._membership.spawn(self._flush())

    async def _flush(self) -> None:
        """Until the disk has all of the log. What is written meanwhile goes with the next round."""
        try:
            while self.log.failed is None and self._durable_offset < self.log.end_offset:
                if await self._membership.flush(self.partition):
                    # The broker is about to stop. Nobody may take for written what is not.
                    self._end_waits(ErrorCode.KAFKA_STORAGE_ERROR)
                    return
                leader = self.leader
                if leader is not None:
                    self.perform(leader.durable(self._durable_offset))
                if self.partition.open_log is not self.log:
                    return  # deleted, or moved away
        finally:
            self._is_flushing = False
            waiting, self._when_flushed = self._when_flushed, []
            for then in waiting:
                then()

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
        if leader is None:
            return
        self.perform(leader.tick(now_ms))
        if self._deleting:
            self.starts_moved()  # a broker that has died need not follow
        for fed in self.partition.feeds:
            fed.look_at_start()
        if len(leader.state.isr) < len(leader.replicas):
            # Who has caught up and was not let in asks again, although it has nothing new to say.
            for fed in self.partition.feeds:
                if fed.feed.follower not in leader.state.isr and fed.is_sound and fed.feed.still_follows(now_ms):
                    self.fetched(fed.fetch)

    def check_enough_replicas(self) -> None:
        """Before a write that all in-sync replicas must have."""
        leader = self.leader
        if leader is not None and not leader.has_enough_replicas:
            raise Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.partition}: {len(leader.state.isr)} replicas are in sync, min.insync.replicas asks for "
                f"{leader.needed}",
            )

    def tell_when_committed(self, offset: int, tell: Callable[[ErrorCode], None]) -> ErrorCode | None:
        """Call `tell` when everything below `offset` is committed, or with the error when that cannot be waited for.
        What is known at once is returned instead."""
        leader = self.leader
        if leader is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.log.high_watermark >= offset:
            return ErrorCode.NONE
        if not leader.has_enough_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        self._waiting.append((offset, tell))
        return None

    def committed(self, offset: int) -> asyncio.Future[ErrorCode]:
        """Done when everything below `offset` is committed, however long too few replicas are in sync; or with the
        error when this broker no longer leads. What is in the log of a leader stays there until then (C1)."""
        waiting: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if self.leader is None:
            waiting.set_result(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.log.high_watermark >= offset:
            waiting.set_result(ErrorCode.NONE)
        else:
            self._patient.append((offset, waiting))
        return waiting

    def _committed(self, offset: int) -> None:
        self.log.advance_high_watermark(offset)
        patient, waiting = self._patient, self._waiting
        while patient and patient[0][0] <= offset:
            done = patient.popleft()[1]
            if not done.done():
                done.set_result(ErrorCode.NONE)
        while waiting and waiting[0][0] <= offset:
            waiting.popleft()[1](ErrorCode.NONE)
        for fed in self.partition.feeds:
            fed.has_moved()
        self.partition.wake_watchers()
        if self._is_internal:
            self._membership.coordinators.look(self)

    # Where the replicas' logs begin

    @property
    def low_watermark(self) -> int:
        """The smallest start of the log over all replicas whose brokers live."""
        leader = self.leader
        start = self.log.log_start_offset
        if leader is not None:
            starts = {fed.feed.follower: fed.start_offset for fed in self.partition.feeds}
            for follower in leader.replicas:
                if follower != leader.broker_id and self._membership.lives(follower):
                    start = min(start, starts.get(follower, -1))
        return start

    def all_begin_at(self, offset: int) -> asyncio.Future[ErrorCode]:
        """The log begins at `offset` now: done when all replicas do, or this broker no longer leads."""
        waiting: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if self.leader is None:
            waiting.set_result(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return waiting
        self._deleting.append((offset, waiting))
        for fed in self.partition.feeds:
            fed.look_at_start()
        self.starts_moved()
        return waiting

    def starts_moved(self) -> None:
        """A replica may begin elsewhere now."""
        if self._deleting:
            low_watermark = self.low_watermark
            for offset, waiting in self._deleting:
                if offset <= low_watermark and not waiting.done():
                    waiting.set_result(ErrorCode.NONE)
            self._deleting = [each for each in self._deleting if not each[1].done()]

    def _end_patient_waits(self) -> None:
        waiting, self._patient, deleting, self._deleting = self._patient, deque(), self._deleting, []
        for _, done in (*waiting, *deleting):
            if not done.done():
                done.set_result(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _end_waits(self, code: ErrorCode) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, tell in waiting:
            tell(code)

    # The register

    async def _write(self, effect: WriteState) -> None:
        session = self._membership.session
        try:
            results = await session.multi(leader_write(self.key, effect).operations)
        except (MultiRefused, ZooKeeperError) as error:
            leader = self.leader
            if leader is not None:
                if isinstance(error, MultiRefused):
                    logger.info("%s: the in-sync set has changed meanwhile, or a broker's life", self.partition)
                self.perform(leader.not_written(effect.version, refused=isinstance(error, MultiRefused)))
            return
        stat = results[-1]
        leader = self.leader
        if leader is not None and stat is not None and not isinstance(stat, str):
            logger.info("%s: in sync are now %s", self.partition, list(effect.state.isr))
            self._membership.counts_isr_change(grown=effect.joining is not None)
            self.perform(leader.written(effect.version, stat.version))

    async def _read_again(self) -> None:
        """Until ZooKeeper has said what became of the write (Z3)."""
        while self.leader is not None:
            try:
                state, version = await self._membership.read_state(self.key)
            except (ZooKeeperError, UnreadableZnode):
                await asyncio.sleep(RETRY_S)
                continue
            self.register(state, version, synced=True)
            return
