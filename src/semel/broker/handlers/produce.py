"""Produce: one batch per partition, checked, appended, and answered when it is as durable as the broker promises.

Guarantees:

- A batch is written before it is answered, and with `semel.durability=fsync` it is on disk. A retry that arrives
  meanwhile finds the original in the producer's state and waits for the same fsync.
- The first batch of a transaction in a partition is appended only after the coordinator agreed. Under protocol V1 the
  coordinator is asked whether the partition was added. Under V2 (Produce 12 and later) it adds the partition.
- With acks=0 an error closes the connection, because there is no answer that could carry it.
- Every record of a batch is checked before the batch is written. A small batch is checked and written at once. A large
  one is checked on a thread (`broker.record_checks`) while this connection waits, so its requests stay in order. In a
  request with many partitions, other requests are served in between.
- A partition that is named twice is refused and not written. (Kafka writes the last one and drops the others.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.broker.handlers.verification import (
    IMPLICIT_ADD_SINCE,
    ask_coordinators,
    begin_admission,
    verification_guard,
)
from semel.broker.later_reply import LaterReply, result_of
from semel.broker.record_checks import Share
from semel.broker.topics.internal import CONSUMER_OFFSETS
from semel.broker.topics.partition import Partition
from semel.broker.topics.topic import Topic
from semel.errors import ErrorCode, RecordsRefused, Refused
from semel.log.admission import Admission
from semel.records.batch import HEADER_SIZE, Batch, Meter, check
from semel.records.compression import ZSTD
from semel.records.layout import ATTRIBUTES_AT, CODEC_MASK, TRANSACTIONAL
from semel.wire.messages.produce import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from semel.broker.coordinators.host import CoordinatorHost
    from semel.broker.dispatch import Call
    from semel.broker.handlers.verification import Questions
    from semel.broker.replication.admission import Verification
    from semel.broker.server import BrokerServer

_TopicResponse = ProduceResponse.TopicProduceResponse
_PartitionResponse = ProduceResponse.PartitionProduceResponse

ZSTD_SINCE = 7
TOPIC_IDS_SINCE = 13
#: After UNKNOWN_PRODUCER_ID the Java producer compares the log's start with the last acknowledged offset, or -1. If the
#: start is higher, it takes its earlier batches for deleted and sends this one again, with sequence 0, until it times
#: out. With a start below all of them it aborts, as it should.
NOTHING_WAS_DELETED = -2
#: How many bytes of one request are checked or written before other requests are served; and the fixed cost of a
#: partition, in bytes that take as long.
BYTES_AT_ONCE = 4 * 1024 * 1024
PARTITION_COSTS_BYTES = 64 * 1024
#: An uncompressed batch of up to this many bytes is always checked at once.
SMALL_BYTES = 32 * 1024
#: How much a tool may write into an internal topic at a time: the coordinator reads it in one piece.
REPAIR_BYTES = 64 * 1024
#: The client id of tools that may repair internal topics, as in Kafka, with records that a coordinator can read.
ADMIN_CLIENT = "__admin_client"


def produce(broker: BrokerServer, request: ProduceRequest, call: Call) -> Any:
    """Append each partition's batch, and answer."""
    if call.is_long:
        return _produce_to_many(broker, request, call)
    return _begin(broker, request, call, _repeated(request, call.version))


async def _produce_to_many(broker: BrokerServer, request: ProduceRequest, call: Call) -> Any:
    repeated = await broker.beside(partial(_repeated, request, call.version))
    return await result_of(_begin(broker, request, call, repeated))


def _begin(broker: BrokerServer, request: ProduceRequest, call: Call, refused: dict[int, Refused]) -> Any:
    if request.transactional_id is not None and broker.durability.coordinator_first:
        if broker.cluster is not None:
            return _produce_once_admitted(broker, request, call, refused)
        if call.version >= IMPLICIT_ADD_SINCE:
            return _produce_after_the_coordinator(broker, request, call, refused)
    return _produce(broker, request, call, refused)


def _produce_once_admitted(
    broker: BrokerServer, request: ProduceRequest, call: Call, refused: dict[int, Refused]
) -> Any:
    """In a cluster another broker may coordinate the transaction: it is asked first, then all is checked again."""
    parts = []
    for data in request.topic_data:
        topic = _topic(broker, data, call.version)
        if topic is not None:
            parts += [
                (topic, part)
                for part in data.partition_data
                if id(part) not in refused and is_transactional(part.records)
            ]
    admitted, questions = begin_admission(broker, request, call, parts, refused)
    if questions:
        return _produce_once_asked(broker, request, call, refused, admitted, questions)
    return _produce(broker, request, call, refused, admitted)


async def _produce_once_asked(
    broker: BrokerServer,
    request: ProduceRequest,
    call: Call,
    refused: dict[int, Refused],
    admitted: dict[Partition, Verification],
    questions: Questions,
) -> Any:
    await ask_coordinators(broker, call, questions, refused)
    return await result_of(_produce(broker, request, call, refused, admitted))


async def _produce_after_the_coordinator(
    broker: BrokerServer, request: ProduceRequest, call: Call, refused: dict[int, Refused]
) -> Any:
    """Produce once the coordinator's record is on disk. Data of a transaction that no coordinator knows stays open.

    First every partition is added to the transaction and the coordinator's log is flushed. Then the batches are
    appended. A partition that is refused now stays refused: added after the flush, its data could be on disk before the
    coordinator's record.
    """
    transactional_id = str(request.transactional_id)
    if broker.transactions.host.ready_for(transactional_id):
        await broker.transactions.settled(transactional_id)
    for data in request.topic_data:
        for number, part in enumerate(data.partition_data):
            if (number + 1) * PARTITION_COSTS_BYTES % BYTES_AT_ONCE == 0:
                await broker.turns.next()
            topic = _topic(broker, data, call.version)
            if topic is None or id(part) in refused or not is_transactional(part.records):
                continue
            try:
                verification_guard(broker, request, call, topic.partition(part.index), part.records, broker.now_ms())
            except Refused as error:
                refused[id(part)] = error
    await broker.transactions.host.on_disk(transactional_id)
    return await result_of(_produce(broker, request, call, refused))


def _topic(broker: BrokerServer, data: ProduceRequest.TopicProduceData, version: int) -> Topic | None:
    if version >= TOPIC_IDS_SINCE:
        return broker.topics.by_id.get(data.topic_id)
    return broker.topics.topics.get(data.name)


def is_transactional(records: Any) -> bool:
    """Whether a batch says that it belongs to a transaction."""
    return records is not None and len(records) >= HEADER_SIZE and bool(records[ATTRIBUTES_AT] & TRANSACTIONAL)


class _LookInto:
    """A batch that takes long to check: it is checked on a thread while the request waits."""

    __slots__ = ("admission", "records")

    def __init__(self, admission: Admission, records: Any) -> None:
        self.admission = admission
        self.records = records


#: What a request waits for: a batch to be checked, or (None) the next turn of the loop.
_Wait = _LookInto | None


class _Outcome:
    """The results of a request's partitions so far."""

    __slots__ = ("answers", "failed", "responses", "written")

    def __init__(self) -> None:
        self.failed = False
        self.responses: list[_TopicResponse] = []
        #: The partitions that were written to, and the answer for each.
        self.written: list[Partition] = []
        self.answers: list[_PartitionResponse] = []


def _produce(
    broker: BrokerServer,
    request: ProduceRequest,
    call: Call,
    refused: dict[int, Refused],
    admitted: dict[Partition, Verification] | None = None,
) -> Any:
    """`refused`: the partitions that must not be written, by the id() of their part of the request.

    `admitted`: in a cluster, the transactional partitions for which the coordinator was asked.
    """
    outcome = _Outcome()
    steps = _write_each(broker, request, call, refused, outcome, admitted)
    for wait in steps:
        if request.acks == 0:
            # A client with acks=0 may hang up as soon as it has sent everything.
            call.connection.finishes = True
        return _run_to_end(broker, request, call, steps, wait, outcome)
    return _answer(broker, request, call, outcome)


async def _run_to_end(broker: BrokerServer, *rest: Any) -> Any:
    """Serve a request to its end, also if the client is gone, as a request that is served at once."""
    return await asyncio.shield(broker.spawn(_go_on(broker, *rest)))


async def _go_on(
    broker: BrokerServer,
    request: ProduceRequest,
    call: Call,
    steps: Generator[_Wait, Batch | None, None],
    wait: _Wait,
    outcome: _Outcome,
) -> Any:
    """Serve the rest of a request that takes more than one turn of the loop."""
    # A list for each topic, not one generator: these may be very many, and others wait meanwhile.
    sizes = [[len(part.records) for part in data.partition_data if part.records] for data in request.topic_data]
    share = Share(sum(map(sum, sizes)))
    now_ms = broker.now_ms()
    turns = broker.turns
    try:
        while True:
            batch, error = None, None
            try:
                if wait is None:
                    await turns.next()
                else:
                    batch = await broker.record_checks.prepare(wait.admission, wait.records, now_ms, share)
            except Refused as refused:
                error = refused
            if broker.fatal_error is not None:
                # Nothing more is written or answered.
                call.connection.refuse("the broker stopped for a broken invariant")
                return None
            since = turns.clock()
            broker.after_reply.run_all()
            try:
                wait = steps.send(batch) if error is None else steps.throw(error)
            finally:
                turns.worked(since)
    except StopIteration:
        reply = _answer(broker, request, call, outcome)
    return await result_of(reply)


def _repeated(request: ProduceRequest, version: int) -> dict[int, Refused]:
    """Every partition that is named more than once, by the id() of its part: nobody knows which part is meant."""
    topics = request.topic_data
    repeated: dict[int, Refused] = {}
    if len(topics) == 1 and len(topics[0].partition_data) == 1:
        return repeated
    by_id = version >= TOPIC_IDS_SINCE
    first: dict[tuple[object, int], Any] = {}
    for data in topics:
        topic = data.topic_id if by_id else data.name
        for part in data.partition_data:
            original = first.setdefault((topic, part.index), part)
            if original is not part:
                why = Refused(ErrorCode.INVALID_REQUEST, f"the request names partition {part.index} twice")
                repeated[id(original)] = repeated[id(part)] = why
    return repeated


def _write_each(
    broker: BrokerServer,
    request: ProduceRequest,
    call: Call,
    refused: dict[int, Refused],
    outcome: _Outcome,
    admitted: dict[Partition, Verification] | None,
) -> Generator[_Wait, Batch | None, None]:
    """Write one partition after the other. It yields what to wait for, and is sent the checked batch."""
    version = call.version
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= TOPIC_IDS_SINCE else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    now_ms = broker.now_ms()
    spent_bytes = 0
    for data in request.topic_data:
        answers: list[_PartitionResponse] = []
        outcome.responses.append(
            _TopicResponse(name=data.name, topic_id=data.topic_id, partition_responses=answers)
        )
        for part in data.partition_data:
            if spent_bytes >= BYTES_AT_ONCE:
                spent_bytes = 0
                yield None
            records: Any = part.records
            # Looked up each time: the topic may be deleted or changed while the request waits.
            topic = _topic(broker, data, version)
            try:
                if topic is None:
                    raise Refused(unknown, "there is no such topic")
                if refused and id(part) in refused:
                    raise refused[id(part)]
                partition = topic.partition(part.index)
                _check_request(request, call, partition, records)
                if broker.cluster is not None:
                    _check_role(partition, request.acks, records, now_ms)
                batch: Batch | None = None
                if records[ATTRIBUTES_AT] & CODEC_MASK or len(records) > SMALL_BYTES or partition.log.admission.codec:
                    admission = partition.log.admission
                    if admission.is_light(records):
                        meter = Meter()
                        batch = admission.check_light(records, now_ms, meter)
                        spent_bytes += meter.decompressed_bytes
                    if batch is None:
                        if topic.internal:
                            raise _too_much_at_once(topic)
                        batch = yield _LookInto(admission, records)
                        spent_bytes = 0
                        if partition.log.admission is not admission:
                            raise Refused(
                                ErrorCode.REQUEST_TIMED_OUT, f"{topic.name} was changed meanwhile; send it again"
                            )
                spent_bytes += PARTITION_COSTS_BYTES + len(records)
                appended = _append(broker, request, call, partition, records, now_ms, batch, admitted)
            except Refused as error:
                spent_bytes += PARTITION_COSTS_BYTES
                outcome.failed = True
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
            outcome.written.append(partition)
            outcome.answers.append(answer)


def _answer(broker: BrokerServer, request: ProduceRequest, call: Call, outcome: _Outcome) -> Any:
    to_flush = broker.durability.to_flush(outcome.written)
    if request.acks == 0:
        if broker.cluster is not None:
            _once_committed(broker, request, call, [], outcome, ProduceResponse())
        if to_flush:
            # Nobody waits for it. With fsync nobody reads it before it is on disk.
            broker.spawn(broker.durability.flusher.flush(to_flush))
        if outcome.failed:
            call.connection.refuse("a produce with acks=0 was refused")
        return None
    response = ProduceResponse(responses=outcome.responses)
    if broker.cluster is not None:
        if request.acks == -1 and not broker.durability.high_watermark_follows_end:
            to_flush = []  # nothing is committed before it is on disk
        return _once_committed(broker, request, call, to_flush, outcome, response)
    return _after_flush(broker, to_flush, outcome, response) if to_flush else response


def _once_committed(
    broker: BrokerServer,
    request: ProduceRequest,
    call: Call,
    to_flush: list[Partition],
    outcome: _Outcome,
    response: ProduceResponse,
) -> Any:
    """In a cluster: with acks=all the answer waits for the in-sync replicas."""
    from semel.broker.replication.answers import once_committed

    later = once_committed(
        broker, call, outcome.written, request.acks, request.timeout_ms, response, outcome.answers
    )
    if to_flush:
        return _once_committed_and_flushed(broker, call, to_flush, outcome, response, later)
    if later is None:
        _hint(broker, call, response)
        return response
    return later


def _hint(broker: BrokerServer, call: Call, response: ProduceResponse) -> None:
    from semel.broker.replication.answers import hint_produce

    hint_produce(broker, call, response)


async def _once_committed_and_flushed(
    broker: BrokerServer,
    call: Call,
    to_flush: list[Partition],
    outcome: _Outcome,
    response: ProduceResponse,
    later: LaterReply | None,
) -> ProduceResponse:
    await _after_flush(broker, to_flush, outcome, response)
    if later is not None:
        await later.wait()
    _hint(broker, call, response)
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
    broker: BrokerServer, to_flush: list[Partition], outcome: _Outcome, response: ProduceResponse
) -> ProduceResponse:
    failed = await broker.durability.flusher.flush(to_flush)
    for partition, answer in zip(outcome.written, outcome.answers, strict=True):
        if partition in failed:
            answer.error_code, answer.base_offset = ErrorCode.KAFKA_STORAGE_ERROR, -1
    return response


def _too_much_at_once(topic: Topic) -> Refused:
    return Refused(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"{topic.name} is the broker's own and is repaired {REPAIR_BYTES} bytes at a time; send smaller batches",
    )


def _check_request(request: ProduceRequest, call: Call, partition: Partition, records: Any) -> None:
    """Refuse a request that may not write to this partition. The records are not checked here."""
    topic = partition.topic
    acks = request.acks
    if acks != -1 and acks != 1 and acks != 0:
        raise Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={acks} is not legal: -1, 0 or 1")
    if topic.internal:
        if call.client_id != ADMIN_CLIENT:
            raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal: clients cannot write to it")
        if records is not None and len(records) > REPAIR_BYTES:
            raise _too_much_at_once(topic)
    if acks == -1 and topic.min_insync_replicas > 1 and type(partition) is Partition:
        why = f"{topic.name}: min.insync.replicas={topic.min_insync_replicas}, but there is one broker"
        raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS, why)
    if records is None or len(records) < HEADER_SIZE:
        raise Refused(ErrorCode.INVALID_RECORD, "a produce must carry one record batch")
    if call.version < ZSTD_SINCE and records[ATTRIBUTES_AT] & CODEC_MASK == ZSTD:
        raise Refused(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce version {ZSTD_SINCE} or later")


def _check_role(partition: Partition, acks: int, records: Any, now_ms: int) -> None:
    from semel.broker.replication.answers import check_may_write

    check_may_write(partition, acks, records, now_ms)


def _append(
    broker: BrokerServer,
    request: ProduceRequest,
    call: Call,
    partition: Partition,
    records: Any,
    now_ms: int,
    batch: Batch | None,
    admitted: dict[Partition, Verification] | None,
) -> Any:
    """Append one batch. `batch`: the checked batch, if the records were checked already."""
    if partition.topic.internal:
        return _append_for_coordinator(broker, partition, records, now_ms)
    guard = None
    if records[ATTRIBUTES_AT] & TRANSACTIONAL:
        if admitted is None:
            guard = verification_guard(broker, request, call, partition, records, now_ms)
        else:
            asked = admitted.get(partition)
            if asked is None:
                raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition} is new since the coordinator was asked")
            guard = asked.check()
    appended = partition.log.append(records, now_ms, guard=guard, batch=batch)
    metrics = broker.metrics
    metrics.messages_in += appended.last_offset - appended.base_offset + 1
    metrics.bytes_in += len(records)
    if partition.watchers:
        partition.wake_watchers()
    return appended


def _append_for_coordinator(broker: BrokerServer, partition: Partition, records: Any, now_ms: int) -> Any:
    """Append records that a tool writes to repair an internal topic: only those that the coordinator can read."""
    shell = broker.groups if partition.topic.name == CONSUMER_OFFSETS else broker.transactions
    host: CoordinatorHost = shell.host
    host.ready(partition.index)
    batch = Batch.parse(records)
    check(batch)
    understood = host.readable(partition.index, batch)
    appended = partition.log.append(records, now_ms)
    if not appended.duplicate:
        host.take_in(partition.index, understood)
    partition.wake_watchers()
    return appended
