"""A transactional batch needs the coordinator's word before it is written: the question, and what its answer means.

Under protocol V1 the coordinator is asked whether the partition was added to the transaction. Under V2 (Produce 12 and
later) it adds the partition. Only the first batch of a transaction in a partition asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.broker.topics.partition import Partition
from semel.errors import ErrorCode, Refused
from semel.machines.values import TopicPartition
from semel.records.batch import Batch
from semel.wire.messages.produce import ProduceRequest

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.replication.admission import Asked, Verification
    from semel.broker.server import BrokerServer
    from semel.broker.topics.topic import Topic

#: From this version on a producer knows TRANSACTION_ABORTABLE.
ABORTABLE_SINCE = 11
#: From this version on a produce adds its partition to the transaction by itself (KIP-890).
IMPLICIT_ADD_SINCE = 12

#: Errors of the coordinator that an old producer would not retry. NOT_ENOUGH_REPLICAS it retries, without new metadata.
_RETRY_AS_NOT_ENOUGH_REPLICAS = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


def verification_guard(
    broker: BrokerServer, request: ProduceRequest, call: Call, partition: Partition, records: Any, now_ms: int
) -> Any:
    """The guard to append with, after the coordinator agreed that the partition is in the producer's transaction."""
    if request.transactional_id is None:
        raise Refused(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "the batch is transactional, but the request has no transactional id",
        )
    batch = Batch.parse(records)
    implicit_add = call.version >= IMPLICIT_ADD_SINCE
    producer = batch.producer_id, batch.producer_epoch
    verifications = partition.log.producers.verifications
    is_first = not verifications.is_of(*producer)
    guard = partition.log.start_verification(
        *producer, batch.base_sequence, now_ms=now_ms, supports_epoch_bump=implicit_add
    )
    if not must_ask(broker, guard, implicit_add):
        return guard
    code = broker.transactions.admit(
        request.transactional_id,
        *producer,
        partition.topic.name,
        partition.index,
        verify_only=guard is None or not implicit_add,
        knows_abortable=call.version >= ABORTABLE_SINCE,
    )
    if is_first:
        verifications.answered(*producer, code)
    _check_agreed(code, implicit_add)
    return guard


def must_ask(broker: BrokerServer, guard: Any, implicit_add: bool) -> bool:
    """Whether the coordinator must be asked. Without a guard the transaction is open here already."""
    if guard is None:
        return broker.transactions.asks_every_time
    return implicit_add or bool(broker.settings.transaction_partition_verification_enable)


def _check_agreed(code: ErrorCode, implicit_add: bool) -> None:
    """`Refused`, unless the coordinator agreed."""
    if code == ErrorCode.NONE:
        return
    # A producer of protocol V2 often gets CONCURRENT_TRANSACTIONS, and retries it.
    if code in _RETRY_AS_NOT_ENOUGH_REPLICAS or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not implicit_add):
        raise Refused(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the coordinator could not say whether the partition is in the transaction: {code.name}",
        )
    raise Refused(code, f"the coordinator does not take the partition into the transaction: {code.meaning}")


#: What the coordinator is to be asked: for each question the partitions, with the id() of their parts of the request.
Questions = dict["Asked", dict[TopicPartition, tuple[int, "Verification"]]]


def begin_admission(
    broker: BrokerServer,
    request: ProduceRequest,
    call: Call,
    parts: list[tuple[Topic, ProduceRequest.PartitionProduceData]],
    refused: dict[int, Refused],
) -> tuple[dict[Partition, Verification], Questions]:
    """In a cluster: the guards to append these transactional parts of a request with, and what the coordinator,
    wherever it is, must be asked before (C3). What must not be written is added to `refused`, by the id() of its part.
    """
    from semel.broker.replication.admission import Asked, Verification

    implicit_add = call.version >= IMPLICIT_ADD_SINCE
    admitted: dict[Partition, Verification] = {}
    questions: Questions = {}
    for topic, part in parts:
        try:
            partition = topic.partition(part.index)
            batch = Batch.parse(part.records or b"")
            producer = batch.producer_id, batch.producer_epoch
            one = Verification(partition, producer, batch.base_sequence, supports_epoch_bump=implicit_add)
            one.begin(broker.now_ms())
        except Refused as error:
            refused[id(part)] = error
            continue
        admitted[partition] = one
        if must_ask(broker, one.guard, implicit_add):
            question = Asked(str(request.transactional_id), *producer, one.guard is None or not implicit_add)
            questions.setdefault(question, {})[TopicPartition(topic.name, part.index)] = id(part), one
    return admitted, questions


async def ask_coordinators(
    broker: BrokerServer, call: Call, questions: Questions, refused: dict[int, Refused]
) -> None:
    """Ask, and add to `refused` what a coordinator does not agree to."""
    from semel.broker.coordinators.transactions import for_writer

    assert broker.cluster is not None
    implicit_add = call.version >= IMPLICIT_ADD_SINCE
    for question, targets in questions.items():
        codes = await broker.cluster.admissions.ask(question, {target: one for target, (_, one) in targets.items()})
        for target, (part_id, one) in targets.items():
            one.answered(codes[target])
            try:
                _check_agreed(for_writer(codes[target], call.version >= ABORTABLE_SINCE), implicit_add)
            except Refused as error:
                refused[part_id] = error
