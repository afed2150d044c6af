"""DescribeLogDirs, AlterReplicaLogDirs, DescribeProducers: the sizes of logs on disk, and a partition's producers."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from semel.broker.topics.partition import Partition
from semel.errors import ErrorCode, Refused
from semel.wire.messages.admin import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from semel.wire.messages.transactions import DescribeProducersRequest, DescribeProducersResponse

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

#: How many of a partition's producers are described in one piece.
PRODUCERS_AT_ONCE = 100


def describe_log_dirs(
    broker: BrokerServer, request: DescribeLogDirsRequest, call: Call
) -> Generator[None, None, DescribeLogDirsResponse]:
    """Describe the one data directory, with each requested partition once."""
    directory = broker.data.path.resolve()
    try:
        total_bytes, usable_bytes = broker.files.space(directory)
    except OSError:
        offline = DescribeLogDirsResponse.DescribeLogDirsResult(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=str(directory)
        )
        return DescribeLogDirsResponse(results=[offline])
    result = DescribeLogDirsResponse.DescribeLogDirsResult(
        log_dir=str(directory), total_bytes=total_bytes, usable_bytes=usable_bytes
    )
    wanted: dict[str, dict[int, Partition]] = {}
    if request.topics is None:
        for topic in list(broker.topics.topics.values()):
            wanted[topic.name] = dict(enumerate(topic.partitions))
            yield
    else:
        for row in request.topics:
            found = broker.topics.topics.get(row.topic)
            if found is not None:
                partitions = wanted.setdefault(row.topic, {})
                for index in row.partitions:
                    if 0 <= index < len(found.partitions):
                        partitions[index] = found.partitions[index]
            yield
    for name, partitions in wanted.items():
        answers = []
        for index, partition in partitions.items():
            answers.append(
                DescribeLogDirsResponse.DescribeLogDirsPartition(
                    partition_index=index, partition_size=partition.size_bytes
                )
            )
            yield
        result.topics.append(DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=answers))
    return DescribeLogDirsResponse(results=[result])


def describe_producers(
    broker: BrokerServer, request: DescribeProducersRequest, call: Call
) -> Generator[None, None, DescribeProducersResponse]:
    """Describe the producers of each requested partition, and where their open transactions begin.

    Any replica answers, as in Kafka: an administrator may look at each one. A coordinator on another broker goes by the
    answer, so the leader alone answers that.
    """
    to_a_broker = broker.cluster is not None and broker.cluster.is_of_a_broker(call)
    topics = []
    wanted: dict[str, dict[int, None]] = {}
    for row in request.topics:
        wanted.setdefault(row.name, {}).update(dict.fromkeys(row.partition_indexes))
        yield
    for name, indexes in wanted.items():
        answers = []
        for index in indexes:
            yield
            answer = DescribeProducersResponse.PartitionResponse(partition_index=index)
            answers.append(answer)
            try:
                partition = broker.topics.partition(name, index)
                log = partition.log if to_a_broker else partition.own_log
            except Refused as error:
                answer.error_code, answer.error_message = error.code, error.why
                continue
            answer.error_code = ErrorCode.NONE
            for number, entry in enumerate(list(log.producers.entries.values())):
                if number % PRODUCERS_AT_ONCE == 0:
                    yield
                answer.active_producers.append(
                    DescribeProducersResponse.ProducerState(
                        producer_id=entry.producer_id,
                        producer_epoch=entry.producer_epoch,
                        last_sequence=entry.last_sequence,
                        # The time of the write if it is known: a record's timestamp may be much older.
                        last_timestamp=max(entry.last_timestamp_ms, entry.heard_ms),
                        coordinator_epoch=entry.coordinator_epoch,
                        current_txn_start_offset=entry.current_transaction_first_offset,
                    )
                )
        topics.append(DescribeProducersResponse.TopicResponse(name=name, partitions=answers))
    return DescribeProducersResponse(topics=topics)


def alter_replica_log_dirs(
    broker: BrokerServer, request: AlterReplicaLogDirsRequest, call: Call
) -> Generator[None, None, AlterReplicaLogDirsResponse]:
    """Accept a move into the one data directory: the partition is there already."""
    directory = broker.data.path.resolve()
    answers: dict[str, dict[int, AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]] = {}
    for asked in request.dirs:
        is_ours = Path(asked.path).is_absolute() and Path(asked.path).resolve() == directory
        for topic in asked.topics:
            for index in topic.partitions:
                code = ErrorCode.NONE if is_ours else ErrorCode.LOG_DIR_NOT_FOUND
                if is_ours:
                    try:
                        broker.topics.partition(topic.name, index)
                    except Refused as error:
                        code = error.code
                answers.setdefault(topic.name, {})[index] = (
                    AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=code
                    )
                )
                yield
            yield
        yield
    row = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
    return AlterReplicaLogDirsResponse(
        results=[row(topic_name=name, partitions=list(found.values())) for name, found in answers.items()]
    )
