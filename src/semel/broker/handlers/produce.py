"""Produce: one batch per partition, checked, appended, and answered when it is as durable as the broker promises.

Guarantees:

- Nothing is answered before it is written; with `semel.durability=fsync` nothing is answered before it is on disk. A
  retry that arrives meanwhile finds the original in the producer's state and waits for the same fsync.
- The first batch of a transaction in a partition is appended only after the coordinator agreed: under protocol V1 it
  is asked whether the partition was added, under V2 (Produce 12 and later) it adds it.
- With acks=0 an error closes the connection, because there is no answer to put it in.
"""

from __future__ import annotations

from types import CoroutineType
from typing import TYPE_CHECKING, Any

from semel.broker.partitions import CONSUMER_OFFSETS, Partition, Topic
from semel.errors import ErrorCode, RecordsRefused, Refused
from semel.records.batch import HEADER_SIZE, Batch, check
from semel.records.compression import ZSTD
from semel.records.layout import CODEC_MASK, TRANSACTIONAL
from semel.wire.messages.produce import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from semel.broker.coordinator_host import CoordinatorHost
    from semel.broker.dispatch import Call
    from semel.broker.flusher import Flusher
    from semel.broker.server import BrokerServer

_TopicResponse = ProduceResponse.TopicProduceResponse
_PartitionResponse = ProduceResponse.PartitionProduceResponse

#: From this version on a producer knows TRANSACTION_ABORTABLE.
ABORTABLE_SINCE = 11
ZSTD_SINCE = 7
#: From this version on a produce adds its partition to the transaction by itself (KIP-890).
IMPLICIT_ADD_SINCE = 12
TOPIC_IDS_SINCE = 13
#: With UNKNOWN_PRODUCER_ID the Java producer compares the log's start with the last offset it was told, or -1. If that
#: is less, it takes its earlier batches for deleted and sends this one again, with sequence 0, until its time is up.
#: Only with a start below all of them does it abort, as it should.
NOTHING_WAS_DELETED = -2
#: The byte of a batch whose bits say, among others, that it belongs to a transaction.
ATTRIBUTES_AT = 22
#: Tools may repair internal topics under this name, as in Kafka, with records that a coordinator can read.
ADMIN_CLIENT = "__admin_client"

#: Coordinator errors an old client would not retry in a produce; NOT_ENOUGH_REPLICAS it does, without new metadata.
_RETRY_AS_NOT_ENOUGH_REPLICAS = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


def produce(broker: BrokerServer, request: ProduceRequest, call: Call) -> Any:
    """Append every partition's batch and answer."""
    if broker.flusher is not None and request.transactional_id is not None and call.version >= IMPLICIT_ADD_SINCE:
        return _produce_after_the_coordinator(broker, request, call)
    return _produce(broker, request, call)


async def _produce_after_the_coordinator(broker: BrokerServer, request: ProduceRequest, call: Call) -> Any:
    """With fsync, a transaction's data must not be on disk before the coordinator's record of it: nobody would end it.

    So every partition is added first and the coordinator's log flushed; the append then finds them added already. What
    is refused now stays refused: added later, after the flush, it would be written before the coordinator's record.
    """
    transactional_id = str(request.transactional_id)
    if broker.transactions.ready_for(transactional_id):
        await broker.transactions.settled(transactional_id)
    refused: dict[int, Refused] = {}
    for data in request.topic_data:
        topic = _topic(broker, data, call.version)
        for part in data.partition_data:
            if topic is None or not is_transactional(part.records):
                continue
            try:
                _verified(broker, request, call, topic.partition(part.index), part.records, broker.now_ms())
            except Refused as error:
                refused[id(part)] = error
    await broker.transactions.on_disk(transactional_id)
    reply = _produce(broker, request, call, refused)
    return await reply if type(reply) is CoroutineType else reply


def _topic(broker: BrokerServer, data: ProduceRequest.TopicProduceData, version: int) -> Topic | None:
    if version >= TOPIC_IDS_SINCE:
        return broker.topics.by_id.get(data.topic_id)
    return broker.topics.topics.get(data.name)


def is_transactional(records: Any) -> bool:
    """Whether a batch says that it belongs to a transaction."""
    return records is not None and len(records) >= HEADER_SIZE and bool(records[ATTRIBUTES_AT] & TRANSACTIONAL)


def _produce(
    broker: BrokerServer, request: ProduceRequest, call: Call, refused: dict[int, Refused] | None = None
) -> Any:
    """`refused`: partitions, by their identity, that are not to be written."""
    acks, version = request.acks, call.version
    now_ms = broker.now_ms()
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= TOPIC_IDS_SINCE else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    written: list[tuple[Partition, _PartitionResponse]] = []
    failed = False
    responses = []
    for data in request.topic_data:
        answers = []
        topic = _topic(broker, data, version)
        for part in data.partition_data:
            try:
                if topic is None:
                    raise Refused(unknown, "there is no such topic")
                if refused and id(part) in refused:
                    raise refused[id(part)]
                partition = topic.partition(part.index)
                appended = _append(broker, request, call, partition, part.records, now_ms)
            except Refused as error:
                failed = True
                broker.metrics.failed_produce += 1
                answers.append(_refusal(part.index, error))
                continue
            answer = _PartitionResponse(
                index=part.index,
                base_offset=appended.base_offset,
                log_append_time_ms=appended.append_time_ms,
                log_start_offset=appended.log_start_offset,
            )
            answers.append(answer)
            written.append((partition, answer))
        responses.append(_TopicResponse(name=data.name, topic_id=data.topic_id, partition_responses=answers))
    if acks == 0:
        if broker.flusher is not None and written:
            # Nobody waits for it, yet nobody reads it before it is on disk.
            broker.spawn(broker.flusher.flushed([partition for partition, _ in written]))
        if failed:
            call.connection.refuse("a produce with acks=0 was refused")
        return None
    response = ProduceResponse(responses=responses)
    if broker.flusher is not None and written:
        return _after_flush(broker.flusher, written, response)
    due = [(partition, answer) for partition, answer in written if partition.flush_is_due]
    if due:
        return _after_flush(broker.disk, due, response)
    return response


def _refusal(index: int, error: Refused) -> _PartitionResponse:
    answer = _PartitionResponse(index=index, error_code=error.code, base_offset=-1, error_message=error.why or None)
    if error.code is ErrorCode.UNKNOWN_PRODUCER_ID:
        answer.log_start_offset = NOTHING_WAS_DELETED
    if isinstance(error, RecordsRefused):
        answer.record_errors = [
            ProduceResponse.BatchIndexAndErrorMessage(batch_index=place, batch_index_error_message=why)
            for place, why in error.record_errors
        ]
    return answer


async def _after_flush(
    flusher: Flusher, written: list[tuple[Partition, _PartitionResponse]], response: ProduceResponse
) -> ProduceResponse:
    failed = await flusher.flushed([partition for partition, _ in written])
    for partition, answer in written:
        if partition in failed:
            answer.error_code, answer.base_offset = ErrorCode.KAFKA_STORAGE_ERROR, -1
    return response


def _append(
    broker: BrokerServer, request: ProduceRequest, call: Call, partition: Partition, records: Any, now_ms: int
) -> Any:
    topic = partition.topic
    acks = request.acks
    if acks != -1 and acks != 1 and acks != 0:
        raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks} is none of -1, 0 and 1")
    if topic.internal and call.client_id != ADMIN_CLIENT:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is the broker's own")
    if acks == -1 and topic.min_insync_replicas > 1:
        raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS, f"{topic.name} wants more replicas in sync than there are brokers")
    if records is None or len(records) < HEADER_SIZE:
        raise Refused(ErrorCode.INVALID_RECORD, "a produce must carry one record batch")
    if call.version < ZSTD_SINCE and records[ATTRIBUTES_AT] & CODEC_MASK == ZSTD:
        raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd came with version {ZSTD_SINCE}")
    if topic.internal:
        return _append_for_coordinator(broker, partition, records, now_ms)
    guard = None
    if records[ATTRIBUTES_AT] & TRANSACTIONAL:
        guard = _verified(broker, request, call, partition, records, now_ms)
    appended = partition.log.append(records, now_ms, guard=guard)
    metrics = broker.metrics
    metrics.messages_in += appended.last_offset - appended.base_offset + 1
    metrics.bytes_in += len(records)
    if partition.watchers:
        partition.changed()
    return appended


def _append_for_coordinator(broker: BrokerServer, partition: Partition, records: Any, now_ms: int) -> Any:
    """Records of an internal topic, from a tool that repairs it: only what its coordinator can read and act upon."""
    host: CoordinatorHost = broker.groups if partition.topic.name == CONSUMER_OFFSETS else broker.transactions
    host.ready(partition.index)
    batch = Batch.parse(records)
    check(batch)
    understood = host.readable(partition.index, batch)
    appended = partition.log.append(records, now_ms)
    if not appended.duplicate:
        host.take_in(partition.index, understood)
    partition.changed()
    return appended


def _verified(
    broker: BrokerServer, request: ProduceRequest, call: Call, partition: Partition, records: Any, now_ms: int
) -> Any:
    """The guard to append with, once the coordinator knows this partition as part of the producer's transaction."""
    if request.transactional_id is None:
        raise Refused(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without a transactional id"
        )
    batch = Batch.parse(records)
    implicit_add = call.version >= IMPLICIT_ADD_SINCE
    guard = partition.log.start_verification(
        batch.producer_id, batch.producer_epoch, batch.base_sequence, now_ms=now_ms, supports_epoch_bump=implicit_add
    )
    if guard is None:
        if not broker.transactions.asks_every_time:
            return None
    elif not implicit_add and not broker.settings.transaction_partition_verification_enable:
        return guard
    code = broker.transactions.admit(
        request.transactional_id,
        batch.producer_id,
        batch.producer_epoch,
        partition.topic.name,
        partition.index,
        verify_only=guard is None or not implicit_add,
        knows_abortable=call.version >= ABORTABLE_SINCE,
    )
    if code == ErrorCode.NONE:
        return guard
    # A producer that adds implicitly meets CONCURRENT_TRANSACTIONS often, and knows what it means.
    if code in _RETRY_AS_NOT_ENOUGH_REPLICAS or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not implicit_add):
        raise Refused(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the coordinator could not say whether the partition is in the transaction: {code.name}",
        )
    raise Refused(code, f"the coordinator does not take the partition into the transaction: {code.meaning}")
