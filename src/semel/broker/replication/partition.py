"""A partition with replicas on several brokers.

Guarantees:

- `log` is served by the leader alone: everywhere else whoever asks is told NOT_LEADER_OR_FOLLOWER. What a replica does
  by itself (retention, compaction, following) uses `own_log`.
- A broker that has no replica of the partition never makes a directory for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.broker.topics.partition import Partition
from semel.errors import ErrorCode, Refused
from semel.machines.producing.refused_batches import RefusedBatches

if TYPE_CHECKING:
    from semel.broker.replication.feeding import Fed
    from semel.broker.replication.replica import LocalReplica
    from semel.log.partition_log import PartitionLog


class ReplicatedPartition(Partition):
    """`replica` is this broker's part of it; None if it has none."""

    __slots__ = ("feeds", "is_local", "refused_batches", "replica")

    #: Whether a replica is assigned to this broker.
    is_local: bool
    replica: LocalReplica | None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.replica = None
        self.refused_batches = RefusedBatches()
        #: The followers that fetch it here.
        self.feeds: list[Fed] = []

    @property
    def log(self) -> PartitionLog:
        """The log, if this broker leads the partition."""
        replica = self.replica
        if replica is None or not replica.leads:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self} is not led by this broker")
        return self.own_log

    @property
    def own_log(self) -> PartitionLog:
        """The log of this broker's replica, whoever leads."""
        if not self.is_local:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker has no replica of {self}")
        return self._opened_log()

    def wake_watchers(self) -> None:
        super().wake_watchers()
        if not self.is_served:
            # Deleted, or led by another: followers have to know.
            for fed in self.feeds:
                fed.has_changed()

    def append_internal(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Append a coordinator's own batch, if enough replicas are in sync to commit it."""
        replica = self._writable()
        super().append_internal(data, now_ms)
        replica.appended()

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> None:
        """Append a transaction's marker, if enough replicas are in sync to commit it."""
        replica = self._writable()
        super().append_marker(
            producer_id, producer_epoch, commit, coordinator_epoch, transaction_version, now_ms
        )
        replica.appended()

    def _writable(self) -> LocalReplica:
        _ = self.log
        replica = self.replica
        assert replica is not None, "a log is led by a replica"
        replica.check_enough_replicas()
        return replica

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that this broker leads under; -1 if it does not."""
        leader = None if self.replica is None else self.replica.leader
        return -1 if leader is None else leader.state.leader_epoch

    @property
    def is_served(self) -> bool:  # type: ignore[override]
        return self.replica is not None and self.replica.leads

    @property
    def reader_role(self) -> int:  # type: ignore[override]
        return -1 if self.replica is None else self.replica.reader_role

    @property
    def knows_its_end(self) -> bool:
        replica = self.replica
        return replica is None or replica.knows_its_high_watermark
