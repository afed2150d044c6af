"""The driver's transaction, message by message and without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from semel.errors import Disconnected, ErrorCode, Fatal, KafkaError, error_for
from semel.machines.pipeline.batch_marker import BatchMarker
from semel.machines.pipeline.driver_transaction import CommitUnknown, DriverTransaction, is_worth_another_try
from semel.machines.transactions.requests import Send
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.wire.messages.offsets import OffsetFetchResponse
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

SOURCE = TopicPartition("payments", 0)
MARKER = BatchMarker("query", 4, "aa")


def begun(version: int = 2) -> DriverTransaction:
    transaction = DriverTransaction("pipeline", "pipeline", timeout_ms=60_000)
    send = transaction.begin(1_000.0, version)
    assert send is not None
    assert isinstance(send.message, InitProducerIdRequest)
    transaction.on_begun(InitProducerIdResponse(producer_id=7, producer_epoch=3))
    return transaction


def message_of(send: Send | None, kind: type) -> Any:
    assert send is not None
    assert isinstance(send.message, kind)
    return send.message


def test_a_transaction_begins_with_a_new_epoch_for_its_id_and_timeout() -> None:
    transaction = DriverTransaction("pipeline", "group", timeout_ms=60_000)
    send = transaction.begin(0.0, 2)
    request = message_of(send, InitProducerIdRequest)
    assert send is not None
    assert (send.coordinator, send.key) == ("transaction", "pipeline")
    assert (request.transactional_id, request.transaction_timeout_ms, request.producer_id) == ("pipeline", 60_000, -1)
    transaction.on_begun(InitProducerIdResponse(producer_id=7, producer_epoch=3))
    assert transaction.identity == ProducerIdentity(7, 3)


def test_a_refused_begin_names_the_id_and_the_timeout() -> None:
    transaction = DriverTransaction("pipeline", "pipeline", timeout_ms=60_000)
    transaction.begin(0.0, 2)
    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
    with pytest.raises(KafkaError, match=r"InitProducerId of 'pipeline' \(transaction.timeout.ms=60000\)"):
        transaction.on_begun(InitProducerIdResponse(error_code=code))
    assert transaction.identity is None


def test_under_v2_the_answer_to_end_txn_is_the_next_identity_and_saves_a_request() -> None:
    transaction = begun()
    request = message_of(transaction.end(commit=True), EndTxnRequest)
    assert (request.producer_id, request.producer_epoch, request.committed) == (7, 3, True)
    transaction.on_ended(EndTxnResponse(producer_id=7, producer_epoch=4), commit=True)
    assert transaction.begin(2_000.0, 2) is None
    assert transaction.identity == ProducerIdentity(7, 4)


def test_under_v1_each_transaction_asks_for_an_epoch_and_adds_partitions_and_group_first() -> None:
    transaction = begun(version=1)
    assert not transaction.implicit_add
    added = message_of(transaction.add_partition("ledger", 2), AddPartitionsToTxnRequest)
    assert [(topic.name, topic.partitions) for topic in added.v3_and_below_topics] == [("ledger", [2])]
    assert message_of(transaction.add_group(), AddOffsetsToTxnRequest).group_id == "pipeline"
    end = transaction.end(commit=True)
    assert end.newest == 4, "from version 5 on, EndTxn is protocol V2"
    transaction.on_ended(EndTxnResponse(producer_id=7, producer_epoch=4), commit=True)
    assert transaction.begin(2_000.0, 1) is not None


def test_under_v2_no_group_is_added() -> None:
    assert begun().add_group() is None


def test_offsets_are_committed_with_the_marker_as_their_metadata() -> None:
    request = message_of(begun().commit_offsets({SOURCE: 42}, MARKER), TxnOffsetCommitRequest)
    row = request.topics[0].partitions[0]
    assert (request.topics[0].name, row.partition_index, row.committed_offset) == ("payments", 0, 42)
    assert BatchMarker.from_metadata(row.committed_metadata) == MARKER


def progress_response(*rows: tuple[int, int, str], error: int = 0) -> OffsetFetchResponse:
    partition = OffsetFetchResponse.OffsetFetchResponsePartitions
    return OffsetFetchResponse(
        groups=[
            OffsetFetchResponse.OffsetFetchResponseGroup(
                error_code=error,
                topics=[
                    OffsetFetchResponse.OffsetFetchResponseTopics(
                        name="payments",
                        partitions=[
                            partition(partition_index=number, committed_offset=offset, metadata=metadata)
                            for number, offset, metadata in rows
                        ],
                    )
                ],
            )
        ]
    )


def test_progress_is_the_committed_offsets_and_the_newest_marker() -> None:
    older, newer = BatchMarker("query", 3, "aa"), BatchMarker("query", 4, "bb")
    response = progress_response((0, 10, newer.to_metadata()), (1, 5, older.to_metadata()), (2, -1, ""))
    progress = begun().on_progress(response)
    assert progress.offsets == {SOURCE: 10, TopicPartition("payments", 1): 5}
    assert progress.marker == newer


def test_an_error_in_any_answer_is_raised_and_says_what_was_asked() -> None:
    transaction = begun(version=1)
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(KafkaError, match="reading the progress of group 'pipeline'"):
        transaction.on_progress(progress_response(error=code))
    with pytest.raises(KafkaError, match="adding group 'pipeline'"):
        transaction.on_group_added(AddOffsetsToTxnResponse(error_code=code))
    offsets = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(partition_index=0, error_code=code)
    topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name="payments", partitions=[offsets])
    with pytest.raises(KafkaError, match="committing offsets of payments-0"):
        transaction.on_offsets_committed(TxnOffsetCommitResponse(topics=[topic]))
    row = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(partition_index=2, partition_error_code=code)
    result = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name="ledger", results_by_partition=[row])
    with pytest.raises(KafkaError, match="adding ledger-2 to 'pipeline'"):
        transaction.on_partition_added(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[result]))


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ],
)
def test_an_answer_to_end_txn_that_leaves_the_outcome_open_says_so_and_drops_the_identity(code: ErrorCode) -> None:
    transaction = begun()
    transaction.end(commit=True)
    with pytest.raises(CommitUnknown, match=r"transaction.timeout.ms=60000") as raised:
        transaction.on_ended(EndTxnResponse(error_code=code, producer_id=7, producer_epoch=9), commit=True)
    assert raised.value.code is code
    assert transaction.identity is None
    assert transaction.begin(2_000.0, 2) is not None, "only a new epoch settles what was left open"


def test_without_an_answer_to_end_txn_the_outcome_is_unknown_too() -> None:
    transaction = begun()
    transaction.end(commit=False)
    error = transaction.end_without_answer(Disconnected(ErrorCode.NETWORK_EXCEPTION, "gone"), commit=False)
    assert "no answer to the abort of 'pipeline'" in str(error)
    assert transaction.identity is None


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_newer_epoch_within_the_timeout_is_another_drivers(code: ErrorCode) -> None:
    transaction = begun()
    fenced = SimpleNamespace(code=code)
    assert transaction.is_fenced_by_another(fenced, now_ms=60_999.0)  # type: ignore[arg-type]
    assert not transaction.is_fenced_by_another(fenced, now_ms=61_000.0), "it timed out"  # type: ignore[arg-type]
    assert not transaction.is_fenced_by_another(ValueError("a bad row"), now_ms=2_000.0)


def test_a_step_before_begin_is_a_mistake_of_the_caller() -> None:
    transaction = DriverTransaction("pipeline", "pipeline", timeout_ms=60_000)
    with pytest.raises(RuntimeError, match="comes first"):
        transaction.end(commit=True)
    transaction = begun()
    transaction.forget_identity()
    with pytest.raises(RuntimeError, match="comes first"):
        transaction.commit_offsets({SOURCE: 1}, MARKER)


def test_an_error_that_stays_the_same_is_not_worth_another_try() -> None:
    assert not is_worth_another_try(error_for(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no"))
    assert not is_worth_another_try(Fatal(ErrorCode.UNSUPPORTED_VERSION, "no"))
    assert is_worth_another_try(error_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved"))
    assert is_worth_another_try(ValueError("a task failed"))
