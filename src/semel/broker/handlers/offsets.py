"""ListOffsets and OffsetForLeaderEpoch: find an offset by timestamp, by the log's ends, or by leader epoch."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.broker.topics.partition import Partition
from semel.errors import ErrorCode, Refused
from semel.log.damage import DamagedLog
from semel.log.indexes import DamagedIndex
from semel.log.timestamps import Found
from semel.wire.messages.fetch import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer
    from semel.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

#: The replica id of a client that is no replica.
CONSUMER = -1
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
#: Timestamps for tiered storage. There is one tier: the first is the log's start, the others have no answer.
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6
_NOTHING = Found(-1, -1, -1)
#: The request version that introduced each special timestamp.
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


def check_leader_epoch(log: PartitionLog, current_leader_epoch: int) -> None:
    """Refuse a client whose leader epoch is older or newer than ours."""
    if current_leader_epoch < 0:
        return
    leader_epoch = log.leader_epoch
    if current_leader_epoch < leader_epoch:
        raise Refused(
            ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch {current_leader_epoch} is over, now is {leader_epoch}"
        )
    if current_leader_epoch > leader_epoch:
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {current_leader_epoch} is newer than the broker's")


def list_offsets(
    broker: BrokerServer, request: ListOffsetsRequest, call: Call
) -> Generator[None, None, ListOffsetsResponse]:
    """Find one offset for each requested partition. A partition that is named twice is refused, as in Kafka.

    The replica id is not checked: kafka-python 3 sends 0. The isolation level counts for consumers only.
    """
    row = ListOffsetsResponse.ListOffsetsPartitionResponse
    isolation_level = request.isolation_level if request.replica_id == CONSUMER else 0
    asked_for: dict[str, dict[int, ListOffsetsRequest.ListOffsetsPartition | None]] = {}
    for topic in request.topics:
        partitions = asked_for.setdefault(topic.name, {})
        for asked in topic.partitions:
            index = asked.partition_index
            partitions[index] = None if index in partitions else asked
        yield
    topics = []
    for name, partitions in asked_for.items():
        answers = []
        for index, once in partitions.items():
            try:
                if once is None:
                    raise Refused(ErrorCode.INVALID_REQUEST, "the partition is in the request more than once")
                _check_has_meaning(once.timestamp, call.version)
                partition = broker.topics.partition(name, index)
                check_leader_epoch(partition.log, once.current_leader_epoch)
                found = _offset_for(partition, once.timestamp, isolation_level)
                answers.append(
                    row(
                        partition_index=index,
                        timestamp=found.timestamp_ms,
                        offset=found.offset,
                        leader_epoch=found.leader_epoch,
                    )
                )
            except Refused as error:
                answers.append(row(partition_index=index, error_code=error.code))
            except OSError:
                logger.exception("%s-%d cannot be searched by time", name, index)
                answers.append(row(partition_index=index, error_code=ErrorCode.KAFKA_STORAGE_ERROR))
            yield
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


def _check_has_meaning(timestamp: int, version: int) -> None:
    if version < _SINCE.get(timestamp, 0) or timestamp < EARLIEST_PENDING_UPLOAD:
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {version}")


def _offset_for(partition: Partition, timestamp: int, isolation_level: int) -> Found:
    log = partition.log
    visible_end = log.last_stable_offset if isolation_level == 1 else log.high_watermark
    if timestamp == LATEST:
        if not partition.knows_its_end:
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, "a new leader does not know yet what is committed")
        return Found(-1, visible_end, log.leader_epoch)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return Found(-1, log.log_start_offset, log.leader_epochs.epoch_at(log.log_start_offset))
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOTHING
    try:
        times = log.times
        found = times.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else times.offset_for_timestamp(timestamp)
    except (DamagedIndex, DamagedLog) as damage:
        log.reader.report(damage)
        raise
    return found if found is not None and found.offset < visible_end else _NOTHING


def offset_for_leader_epoch(
    broker: BrokerServer, request: OffsetForLeaderEpochRequest, call: Call
) -> Generator[None, None, OffsetForLeaderEpochResponse]:
    """Find the end offset of each requested epoch."""
    row = OffsetForLeaderEpochResponse.EpochEndOffset
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            try:
                partition = broker.topics.partition(topic.topic, asked.partition)
                check_leader_epoch(partition.log, asked.current_leader_epoch)
                epoch, end_offset = partition.log.offset_for_leader_epoch(asked.leader_epoch)
                answers.append(row(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset))
            except Refused as error:
                answers.append(row(partition=asked.partition, error_code=error.code))
            yield
        yield
        topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
    return OffsetForLeaderEpochResponse(topics=topics)
