"""One replica of a partition over its leaderships: when it leads, when it follows, and what it does in between.

Guarantees: it leads only under a leader epoch that is new to this life of the broker and names this life (R1). A
leadership begins with an entry in the leader epoch checkpoint (R4), following begins with a checkpoint that has no
entries without records (R5).
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.machines.replication.follower import FollowerReplica
from semel.machines.replication.leader import LeaderReplica
from semel.machines.replication.values import BeginEpoch, DropEmptyEpochs, Effect, PartitionState, StepDown


@dataclass(slots=True)
class Replica:
    """`role` is None until the register was read, and while it names an older life of this broker as leader."""

    broker_id: int
    #: This life of the broker.
    broker_epoch: int
    replicas: tuple[int, ...]
    needed: int
    end_offset: int
    high_watermark: int
    #: The leader epoch of the last record; -1 in an empty log.
    last_epoch: int = -1
    lag_time_max_ms: int = 30_000
    version: int = -1
    role: LeaderReplica | FollowerReplica | None = None
    #: With fsync: how far this broker's disk has the log. None: what is written counts.
    durable_offset: int | None = None

    def register(self, state: PartitionState, version: int, now_ms: int, *, synced: bool = False) -> list[Effect]:
        """What ZooKeeper says about the partition."""
        role = self.role
        if isinstance(role, LeaderReplica):
            effects = role.register(state, version, synced=synced)
            self.version = max(self.version, version)
            if not any(isinstance(effect, StepDown) for effect in effects):
                return effects
        else:
            if version <= self.version:  # Z7
                return []
            effects = []
            self.version = version
        self._keep()
        if state.leader == self.broker_id:
            return effects + self._lead(state, version, now_ms)
        return effects + self._follow(state, version)

    def assigned(self, replicas: tuple[int, ...], needed: int) -> list[Effect]:
        """Which brokers have the partition now, and how many it takes to commit."""
        if (replicas, needed) == (self.replicas, self.needed):
            return []
        self.replicas, self.needed = replicas, needed
        return self.role.assigned(replicas, needed) if isinstance(self.role, LeaderReplica) else []

    def resign(self) -> list[Effect]:
        """This life of the broker is over: it leads and follows nothing until it is registered again (Z5)."""
        self._keep()
        self.role = None
        return [StepDown()]

    def _keep(self) -> None:
        """What the role has come to is what the next one begins with. One that began with the epoch of an older record
        would be told to cut away what it has of the newer ones."""
        role = self.role
        if isinstance(role, LeaderReplica):
            self.end_offset, self.high_watermark = role.end_offset, role.high_watermark
            if role.end_offset > role.start_offset:
                self.last_epoch = role.state.leader_epoch
        elif isinstance(role, FollowerReplica):
            self.end_offset, self.high_watermark = role.end_offset, role.high_watermark
            self.last_epoch = role.last_epoch

    def _lead(self, state: PartitionState, version: int, now_ms: int) -> list[Effect]:
        if state.leader_broker_epoch != self.broker_epoch:  # R1: the controller has not seen this life yet
            self.role = None
            return []
        self.role = LeaderReplica(
            self.broker_id,
            self.replicas,
            self.needed,
            self.lag_time_max_ms,
            state,
            version,
            self.end_offset,
            self.high_watermark,
            start_offset=self.end_offset,
            now_ms=now_ms,
            durable_offset=self.durable_offset,
        )
        begin = BeginEpoch(state.leader_epoch, self.end_offset)  # R4
        return [begin, *self.role.appended(self.end_offset)]

    def _follow(self, state: PartitionState, version: int) -> list[Effect]:
        if isinstance(self.role, FollowerReplica):
            self.role.register(state, version)
            return []
        self.role = FollowerReplica(
            self.broker_id,
            self.broker_epoch,
            state,
            version,
            self.end_offset,
            self.high_watermark,
            self.last_epoch,
        )
        return [DropEmptyEpochs(self.end_offset)]  # R5
