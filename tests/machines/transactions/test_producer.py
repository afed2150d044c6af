"""The producer's half of the transaction conversation: every cell of its table, both protocols, every verdict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import (
    AbortTransaction,
    AuthorizationFailed,
    CommitFailed,
    ErrorCode,
    Fatal,
    InvalidRecord,
    KafkaError,
    Misuse,
    ProducerFenced,
    error_for,
)
from semel.machines.transactions.producer import (
    MAX_EPOCH,
    NO_IDENTITY,
    PRODUCER_VERDICTS,
    GroupMetadata,
    OffsetAndMetadata,
    ProducerEvent,
    ProducerState,
    ProducerVerdict,
    Send,
    TransactionManager,
)
from semel.machines.transactions.producer_states import PRODUCER_STEPS
from semel.machines.values import ProducerIdentity, TopicPartition
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

P0, P1 = TopicPartition("ledger", 0), TopicPartition("ledger", 1)
GROUP = GroupMetadata("readers", 3, "member-1")


def ask(manager: TransactionManager, now_ms: int = 0, *, batches_left: bool = False) -> Send:
    send = manager.poll(now_ms, batches_left=batches_left)
    assert send is not None
    return send


def answer(manager: TransactionManager, request: object, code: ErrorCode = ErrorCode.NONE, **fields: object) -> None:
    """Give the coordinator's answer to a request."""
    responses = {
        InitProducerIdRequest: InitProducerIdResponse,
        EndTxnRequest: EndTxnResponse,
        AddOffsetsToTxnRequest: AddOffsetsToTxnResponse,
    }
    if isinstance(request, AddPartitionsToTxnRequest):
        rows = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(partition_error_code=int(code))
        topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(results_by_partition=[rows])
        response: object = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])
    elif isinstance(request, TxnOffsetCommitRequest):
        row = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(error_code=int(code))
        response = TxnOffsetCommitResponse(
            topics=[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(partitions=[row])]
        )
    else:
        response = responses[type(request)](error_code=int(code), **fields)
    manager.on_response(request, response, now_ms=0, backoff_ms=100)


def ready(version: int = 2, producer_epoch: int = 0) -> TransactionManager:
    manager = TransactionManager("payments", version=version)
    manager.initialize()
    answer(manager, ask(manager).message, producer_id=7, producer_epoch=producer_epoch)
    assert manager.state is ProducerState.READY
    return manager


def test_an_identity_is_asked_for_once_and_kept() -> None:
    manager = TransactionManager("payments", 1_000)
    manager.initialize()
    send = ask(manager)
    assert send.message == InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=1_000)
    assert send.coordinator == "transaction"
    assert manager.poll(0, batches_left=False) is None, "one request at a time"
    answer(manager, send.message, producer_id=7, producer_epoch=4)
    assert manager.identity == ProducerIdentity(7, 4)


def test_under_v2_the_first_write_joins_the_transaction_and_the_commit_brings_the_next_epoch() -> None:
    manager = ready()
    manager.begin()
    manager.write(P0)
    assert manager.may_send_to(P0)
    assert manager.poll(0, batches_left=True) is None, "nothing is announced"
    manager.commit()
    assert manager.poll(0, batches_left=True) is None, "a transaction is not ended while its records are on their way"
    send = ask(manager)
    assert send.message == EndTxnRequest(transactional_id="payments", producer_id=7, producer_epoch=0, committed=True)
    assert send.newest == 5
    answer(manager, send.message, producer_id=7, producer_epoch=1)
    assert (manager.state, manager.identity) == (ProducerState.READY, ProducerIdentity(7, 1))


def test_under_v1_a_partition_is_announced_before_it_is_written_to_and_the_epoch_stays() -> None:
    manager = ready(version=1)
    manager.begin()
    manager.write(P0)
    assert not manager.may_send_to(P0)
    send = ask(manager, batches_left=True)
    assert isinstance(send.message, AddPartitionsToTxnRequest)
    assert send.newest == 3
    answer(manager, send.message)
    assert manager.may_send_to(P0)
    manager.commit()
    send = ask(manager)
    assert send.newest == 4, "EndTxn 5 would bump an epoch that V1 does not expect to change"
    answer(manager, send.message)
    assert (manager.state, manager.identity) == (ProducerState.READY, ProducerIdentity(7, 0))


def test_under_v1_a_group_is_announced_before_its_offsets() -> None:
    manager = ready(version=1)
    manager.begin()
    manager.add_offsets({P0: OffsetAndMetadata(5)}, GROUP)
    first = ask(manager)
    assert isinstance(first.message, AddOffsetsToTxnRequest)
    answer(manager, first.message)
    second = ask(manager)
    assert (second.coordinator, second.key, second.newest) == ("group", "readers", 4)
    assert (second.message.generation_id, second.message.member_id) == (3, "member-1")
    answer(manager, second.message)
    assert not manager.offsets_pending


def test_under_v2_offsets_go_straight_to_the_group() -> None:
    manager = ready()
    manager.begin()
    manager.add_offsets({P0: OffsetAndMetadata(5)}, GROUP)
    send = ask(manager)
    assert isinstance(send.message, TxnOffsetCommitRequest)
    assert send.newest == 5
    answer(manager, send.message)
    manager.commit()
    assert isinstance(ask(manager).message, EndTxnRequest)


def test_an_empty_transaction_commits_without_a_word() -> None:
    manager = ready()
    manager.begin()
    manager.commit()
    assert manager.poll(0, batches_left=False) is None
    assert manager.state is ProducerState.READY


@pytest.mark.parametrize("state", list(ProducerState))
@pytest.mark.parametrize("event", [ProducerEvent.BEGIN, ProducerEvent.COMMIT, ProducerEvent.ABORT, ProducerEvent.WRITE])
def test_a_blank_cell_is_refused_with_what_to_do_first(state: ProducerState, event: ProducerEvent) -> None:
    manager = TransactionManager("payments", state=state, identity=ProducerIdentity(7, 0))
    call = {
        ProducerEvent.BEGIN: manager.begin,
        ProducerEvent.COMMIT: manager.commit,
        ProducerEvent.ABORT: manager.abort,
        ProducerEvent.WRITE: lambda: manager.write(P0),
    }[event]
    if event in PRODUCER_STEPS[state]:
        call()
        assert manager.state is PRODUCER_STEPS[state][event]
    else:
        with pytest.raises(Misuse, match=event.value):
            call()
        assert manager.state is state


def test_every_state_is_in_the_table_and_fatal_is_the_end() -> None:
    assert set(PRODUCER_STEPS) == set(ProducerState)
    assert set(PRODUCER_STEPS[ProducerState.FATAL_ERROR].values()) == {ProducerState.FATAL_ERROR}
    for state in ProducerState:
        assert PRODUCER_STEPS[state][ProducerEvent.FATAL] is ProducerState.FATAL_ERROR


@pytest.mark.parametrize("request_type", list(PRODUCER_VERDICTS))
@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_coordinator_that_knows_a_newer_producer_ends_this_one(request_type: type, code: ErrorCode) -> None:
    assert PRODUCER_VERDICTS[request_type][code] is ProducerVerdict.FENCED
    manager = ready()
    manager.begin()
    manager.write(P0)
    manager.commit()
    answer(manager, ask(manager).message, code)
    assert isinstance(manager.error, ProducerFenced)
    with pytest.raises(ProducerFenced):
        manager.begin()


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_what_passes_is_asked_again_after_a_pause(code: ErrorCode) -> None:
    manager = ready()
    manager.begin()
    manager.write(P0)
    manager.commit()
    send = ask(manager)
    answer(manager, send.message, code)
    assert manager.state is ProducerState.COMMITTING
    assert manager.poll(0, batches_left=False) is None
    pause = 20 if code is ErrorCode.CONCURRENT_TRANSACTIONS else 100
    assert ask(manager, pause).message == send.message


def test_a_lost_answer_to_a_commit_is_asked_for_with_the_same_request() -> None:
    manager = ready()
    manager.begin()
    manager.write(P0)
    manager.commit()
    send = ask(manager)
    manager.on_disconnect(now_ms=10, backoff_ms=50)
    assert manager.poll(59, batches_left=False) is None
    assert ask(manager, 60).message == send.message


def test_a_stale_member_makes_the_transaction_abortable_and_the_producer_stays_usable() -> None:
    manager = ready()
    manager.begin()
    manager.add_offsets({P0: OffsetAndMetadata(5)}, GROUP)
    answer(manager, ask(manager).message, ErrorCode.ILLEGAL_GENERATION)
    assert manager.state is ProducerState.ABORTABLE_ERROR
    with pytest.raises(CommitFailed):
        manager.commit()
    manager.abort()
    answer(manager, ask(manager).message, producer_id=7, producer_epoch=1)
    assert manager.state is ProducerState.READY
    assert manager.error is None


def test_whoever_waits_for_offsets_hears_of_a_fatal_error_too() -> None:
    manager = ready()
    manager.begin()
    manager.add_offsets({P0: OffsetAndMetadata(5)}, GROUP)
    answer(manager, ask(manager).message, ErrorCode.PRODUCER_FENCED)
    assert not manager.offsets_pending
    assert isinstance(manager.error, ProducerFenced)


def test_a_failed_batch_can_only_be_answered_by_an_abort() -> None:
    manager = ready()
    manager.begin()
    manager.write(P0)
    manager.fail(error_for(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "gone"), renew=True)
    with pytest.raises(AbortTransaction):
        manager.write(P0)
    with pytest.raises(AbortTransaction):
        manager.commit()
    manager.abort()
    send = ask(manager)
    assert send.message.committed is False
    answer(manager, send.message, producer_id=7, producer_epoch=1)
    assert (manager.state, manager.identity) == (ProducerState.READY, ProducerIdentity(7, 1))


@pytest.mark.parametrize(
    ("code", "raises"),
    [
        (ErrorCode.INVALID_TXN_STATE, AbortTransaction),
        (ErrorCode.REQUEST_TIMED_OUT, AbortTransaction),
        (ErrorCode.INVALID_RECORD, InvalidRecord),  # the same record would be refused again
    ],
)
def test_whatever_kept_a_batch_from_being_written_the_transaction_can_be_aborted_and_says_so(
    code: ErrorCode, raises: type[KafkaError]
) -> None:
    manager = ready()
    manager.begin()
    manager.write(P0)
    manager.fail(error_for(code, "not written"))
    assert manager.state is ProducerState.ABORTABLE_ERROR
    with pytest.raises(raises, match="not written") as raised:
        manager.commit()
    assert raised.value.code is code


@pytest.mark.parametrize("code", [ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED])
def test_a_batch_refused_to_this_producer_for_good_is_its_end(code: ErrorCode) -> None:
    manager = ready()
    manager.begin()
    manager.write(P0)
    manager.fail(error_for(code, "gone"))
    assert manager.state is ProducerState.FATAL_ERROR


def test_a_refused_batch_does_not_end_a_producer_without_transactions() -> None:
    manager = TransactionManager(None)
    manager.initialize()
    answer(manager, ask(manager).message, producer_id=7, producer_epoch=0)
    manager.fail(error_for(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "old topic"))
    assert manager.state is ProducerState.READY


def test_offsets_whose_answer_got_lost_are_aborted_with_their_transaction() -> None:
    """Else the coordinator would keep them, and the next commit would make them count."""
    manager = ready()
    manager.begin()
    manager.add_offsets({P0: OffsetAndMetadata(5)}, GROUP)
    assert isinstance(ask(manager).message, TxnOffsetCommitRequest)
    manager.on_disconnect(now_ms=0, backoff_ms=0)
    manager.abort()
    send = ask(manager)
    assert isinstance(send.message, EndTxnRequest)
    assert send.message.committed is False


def test_an_abort_after_the_identity_was_refused_asks_for_it_again() -> None:
    manager = TransactionManager("payments")
    manager.initialize()
    answer(manager, ask(manager).message, ErrorCode.TRANSACTION_ABORTABLE)
    assert manager.state is ProducerState.ABORTABLE_ERROR
    manager.abort()
    assert isinstance(ask(manager).message, InitProducerIdRequest), "without an identity nothing can be sent"


def test_under_v1_sequences_in_doubt_ask_for_a_new_epoch_after_the_abort() -> None:
    manager = ready(version=1)
    manager.begin()
    manager.write(P0)
    answer(manager, ask(manager).message)
    manager.fail(error_for(ErrorCode.REQUEST_TIMED_OUT, "late"), renew=True)
    manager.abort()
    answer(manager, ask(manager).message)
    assert manager.state is ProducerState.INITIALIZING
    send = ask(manager)
    assert (send.message.producer_id, send.message.producer_epoch) == (7, 0), "KIP-360: a zombie must not get it"
    answer(manager, send.message, producer_id=7, producer_epoch=1)
    assert (manager.state, manager.identity) == (ProducerState.READY, ProducerIdentity(7, 1))


def test_a_coordinator_that_forgot_the_producer_gives_a_new_identity_after_the_abort() -> None:
    manager = ready()
    manager.begin()
    manager.write(P0)
    manager.abort()
    answer(manager, ask(manager).message, ErrorCode.UNKNOWN_PRODUCER_ID)
    assert isinstance(ask(manager).message, InitProducerIdRequest)


@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_a_coordinator_that_has_another_producer_under_this_id_ends_this_one(ending: str) -> None:
    manager = ready()
    manager.begin()
    manager.write(P0)
    getattr(manager, ending)()
    answer(manager, ask(manager).message, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert manager.state is ProducerState.FATAL_ERROR
    assert type(manager.error) is Fatal
    for request_type in PRODUCER_VERDICTS:
        assert (
            PRODUCER_VERDICTS[request_type].get(ErrorCode.INVALID_PRODUCER_ID_MAPPING, ProducerVerdict.FATAL)
            is ProducerVerdict.FATAL
        )


@pytest.mark.parametrize("transactional_id", ["payments", None])
@pytest.mark.parametrize(
    "code", [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
)
def test_an_identity_that_is_not_allowed_may_be_asked_for_again_once_it_is(
    transactional_id: str | None, code: ErrorCode
) -> None:
    manager = TransactionManager(transactional_id)
    manager.initialize()
    answer(manager, ask(manager).message, code)
    assert manager.state is ProducerState.UNINITIALIZED
    assert isinstance(manager.error, AuthorizationFailed)
    manager.initialize()
    assert manager.error is None
    assert manager.poll(99, batches_left=False) is None, "not at once"
    answer(manager, ask(manager, 100).message, producer_id=7, producer_epoch=0)
    assert manager.state is ProducerState.READY


@pytest.mark.parametrize(
    "code", [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
)
def test_a_right_that_is_lost_in_a_transaction_ends_the_producer(code: ErrorCode) -> None:
    """As the Java client has it: for a request it is a refusal, for the producer it is the end."""
    for lose in (
        lambda manager: manager.fail(error_for(code)),
        lambda manager: answer(manager, ask(manager).message, code),
    ):
        manager = ready(version=1)
        manager.begin()
        manager.write(P0)
        lose(manager)
        assert manager.state is ProducerState.FATAL_ERROR
        assert type(manager.error) is Fatal
        assert manager.error.code is code
        with pytest.raises(Fatal):
            manager.abort()


def test_an_abort_called_in_the_middle_of_a_commit_is_refused_and_changes_nothing() -> None:
    manager = ready(version=1)
    manager.begin()
    manager.write(P0)
    manager.commit()
    with pytest.raises(Misuse):
        manager.abort()
    assert isinstance(ask(manager).message, AddPartitionsToTxnRequest), "the partition is still to be announced"


def prepared(**fields: object) -> TransactionManager:
    manager = TransactionManager("payments", two_phase_commit=True)
    manager.initialize(keep_prepared=True)
    send = ask(manager)
    assert (send.version, send.message.enable2_pc, send.message.keep_prepared_txn) == (6, True, True)
    answer(manager, send.message, producer_id=7, producer_epoch=3, **fields)
    return manager


@pytest.mark.parametrize(("decided", "committed"), [((7, 2), True), ((7, 1), False)])
def test_a_prepared_transaction_is_completed_as_the_outside_coordinator_decided(
    decided: tuple[int, int], committed: bool
) -> None:
    manager = prepared(ongoing_txn_producer_id=7, ongoing_txn_producer_epoch=2)
    assert (manager.state, manager.prepared) == (ProducerState.PREPARED, ProducerIdentity(7, 2))
    with pytest.raises(Misuse):
        manager.write(P0)
    manager.complete(ProducerIdentity(*decided))
    send = ask(manager)
    assert (send.message.committed, send.message.producer_epoch) == (committed, 3)
    answer(manager, send.message, producer_id=7, producer_epoch=4)
    assert (manager.state, manager.prepared) == (ProducerState.READY, None)


def test_with_nothing_prepared_a_two_phase_producer_is_ready() -> None:
    manager = prepared()
    assert manager.state is ProducerState.READY
    manager.begin()
    manager.write(P0)
    manager.prepare()
    assert manager.prepared == ProducerIdentity(7, 3)
    manager.complete(ProducerIdentity(7, 3))
    assert ask(manager).message.committed


def test_two_phases_need_their_setting() -> None:
    with pytest.raises(Misuse, match=r"transaction\.two\.phase\.commit\.enable"):
        TransactionManager("payments").initialize(keep_prepared=True)
    manager = ready()
    manager.begin()
    with pytest.raises(Misuse, match=r"transaction\.two\.phase\.commit\.enable"):
        manager.prepare()


def test_an_idempotent_producer_takes_its_next_epoch_itself_until_there_is_none() -> None:
    manager = TransactionManager(None)
    manager.initialize()
    answer(manager, ask(manager).message, producer_id=7, producer_epoch=MAX_EPOCH - 1)
    manager.bump_epoch()
    assert manager.identity == ProducerIdentity(7, MAX_EPOCH)
    manager.bump_epoch()
    assert (manager.identity, manager.state) == (NO_IDENTITY, ProducerState.INITIALIZING)
    assert not manager.may_send_to(P0)


def test_a_producer_without_a_transactional_id_cannot_begin() -> None:
    with pytest.raises(Misuse, match=r"transactional\.id"):
        TransactionManager(None).begin()


@given(st.data(), st.sampled_from([1, 2]))
def test_whatever_is_answered_a_commit_is_acknowledged_only_by_the_coordinator(
    data: st.DataObject, version: int
) -> None:
    """Random calls and answers: READY after COMMITTING means that EndTxn(commit) succeeded, or nothing was written."""
    manager = ready(version)
    epoch = 0
    codes = [ErrorCode.NONE] * 4 + [
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.TRANSACTION_ABORTABLE,
    ]
    wrote = False
    for now_ms in range(0, 40_000, 1_000):
        call = data.draw(st.sampled_from(["begin", "write", "offsets", "commit", "abort", "fail", "poll", "poll"]))
        before = manager.state
        try:
            if call == "begin":
                manager.begin()
                wrote = False
            elif call == "write":
                manager.write(P1)
                wrote = True
            elif call == "offsets":
                manager.add_offsets({P0: OffsetAndMetadata(1)}, GROUP)
                wrote = True
            elif call == "commit":
                manager.commit()
            elif call == "abort":
                manager.abort()
            elif call == "fail" and before is ProducerState.IN_TRANSACTION:
                manager.fail(error_for(ErrorCode.REQUEST_TIMED_OUT, "late"), renew=True)
        except KafkaError:
            continue
        before = manager.state
        send = manager.poll(now_ms, batches_left=False)
        if send is None:
            if before is ProducerState.COMMITTING and manager.state is ProducerState.READY:
                assert not wrote
            continue
        code = data.draw(st.sampled_from(codes))
        fields: dict[str, object] = {}
        if isinstance(send.message, (InitProducerIdRequest, EndTxnRequest)) and code is ErrorCode.NONE:
            if isinstance(send.message, InitProducerIdRequest) or version == 2:
                epoch += 1
                fields = {"producer_id": 7, "producer_epoch": epoch}
        answer(manager, send.message, code, **fields)
        if before is ProducerState.COMMITTING and manager.state is ProducerState.READY:
            assert isinstance(send.message, EndTxnRequest)
            assert send.message.committed
            assert code is ErrorCode.NONE
        assert manager.state is not ProducerState.FATAL_ERROR
