"""The transaction coordinator: who owns a transactional id, and how its transactions end.

Guarantees:

- A transaction either commits or aborts, and all its partitions get the same marker.
- An older owner of a transactional id can neither add to, commit nor abort a transaction of a newer owner.
- What was answered survives a crash. State changes only by `replay` of a written record, so recovery is the same replay
  over the stored records.
- Between a decision and its replay the id is *pending*: every other request for it gets CONCURRENT_TRANSACTIONS. A
  failed write leaves the state as it was.

It fulfils `machines.contract.Coordinator`. Its one effect is `SendMarkers`: the host hands the same object back to
`markers_written`, at once or partition by partition. Both transaction protocols are served: V1, where the epoch stays,
and V2 (KIP-890), where every EndTxn bumps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from semel.errors import ErrorCode, InvariantViolation, Refused
from semel.machines.contract import Decision, SendMarkers, StateRecord, Steps, run_all
from semel.machines.internal_topics import after_failed_append, partition_for
from semel.machines.transactions.metadata import (
    EPOCH_BUMPING,
    NO_TIMEOUT_MS,
    NewProducerId,
    TransactionMetadata,
    after_completion,
    after_end,
    after_fence,
    after_init,
    after_keep,
    after_prepare,
    expected_identity,
    may_renew,
    new_metadata,
    next_state,
    with_partitions,
    writer_of,
)
from semel.machines.transactions.records import metadata_of, record_of, tombstone_of, transactional_id_of
from semel.machines.transactions.replies import (
    description,
    for_version,
    init_error,
    list_reply,
    partitions_of,
    refusal_of,
    topic_results,
)
from semel.machines.transactions.shard import Pending, Shard
from semel.machines.transactions.states import OPEN, PREPARED, TRANSACTION_TABLE, TransactionEvent, TransactionState
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

GROUP_METADATA_TOPIC = "__consumer_offsets"
#: How long after a failed write the coordinator retries its own decisions (timeouts, completions).
RETRY_MS = 500
#: The most ids that one decision expires.
MOST_EXPIRED_AT_ONCE = 1_000

#: Clients know PRODUCER_FENCED from these versions on. Older ones get INVALID_PRODUCER_EPOCH.
FENCED_SINCE_INIT = 4
FENCED_SINCE = 2
#: From this version on brokers send AddPartitionsToTxn to each other, for many transactions at once.
BATCHED_SINCE = 4
#: From this version on EndTxn bumps the epoch and returns the next identity.
BUMPING_SINCE = 5

Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The broker settings that the coordinator obeys, under Kafka's names."""

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_state_log_num_partitions: int = 50
    transaction_two_phase_commit_enable: bool = False
    #: The finalized feature level. The coordinator uses it when it aborts for an absent owner.
    transaction_version: int = 2


class TransactionCoordinator:
    """One coordinator for all partitions of `__transaction_state` that this broker leads."""

    def __init__(self, settings: TransactionSettings) -> None:
        self.settings = settings
        self._shards: dict[int, Shard] = {}
        self._next_timeout_ms: int | None = None
        self._next_retry_ms: int | None = None
        self._next_expiration_ms: int | None = None

    def partition_for(self, transactional_id: str) -> int:
        return partition_for(transactional_id, self.settings.transaction_state_log_num_partitions)

    def set_partition_count(self, count: int) -> None:
        """How many partitions `__transaction_state` has, once the topic is there."""
        self.settings = replace(self.settings, transaction_state_log_num_partitions=count)

    # Loading and recovery

    def load(self, partition: int, coordinator_epoch: int) -> None:
        """Start to load a partition. Until `loaded`, its ids get COORDINATOR_LOAD_IN_PROGRESS."""
        self._shards[partition] = Shard(coordinator_epoch)

    def key_of(self, record: StateRecord) -> str:
        """The transactional id of a record that a client wrote; `Refused` if no client may write it."""
        transactional_id = transactional_id_of(record.key)
        if transactional_id is None:
            raise Refused(ErrorCode.INVALID_RECORD, "its key is of no known type")
        if record.value is not None and metadata_of(transactional_id, record.value).state in OPEN:
            # The coordinator would end a transaction that nobody asked it to end.
            raise Refused(ErrorCode.INVALID_RECORD, "a transaction is begun and ended by requests only")
        return transactional_id

    def replay(self, record: StateRecord) -> None:
        """Take in a written record. This is the only way that an entry changes."""
        transactional_id = transactional_id_of(record.key)
        shard = self._shards.get(record.partition)
        if transactional_id is None or shard is None:
            return
        metadata = shard.replay(transactional_id, record)
        if metadata is not None and metadata.state is TransactionState.ONGOING:
            self._expect_timeout(metadata)

    def loaded(self, partition: int, now_ms: int) -> list[Decision[None]]:
        """Serve the partition. Returns decisions that finish the transactions whose outcome is decided."""
        shard = self._shards[partition]
        shard.loading = False
        if self._next_expiration_ms is None:
            interval_ms = self.settings.transaction_remove_expired_transaction_cleanup_interval_ms
            self._next_expiration_ms = now_ms + interval_ms
        decisions: list[Decision[None]] = []
        for transactional_id, completion in sorted(shard.completions.items()):
            if completion.unmarked:
                decisions.append(Decision(None, effects=(completion.sent,)))
            else:
                decisions.append(self._decide(shard, None, after_completion(shard.entries[transactional_id], now_ms)))
        return decisions

    def unload(self, partition: int) -> list[Decision[None]]:
        """Forget a partition. No request is ever parked in it."""
        self._shards.pop(partition, None)
        return []

    def append_failed(self, decision: Decision[Response], code: ErrorCode) -> Response | None:
        """Drop a decision whose records could not be written. Returns the reply to send instead.

        What the coordinator does by itself (timeouts, completions) is tried again by `tick`.
        """
        failed: set[str] = set()
        for record in decision.records:
            transactional_id = transactional_id_of(record.key)
            shard = self._shards.get(record.partition)
            if transactional_id is None or shard is None:
                continue
            pending = shard.pending.pop(transactional_id, None)
            if pending is None:
                continue
            failed.add(transactional_id)
            if transactional_id in shard.ongoing or transactional_id in shard.completions:
                # It may be an abort by timeout or a completion, which no client will ask for again.
                self._next_retry_ms = pending.decided_at_ms + RETRY_MS
        return refusal_of(decision.reply, after_failed_append(code), failed)

    def refused_reply(self, reply: Response, code: ErrorCode) -> Response:
        """The reply to send instead: what it tells is written, but not replicated. Nothing changes here."""
        ids: set[str] = set()
        if isinstance(reply, AddPartitionsToTxnResponse):
            ids = {result.transactional_id for result in reply.results_by_transaction}
        return refusal_of(reply, after_failed_append(code), ids)

    # Requests

    def init_producer_id(
        self, request: InitProducerIdRequest, version: int, now_ms: int, new_producer_id: NewProducerId
    ) -> Decision[InitProducerIdResponse]:
        """Give a producer its identity. With a transactional id, fence the last owner and abort what it left open."""
        try:
            expected = expected_identity(request)
            if request.transactional_id is None:
                return Decision(InitProducerIdResponse(producer_id=new_producer_id(), producer_epoch=0))
            return self._init_transactional(request, request.transactional_id, expected, now_ms, new_producer_id)
        except Refused as refusal:
            code = for_version(refusal.code, version, FENCED_SINCE_INIT)
            return Decision(init_error(code))

    def _init_transactional(
        self,
        request: InitProducerIdRequest,
        transactional_id: str,
        expected: ProducerIdentity | None,
        now_ms: int,
        new_producer_id: NewProducerId,
    ) -> Decision[InitProducerIdResponse]:
        timeout_ms = self._timeout_of(request, transactional_id)
        shard = self._shard_of(transactional_id)
        shard.check_not_pending(transactional_id)
        old = shard.entries.get(transactional_id)
        if old is None:
            old = new_metadata(transactional_id, new_producer_id(), timeout_ms, now_ms)
        if expected is not None and not may_renew(old, expected):
            raise Refused(ErrorCode.PRODUCER_FENCED)
        state = next_state(old, TransactionEvent.KEEP if request.keep_prepared_txn else TransactionEvent.INIT)
        if state is TransactionState.PREPARE_EPOCH_FENCE:
            new = after_fence(old, self.settings.transaction_version, now_ms, new_producer_id)
            # The client retries, and gets its identity once the abort is complete.
            return self._decide(shard, init_error(ErrorCode.CONCURRENT_TRANSACTIONS), new)
        if state is TransactionState.ONGOING:
            new = after_keep(old, timeout_ms, now_ms, new_producer_id)
            return self._decide(
                shard,
                InitProducerIdResponse(
                    producer_id=new.next_producer_id,
                    producer_epoch=new.next_producer_epoch,
                    ongoing_txn_producer_id=new.producer_id,
                    ongoing_txn_producer_epoch=new.producer_epoch,
                ),
                new,
            )
        new = after_init(old, expected, timeout_ms, now_ms, new_producer_id)
        reply = InitProducerIdResponse(producer_id=new.producer_id, producer_epoch=new.producer_epoch)
        return self._decide(shard, reply, new)

    def _timeout_of(self, request: InitProducerIdRequest, transactional_id: str) -> int:
        if not transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
        allowed = self.settings.transaction_two_phase_commit_enable
        if request.enable2_pc and not allowed:
            raise Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "two-phase commit is not enabled")
        if request.keep_prepared_txn and not allowed:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, "two-phase commit is not enabled")
        if request.enable2_pc:
            return NO_TIMEOUT_MS
        if not 0 < request.transaction_timeout_ms <= self.settings.transaction_max_timeout_ms:
            raise Refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        return request.transaction_timeout_ms

    def add_partitions_to_txn(
        self, request: AddPartitionsToTxnRequest, version: int, now_ms: int
    ) -> Decision[AddPartitionsToTxnResponse]:
        """V1 clients add their partitions; brokers (v4+) add or verify for many transactions at once."""
        if version < BATCHED_SINCE:
            partitions = partitions_of(request.v3_and_below_topics)
            identity = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
            code, records = self._add(request.v3_and_below_transactional_id, identity, partitions, 0, now_ms)
            code = for_version(code, version, FENCED_SINCE)
            results = topic_results(dict.fromkeys(partitions, code))
            return Decision(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results), records)
        response = AddPartitionsToTxnResponse()
        all_records: tuple[StateRecord, ...] = ()
        for transaction in request.transactions:
            transactional_id = transaction.transactional_id
            partitions = partitions_of(transaction.topics)
            if transaction.verify_only:
                codes = self.verify(transactional_id, transaction.producer_id, transaction.producer_epoch, partitions)
            else:
                identity = ProducerIdentity(transaction.producer_id, transaction.producer_epoch)
                code, records = self._add(transactional_id, identity, partitions, EPOCH_BUMPING, now_ms)
                all_records += records
                codes = dict.fromkeys(partitions, code)
            response.results_by_transaction.append(
                AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    transactional_id=transactional_id, topic_results=topic_results(codes)
                )
            )
        return Decision(response, all_records)

    def add_offsets_to_txn(
        self,
        request: AddOffsetsToTxnRequest,
        version: int,
        now_ms: int,
        offsets_partition: Callable[[str], int],
    ) -> Decision[AddOffsetsToTxnResponse]:
        """A V1 client will commit a group's offsets: add the group's partition of `__consumer_offsets`."""
        partition = TopicPartition(GROUP_METADATA_TOPIC, offsets_partition(request.group_id))
        identity = ProducerIdentity(request.producer_id, request.producer_epoch)
        code, records = self._add(request.transactional_id, identity, frozenset((partition,)), 0, now_ms)
        code = for_version(code, version, FENCED_SINCE)
        return Decision(AddOffsetsToTxnResponse(error_code=code), records)

    def add_implicitly(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        now_ms: int,
    ) -> Decision[ErrorCode]:
        """Protocol V2: Produce v12+ and TxnOffsetCommit v5 add their partitions themselves.

        The reply is the code for that request. A produce reports PRODUCER_FENCED as INVALID_PRODUCER_EPOCH.
        """
        identity = ProducerIdentity(producer_id, producer_epoch)
        code, records = self._add(transactional_id, identity, frozenset(partitions), EPOCH_BUMPING, now_ms)
        return Decision(code, records)

    def verify(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether each partition is part of this producer's open transaction, as a code by partition.

        TRANSACTION_ABORTABLE means that it is not. Clients that do not know that code get INVALID_TXN_STATE instead.
        """
        partitions = tuple(partitions)
        try:
            if not transactional_id:
                raise Refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
            known = self._shard_of(transactional_id).entries.get(transactional_id)
            metadata = writer_of(known, ProducerIdentity(producer_id, producer_epoch))
            if metadata.state in PREPARED:
                raise Refused(ErrorCode.CONCURRENT_TRANSACTIONS)
        except Refused as refusal:
            return dict.fromkeys(partitions, refusal.code)
        return {
            partition: ErrorCode.NONE if partition in metadata.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in partitions
        }

    def _add(
        self,
        transactional_id: str | None,
        identity: ProducerIdentity,
        partitions: frozenset[TopicPartition],
        client_transaction_version: int,
        now_ms: int,
    ) -> tuple[ErrorCode, tuple[StateRecord, ...]]:
        try:
            if not transactional_id:
                raise Refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
            shard = self._shard_of(transactional_id)
            shard.check_not_pending(transactional_id)
            old = writer_of(shard.entries.get(transactional_id), identity)
            next_state(old, TransactionEvent.ADD)
        except Refused as refusal:
            return refusal.code, ()
        if old.state is TransactionState.ONGOING and partitions <= old.partitions:
            return ErrorCode.NONE, ()
        new = with_partitions(old, partitions, client_transaction_version, now_ms)
        return ErrorCode.NONE, self._decide(shard, None, new).records

    def end_txn(
        self, request: EndTxnRequest, version: int, now_ms: int, new_producer_id: NewProducerId
    ) -> Decision[EndTxnResponse]:
        """Commit or abort. The reply may be sent as soon as the outcome is durable; the markers follow."""
        try:
            if not request.transactional_id:
                raise Refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
            shard = self._shard_of(request.transactional_id)
            if version < BUMPING_SINCE:
                return self._end_v1(shard, request, now_ms, new_producer_id)
            shard.check_not_pending(request.transactional_id)
            old = shard.entries.get(request.transactional_id)
            identity = ProducerIdentity(request.producer_id, request.producer_epoch)
            new, next_identity = after_end(old, identity, request.committed, now_ms, new_producer_id)
            reply = EndTxnResponse(producer_id=next_identity.producer_id, producer_epoch=next_identity.producer_epoch)
            return Decision(reply) if new is None else self._decide(shard, reply, new)
        except Refused as refusal:
            return Decision(EndTxnResponse(error_code=for_version(refusal.code, version, FENCED_SINCE)))

    def _end_v1(
        self, shard: Shard, request: EndTxnRequest, now_ms: int, new_producer_id: NewProducerId
    ) -> Decision[EndTxnResponse]:
        identity = ProducerIdentity(request.producer_id, request.producer_epoch)
        old = writer_of(shard.entries.get(request.transactional_id), identity)
        shard.check_not_pending(request.transactional_id)
        event = TransactionEvent.COMMIT_V1 if request.committed else TransactionEvent.ABORT_V1
        cell = TRANSACTION_TABLE.step(old.state, event)
        if isinstance(cell, TransactionState):
            return self._decide(shard, EndTxnResponse(), after_prepare(old, cell, 0, now_ms, new_producer_id))
        return Decision(EndTxnResponse(error_code=cell))

    def awaits(self, sent: SendMarkers) -> bool:
        """Whether these markers are still to be written. Not after a reload, and not once another coordinates."""
        shard = self._shards.get(self.partition_for(sent.transactional_id))
        return shard is not None and not shard.loading and shard.completion_of(sent) is not None

    def epoch_of(self, transactional_id: str) -> int:
        """The coordinator epoch that this id is served under; -1 if it is not."""
        shard = self._shards.get(self.partition_for(transactional_id))
        return -1 if shard is None else shard.coordinator_epoch

    def markers_written(
        self, sent: SendMarkers, now_ms: int, partitions: Iterable[TopicPartition] | None = None
    ) -> Decision[None]:
        """These partitions (or all of `sent`) have their marker, or were deleted.

        The last one completes the transaction. A report about an older transaction, or from before a reload, changes
        nothing.
        """
        shard = self._shards.get(self.partition_for(sent.transactional_id))
        completion = None if shard is None or shard.loading else shard.completion_of(sent)
        if shard is None or completion is None:
            return Decision(None)
        completion.unmarked.difference_update(sent.partitions if partitions is None else partitions)
        if completion.unmarked or sent.transactional_id in shard.pending:
            return Decision(None)
        return self._decide(shard, None, after_completion(shard.entries[sent.transactional_id], now_ms))

    # Time

    def tick(self, now_ms: int) -> list[Decision[None]]:
        """Abort transactions that timed out, retry completions whose write failed, expire unused ids."""
        decisions: list[Decision[None]] = []
        retry = self._next_retry_ms is not None and self._next_retry_ms <= now_ms
        if retry:
            self._next_retry_ms = None
            decisions.extend(self._unwritten_completions(now_ms))
        if retry or (self._next_timeout_ms is not None and self._next_timeout_ms < now_ms):
            self._next_timeout_ms = None
            decisions.extend(self._timeouts(now_ms))
        if self._next_expiration_ms is not None and self._next_expiration_ms <= now_ms:
            interval_ms = self.settings.transaction_remove_expired_transaction_cleanup_interval_ms
            self._next_expiration_ms = now_ms + interval_ms
            decisions.extend(self._expirations(now_ms))
        return decisions

    def next_wake_ms(self) -> int | None:
        """When `tick` may have something to do next."""
        wake_ms = self._next_expiration_ms
        if self._next_timeout_ms is not None and (wake_ms is None or self._next_timeout_ms < wake_ms):
            wake_ms = self._next_timeout_ms + 1
        if self._next_retry_ms is not None and (wake_ms is None or self._next_retry_ms < wake_ms):
            wake_ms = self._next_retry_ms
        return wake_ms

    def _expect_timeout(self, metadata: TransactionMetadata) -> None:
        deadline_ms = metadata.deadline_ms
        if deadline_ms is not None and (self._next_timeout_ms is None or deadline_ms < self._next_timeout_ms):
            self._next_timeout_ms = deadline_ms

    def _unwritten_completions(self, now_ms: int) -> Iterator[Decision[None]]:
        for shard in self._serving():
            for transactional_id, completion in list(shard.completions.items()):
                if not completion.unmarked and transactional_id not in shard.pending:
                    yield self._decide(shard, None, after_completion(shard.entries[transactional_id], now_ms))

    def _timeouts(self, now_ms: int) -> Iterator[Decision[None]]:
        for shard in self._serving():
            for transactional_id in sorted(shard.ongoing):
                if transactional_id in shard.pending:
                    continue  # Its replay, or the retry after a failed write, sets the next timeout.
                old = shard.entries[transactional_id]
                deadline_ms = old.deadline_ms
                if deadline_ms is not None and deadline_ms < now_ms:
                    next_state(old, TransactionEvent.TIME_OUT)
                    new = after_fence(old, self.settings.transaction_version, now_ms)
                    yield self._decide(shard, None, new)
                else:
                    self._expect_timeout(old)

    def _expirations(self, now_ms: int) -> Iterator[Decision[None]]:
        unused_since_ms = now_ms - self.settings.transactional_id_expiration_ms
        for partition, shard in self._shards.items():
            if shard.loading:
                continue
            expired = [
                transactional_id
                for transactional_id, metadata in shard.entries.items()
                if metadata.last_update_ms <= unused_since_ms
                and transactional_id not in shard.pending
                and TRANSACTION_TABLE.step(metadata.state, TransactionEvent.EXPIRE) is TransactionState.DEAD
            ]
            for start in range(0, len(expired), MOST_EXPIRED_AT_ONCE):
                tombstones = []
                for transactional_id in expired[start : start + MOST_EXPIRED_AT_ONCE]:
                    tombstones.append(tombstone_of(transactional_id, partition))
                    shard.pending[transactional_id] = Pending([(tombstones[-1], None)], now_ms)
                yield Decision(None, tuple(tombstones))

    # For administrators

    def open_by_producer(self) -> dict[int, TransactionMetadata]:
        """The open and the prepared transactions, by the producer id of their data."""
        return {metadata.producer_id: metadata for metadata in self.entries() if metadata.state in OPEN}

    def abort_for_administrator(self, transactional_id: str, now_ms: int) -> Decision[None]:
        """Abort an open transaction in all its partitions and fence its producer, so that it cannot commit the rest."""
        shard = self._shard_of(transactional_id)
        shard.check_not_pending(transactional_id)
        old = shard.entries[transactional_id]
        next_state(old, TransactionEvent.TIME_OUT)
        return self._decide(shard, None, after_fence(old, self.settings.transaction_version, now_ms))

    def describe_transactions(self, request: DescribeTransactionsRequest) -> Decision[DescribeTransactionsResponse]:
        """Describe each id. Of a prepared transaction, list the partitions that still lack their marker."""
        return Decision(
            DescribeTransactionsResponse(
                transaction_states=[self._description(each) for each in request.transactional_ids]
            )
        )

    def _description(self, transactional_id: str) -> DescribeTransactionsResponse.TransactionState:
        try:
            if not transactional_id:
                raise Refused(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
            shard = self._shard_of(transactional_id)
            metadata = shard.entries.get(transactional_id)
            if metadata is None:
                raise Refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        except Refused as refusal:
            return DescribeTransactionsResponse.TransactionState(
                error_code=refusal.code, transactional_id=transactional_id
            )
        completion = shard.completions.get(transactional_id)
        return description(metadata, metadata.partitions if completion is None else completion.unmarked)

    def list_transactions(self, request: ListTransactionsRequest, now_ms: int) -> Decision[ListTransactionsResponse]:
        """The ids that pass every filter. Unknown states in the filter are named in the reply."""
        return Decision(run_all(self.list_transactions_in_steps(request, now_ms)))

    def list_transactions_in_steps(
        self, request: ListTransactionsRequest, now_ms: int
    ) -> Steps[ListTransactionsResponse]:
        """`list_transactions` in steps."""
        if any(shard.loading for shard in self._shards.values()):
            return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        try:
            return (yield from list_reply(self.entries(), request, now_ms))
        except Refused as refusal:
            return ListTransactionsResponse(error_code=refusal.code)

    def is_completing(self, transactional_id: str) -> bool:
        """Whether a decided transaction of this id still waits for its markers or its last record."""
        shard = self._shards.get(partition_for(transactional_id, self.settings.transaction_state_log_num_partitions))
        return shard is not None and not shard.loading and transactional_id in shard.completions

    def entries(self) -> Iterator[TransactionMetadata]:
        """The metadata of all ids."""
        return (metadata for shard in self._shards.values() for metadata in shard.entries.values())

    # Shared steps

    def _serving(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if not shard.loading]

    def _shard_of(self, transactional_id: str) -> Shard:
        shard = self._shards.get(self.partition_for(transactional_id))
        if shard is None:
            raise Refused(ErrorCode.NOT_COORDINATOR)
        if shard.loading:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard

    def _decide(self, shard: Shard, reply: Response, new: TransactionMetadata) -> Decision[Response]:
        """Make `new` pending. Returns the decision with its records and markers."""
        transactional_id = new.transactional_id
        if transactional_id in shard.pending:
            raise InvariantViolation(f"{transactional_id!r} has two pending decisions")
        partition = self.partition_for(transactional_id)
        record = record_of(new, partition)
        records: tuple[StateRecord, ...] = (record,)
        steps: list[tuple[StateRecord, TransactionMetadata | None]] = [(record, new)]
        markers: SendMarkers | None = None
        if new.state in PREPARED:
            if new.partitions:
                markers = shard.markers_of(new)
            else:
                # The transaction has no partitions, so it needs no markers and is complete at once.
                done = after_completion(new, new.last_update_ms)
                steps.append((record_of(done, partition), done))
                records = (record, steps[1][0])
        shard.pending[transactional_id] = Pending(steps, new.last_update_ms, markers)
        return Decision(reply, records, () if markers is None else (markers,))
