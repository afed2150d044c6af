"""A partition with replicas on several brokers.

Guarantees:

- `log` is served by the leader alone: everywhere else whoever asks is told NOT_LEADER_OR_FOLLOWER. What a replica does
  by itself (retention, compaction, following) uses `own_log`.
- A broker that has no replica of the partition never makes a directory for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.broker.topics.partition import Partition
from semel.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from semel.broker.replication.replica import LocalReplica
    from semel.log.partition_log import PartitionLog


class ReplicatedPartition(Partition):
    """`replica` is this broker's part of it; None if it has none."""

    __slots__ = ("is_local", "replica")

    #: Whether a replica is assigned to this broker.
    is_local: bool
    replica: LocalReplica | None

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

    @property
    def is_served(self) -> bool:  # type: ignore[override]
        return self.replica is not None and self.replica.leads

    @property
    def knows_its_end(self) -> bool:
        replica = self.replica
        return replica is None or replica.knows_its_high_watermark
