"""Drives the transaction coordinator in the real host, over a log in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from semel.broker.coordinators.host import CoordinatorHost
from semel.errors import ErrorCode
from semel.machines.contract import Decision, SendMarkers, StateRecord
from semel.machines.transactions.coordinator import TransactionCoordinator, TransactionSettings
from semel.machines.transactions.metadata import TransactionMetadata
from semel.machines.transactions.records import record_of
from semel.machines.transactions.states import TransactionState
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.machines.fake_broker import FakeBroker

T0 = TopicPartition("ledger", 0)
T1 = TopicPartition("ledger", 1)
OTHER = TopicPartition("audit", 0)


class KeptMarkers:
    """Performs `SendMarkers` by keeping them, until the test writes them."""

    def __init__(self) -> None:
        self.waiting: list[SendMarkers] = []

    def perform(self, effect: SendMarkers) -> None:
        self.waiting.append(effect)

    def is_awaited(self, _: SendMarkers) -> bool:
        return False


class TransactionDriver:
    """Sends requests to a coordinator in the broker's own host, and decides when markers are written."""

    def __init__(self, settings: TransactionSettings | None = None, now_ms: int = 1_000_000) -> None:
        self.settings = settings or TransactionSettings()
        self.broker = FakeBroker(now_ms)
        self.written: list[tuple[SendMarkers, TopicPartition]] = []
        self.producer_ids = iter(range(1000, 1_000_000))
        self.start()

    def start(self) -> None:
        """Begin, or begin again after a crash: everything is rebuilt from the log."""
        self.coordinator = TransactionCoordinator(self.settings)
        self.markers = KeptMarkers()
        self.broker.loop.timers.clear()
        self.broker.leader_epoch += 1
        self.host = CoordinatorHost(
            self.broker.as_broker(), "__transaction_state", self.coordinator, {SendMarkers: self.markers}
        )
        for partition in range(self.settings.transaction_state_log_num_partitions):
            self.host.ready(partition)

    @property
    def now_ms(self) -> int:
        return self.broker.clock_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.broker.clock_ms = now_ms

    @property
    def log(self) -> list[StateRecord]:
        return cast(list[StateRecord], self.broker.log)

    @property
    def waiting(self) -> list[SendMarkers]:
        """The markers that the coordinator asked for and the test has not written."""
        return self.markers.waiting

    @waiting.setter
    def waiting(self, waiting: list[SendMarkers]) -> None:
        self.markers.waiting = waiting

    @property
    def append_fails(self) -> bool:
        return self.broker.append_fails

    @append_fails.setter
    def append_fails(self, fails: bool) -> None:
        self.broker.append_fails = fails

    def new_producer_id(self) -> int:
        return next(self.producer_ids)

    def perform(self, decision: Decision[object]) -> object:
        """Have the host write a decision and carry it out."""
        return self.host.settle(decision)

    def init(
        self,
        transactional_id: str | None = "payments",
        *,
        version: int = 5,
        timeout_ms: int = 60_000,
        identity: ProducerIdentity | None = None,
        two_phase: bool = False,
        keep: bool = False,
    ) -> InitProducerIdResponse:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=identity.producer_id if identity else -1,
            producer_epoch=identity.producer_epoch if identity else -1,
            enable2_pc=two_phase,
            keep_prepared_txn=keep,
        )
        reply = self.perform(self.coordinator.init_producer_id(request, version, self.now_ms, self.new_producer_id))
        assert isinstance(reply, InitProducerIdResponse)
        return reply

    def producer(self, transactional_id: str = "payments", *, timeout_ms: int = 60_000) -> ProducerIdentity:
        """An identity, whatever has to be settled first."""
        for _ in range(5):
            reply = self.init(transactional_id, timeout_ms=timeout_ms)
            if reply.error_code == ErrorCode.NONE:
                return ProducerIdentity(reply.producer_id, reply.producer_epoch)
            self.write_markers()
        raise AssertionError(f"no identity: {ErrorCode(reply.error_code).name}")

    def add(
        self,
        producer: ProducerIdentity,
        *partitions: TopicPartition,
        transactional_id: str = "payments",
        version: int = 3,
    ) -> ErrorCode:
        """A V1 client adds partitions."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=topics(partitions or (T0,)),
        )
        reply = self.perform(self.coordinator.add_partitions_to_txn(request, version, self.now_ms))
        assert isinstance(reply, AddPartitionsToTxnResponse)
        codes = {
            partition.partition_error_code
            for topic in reply.results_by_topic_v3_and_below
            for partition in topic.results_by_partition
        }
        assert len(codes) == 1
        return ErrorCode(codes.pop())

    def add_offsets(self, producer: ProducerIdentity, group_id: str = "group", *, version: int = 3) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id="payments",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id=group_id,
        )
        decision = self.coordinator.add_offsets_to_txn(request, version, self.now_ms, lambda _: 7)
        return ErrorCode(self.perform(decision).error_code)  # type: ignore[attr-defined]

    def produce(
        self, producer: ProducerIdentity, *partitions: TopicPartition, transactional_id: str = "payments"
    ) -> ErrorCode:
        """A V2 client's produce adds its partitions."""
        decision = self.coordinator.add_implicitly(
            transactional_id, producer.producer_id, producer.producer_epoch, partitions or (T0,), self.now_ms
        )
        reply = self.perform(decision)
        assert isinstance(reply, ErrorCode)
        return reply

    def end_decision(
        self, producer: ProducerIdentity, commit: bool, version: int = 5, transactional_id: str = "payments"
    ) -> Decision[EndTxnResponse]:
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=commit,
        )
        return self.coordinator.end_txn(request, version, self.now_ms, self.new_producer_id)

    def end(
        self, producer: ProducerIdentity, commit: bool, version: int = 5, transactional_id: str = "payments"
    ) -> EndTxnResponse:
        reply = self.perform(self.end_decision(producer, commit, version, transactional_id))
        assert isinstance(reply, EndTxnResponse)
        return reply

    def commit(self, producer: ProducerIdentity, version: int = 5) -> ErrorCode:
        return ErrorCode(self.end(producer, True, version).error_code)

    def abort(self, producer: ProducerIdentity, version: int = 5) -> ErrorCode:
        return ErrorCode(self.end(producer, False, version).error_code)

    def commit_v2(self, producer: ProducerIdentity) -> ProducerIdentity:
        """Commit, write the markers, and go on with the identity in the answer."""
        reply = self.end(producer, True)
        assert reply.error_code == ErrorCode.NONE, ErrorCode(reply.error_code).name
        self.write_markers()
        return ProducerIdentity(reply.producer_id, reply.producer_epoch)

    def write_markers(self) -> None:
        """Every marker that waits reaches its partition."""
        while self.waiting:
            sent = self.waiting.pop(0)
            self.written.extend((sent, partition) for partition in sent.partitions)
            self.perform(self.coordinator.markers_written(sent, self.now_ms))

    def tick(self, advance_ms: int = 0) -> list[Decision[None]]:
        """Let time pass. Returns what the coordinator decided when the host's timer woke it."""
        self.now_ms += advance_ms
        decided: list[Decision[None]] = []

        def tick(now_ms: int) -> list[Decision[None]]:
            decisions = TransactionCoordinator.tick(self.coordinator, now_ms)
            decided.extend(decisions)
            return decisions

        self.coordinator.tick = tick  # type: ignore[method-assign]
        self.broker.loop.run_due()
        del self.coordinator.tick
        return decided

    def describe(self, transactional_id: str = "payments") -> DescribeTransactionsResponse.TransactionState:
        request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        reply = self.coordinator.describe_transactions(request).reply
        assert reply is not None
        return reply.transaction_states[0]

    def state(self, transactional_id: str = "payments") -> str:
        return self.describe(transactional_id).transaction_state

    def metadata(self, transactional_id: str = "payments") -> TransactionMetadata:
        partition = self.coordinator.partition_for(transactional_id)
        return self.coordinator._shards[partition].entries[transactional_id]

    def known(self) -> dict[str, TransactionMetadata]:
        return {name: each for shard in self.coordinator._shards.values() for name, each in shard.entries.items()}

    def place(self, metadata: TransactionMetadata) -> None:
        """Put an id into a given condition, through the log as always."""
        partition = self.coordinator.partition_for(metadata.transactional_id)
        self.perform(Decision(None, (record_of(metadata, partition),)))


def metadata_in(
    state: TransactionState, *, epoch: int = 5, version: int = 2, now_ms: int = 1_000_000
) -> TransactionMetadata:
    open_partitions = frozenset((T0, T1)) if state in OPEN_STATES else frozenset()
    return TransactionMetadata(
        "payments",
        producer_id=77,
        producer_epoch=epoch,
        timeout_ms=60_000,
        state=state,
        last_update_ms=now_ms,
        start_ms=-1 if state is TransactionState.EMPTY else now_ms,
        partitions=open_partitions,
        client_transaction_version=version,
        previous_producer_id=77,
    )


OPEN_STATES = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


def topics(partitions: Iterable[TopicPartition]) -> list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]:
    by_name: dict[str, list[int]] = {}
    for partition in partitions:
        by_name.setdefault(partition.topic, []).append(partition.partition)
    return [
        AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=numbers)
        for name, numbers in by_name.items()
    ]
