"""DeleteRecords in a cluster: answered when every live replica begins where the leader does.

Guarantees: as in Kafka, the answer's low watermark is the smallest start of the log over all replicas whose brokers
live, or the partition is answered with REQUEST_TIMED_OUT and the records go nevertheless.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from semel.broker.replication.partition import ReplicatedPartition
from semel.errors import ErrorCode
from semel.wire.messages.admin import DeleteRecordsResponse

if TYPE_CHECKING:
    from semel.broker.topics.partition import Partition

_Row = DeleteRecordsResponse.DeleteRecordsPartitionResult


async def once_deleted(
    deleted: list[tuple[Partition, int, _Row]], timeout_ms: int, response: DeleteRecordsResponse
) -> DeleteRecordsResponse:
    """The response, once the replicas of each (partition, new start, row) have followed."""
    waits = []
    for partition, start, row in deleted:
        assert isinstance(partition, ReplicatedPartition)
        if partition.replica is None:
            row.error_code, row.low_watermark = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        else:
            waits.append((partition.replica, row, partition.replica.all_begin_at(start)))
    pending = [wait for _, _, wait in waits if not wait.done()]
    if pending:
        await asyncio.wait(pending, timeout=timeout_ms / 1000)
    for replica, row, wait in waits:
        code = wait.result() if wait.done() else ErrorCode.REQUEST_TIMED_OUT
        wait.cancel()
        row.low_watermark = replica.low_watermark if code is ErrorCode.NONE else -1
        row.error_code = code
    return response
