"""The compacted topic that keeps progress for good: partition 0 of `marker_topic`, a record for each pipeline or load.

The record is written in the transaction of the batch, by the driver. It is read only where the group has no progress:
a group's offsets expire (offsets.retention.minutes), a compacted topic's last record does not.
"""

from __future__ import annotations

import time
from typing import Any

from semel.client.cluster.cluster import Cluster, Leader
from semel.client.offset_requests import list_offsets
from semel.errors import ErrorCode, error_for
from semel.machines.pipeline.driver_transaction import PipelineProgress
from semel.machines.pipeline.progress_record import ProgressFinder, from_record
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.records.batch import split
from semel.wire.messages.fetch import FetchRequest
from semel.wire.messages.produce import ProduceRequest

_EARLIEST, _LATEST = -2, -1
_FETCH_BYTES = 4 << 20


class ProgressTopic:
    """One pipeline's records in a compacted topic."""

    def __init__(self, cluster: Cluster, topic: str, key: str) -> None:
        self._cluster, self.topic, self._key = cluster, topic, key.encode()

    async def write(
        self,
        value: bytes,
        transactional_id: str,
        identity: ProducerIdentity,
        *,
        sequence: int,
        implicit_add: bool,
        timeout_ms: int,
    ) -> None:
        """Write the record into the transaction: the only one that the driver itself produces."""
        import pyarrow as pa

        from semel.records.columns import from_arrow

        columns = {"key": pa.array([self._key], pa.binary()), "value": pa.array([value], pa.binary())}
        [encoded] = from_arrow(
            pa.RecordBatch.from_pydict(columns),
            timestamp_ms=time.time_ns() // 1_000_000,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=self._cluster.config["request.timeout.ms"],
            topic_data=[
                ProduceRequest.TopicProduceData(
                    name=self.topic,
                    partition_data=[ProduceRequest.PartitionProduceData(index=0, records=encoded)],
                )
            ],
        )
        answer: Any = await self._cluster.request_retrying(
            request, to=Leader(self.topic, 0), version=12 if implicit_add else 9, timeout_ms=timeout_ms
        )
        _raise_for(answer.responses[0].partition_responses[0].error_code, f"storing progress in {self.topic}-0")

    async def read(self) -> PipelineProgress:
        """The last progress that was committed. To be asked after InitProducerId, which settles what was open."""
        place, timeout_ms = TopicPartition(self.topic, 0), self._cluster.config["request.timeout.ms"]
        ends = [
            (await list_offsets(self._cluster, {place: which}, isolation_level=0, timeout_ms=timeout_ms))[place].offset
            for which in (_EARLIEST, _LATEST)
        ]
        position, end = ends
        finder = ProgressFinder(self._key)
        while position < end:
            row = await self._fetch(position)
            _raise_for(row.error_code, f"reading progress from {self.topic}-0")
            batches = split(row.records, partial_tail=True) if row.records else []
            if not batches:
                _raise_for(ErrorCode.REQUEST_TIMED_OUT, f"reading progress from {self.topic}-0 at {position} of {end}")
            for batch in batches:
                finder.add(batch)
                position = batch.next_offset
        return from_record(finder.value)

    async def _fetch(self, position: int) -> Any:
        answer = await self._cluster.request_retrying(
            FetchRequest(
                replica_id=-1,
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=_FETCH_BYTES,
                isolation_level=0,
                session_id=0,
                session_epoch=-1,
                topics=[
                    FetchRequest.FetchTopic(
                        topic=self.topic,
                        partitions=[
                            FetchRequest.FetchPartition(
                                partition=0, fetch_offset=position, partition_max_bytes=_FETCH_BYTES
                            )
                        ],
                    )
                ],
            ),
            to=Leader(self.topic, 0),
            lane="fetch",
        )
        return answer.responses[0].partitions[0]


def _raise_for(code: int, what: str) -> None:
    if code:
        error = ErrorCode.of(code)
        raise error_for(error, f"{what}: {error.meaning}")
