"""What a partition answers a producer: every rule of sequences, epochs, markers and verification, without a file."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ErrorCode, Refused
from semel.machines.producing.producer_state import ProducerStates
from semel.records.batch import Batch
from semel.records.layout import HEADER_SIZE, TRANSACTIONAL, seal

LAST = 2**31 - 1
DAY_MS = 86_400_000


class Partition:
    """Producer state with a log of nothing but offsets."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end_offset = 0

    def write(
        self, producer_id: int, epoch: int, first: int, count: int = 1, *, transactional: bool = False, at_ms: int = 0
    ) -> int:
        last = (first + count - 1) % 2**31
        written = self.states.check_data(producer_id, epoch, first, last, transactional)
        if written is not None:
            return written.first_offset
        offset = self.end_offset
        self.end_offset += count
        header = seal(
            bytearray(HEADER_SIZE),
            attributes=TRANSACTIONAL if transactional else 0,
            last_offset_delta=count - 1,
            base_timestamp=at_ms,
            max_timestamp=at_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=first,
            record_count=count,
        )
        batch = Batch.parse(header)
        self.states.remember_data(batch, offset, at_ms, heard_ms=-1)
        return offset

    def mark(
        self,
        producer_id: int,
        epoch: int,
        *,
        commit: bool = True,
        coordinator: int = 0,
        version: int = 2,
        at_ms: int = 0,
    ) -> int:
        original = self.states.check_marker(producer_id, epoch, coordinator, version)
        if original is not None:
            return original
        offset = self.end_offset
        self.end_offset += 1
        self.states.remember_marker(producer_id, epoch, coordinator, offset, at_ms)
        return offset

    def refused(self, code: ErrorCode, *arguments: object, **more: object) -> None:
        before = self.states.facts()
        with pytest.raises(Refused) as refusal:
            self.write(*arguments, **more)  # type: ignore[arg-type]
        assert refusal.value.code == code
        assert self.states.facts() == before


@pytest.fixture
def partition() -> Partition:
    return Partition()


def test_each_of_the_last_five_batches_is_recognised_and_answered_with_its_offset(partition: Partition) -> None:
    offsets = [partition.write(1, 0, sequence, 3) for sequence in range(0, 21, 3)]
    for sequence, offset in list(zip(range(0, 21, 3), offsets, strict=True))[-5:]:
        assert partition.write(1, 0, sequence, 3) == offset
    assert partition.end_offset == 21


def test_a_retry_older_than_the_five_is_a_duplicate_without_an_offset(partition: Partition) -> None:
    for sequence in range(6):
        partition.write(1, 0, sequence)
    partition.refused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 1, 0, 0)


def test_an_old_sequence_that_was_never_written_is_not_called_a_duplicate(partition: Partition) -> None:
    """State can begin in the middle (retention): what came before may be missing, so "duplicate" would lose it."""
    for sequence in range(100, 110):
        partition.write(1, 0, sequence)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 50)


def test_a_batch_that_only_overlaps_a_written_one_is_out_of_order(partition: Partition) -> None:
    partition.write(1, 0, 0, 5)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 0, 3)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 3, 4)


def test_a_gap_is_out_of_order(partition: Partition) -> None:
    partition.write(1, 0, 0)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 2)


def test_a_producer_without_state_may_begin_anywhere(partition: Partition) -> None:
    assert partition.write(1, 0, 17) == 0


def test_a_new_epoch_begins_at_sequence_zero(partition: Partition) -> None:
    partition.write(1, 0, 0)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 1, 1)
    assert partition.write(1, 1, 0) == 1


def test_a_stale_epoch_is_fenced(partition: Partition) -> None:
    partition.write(1, 3, 0)
    partition.refused(ErrorCode.INVALID_PRODUCER_EPOCH, 1, 2, 1)


def test_the_retry_of_an_older_epoch_is_fenced_not_recognised(partition: Partition) -> None:
    partition.write(1, 0, 0)
    partition.write(1, 1, 0)
    partition.refused(ErrorCode.INVALID_PRODUCER_EPOCH, 1, 0, 0)


def test_sequences_wrap_to_zero(partition: Partition) -> None:
    """K-7692"""
    partition.write(1, 0, LAST - 2, 2)
    wrapped = partition.write(1, 0, LAST, 3)
    assert partition.states.entries[1].last_sequence == 1
    assert partition.write(1, 0, LAST, 3) == wrapped
    assert partition.write(1, 0, 2) == 5
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 0)


def test_a_retry_from_before_the_wrap_is_older_than_one_after_it(partition: Partition) -> None:
    partition.write(1, 0, 0, LAST - 1)
    for sequence in (LAST - 1, LAST, 0, 1, 2, 3, 4):
        partition.write(1, 0, sequence)
    partition.refused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 1, 0, LAST - 1)


def test_a_plain_batch_cannot_slip_into_an_open_transaction(partition: Partition) -> None:
    partition.write(1, 0, 0, transactional=True)
    partition.refused(ErrorCode.INVALID_TXN_STATE, 1, 0, 1)


def test_after_a_marker_with_a_bumped_epoch_sequences_begin_again(partition: Partition) -> None:
    partition.write(1, 0, 0, 4, transactional=True)
    partition.mark(1, 1)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 1, 4, transactional=True)
    assert partition.write(1, 1, 0, transactional=True) == 5


def test_after_an_abort_a_reused_sequence_is_not_taken_for_the_old_one(partition: Partition) -> None:
    """R-5026"""
    first = partition.write(1, 0, 0, transactional=True)
    partition.mark(1, 1, commit=False)
    assert partition.write(1, 1, 0, transactional=True) > first


def test_under_the_first_protocol_sequences_go_on_after_a_marker(partition: Partition) -> None:
    partition.write(1, 0, 0, 4, transactional=True)
    partition.mark(1, 0, version=1)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 5, transactional=True)
    assert partition.write(1, 0, 4, transactional=True) == 5


@pytest.mark.parametrize("commit", [True, False])
def test_under_the_first_protocol_a_sequence_from_before_the_marker_is_no_retry(
    partition: Partition, commit: bool
) -> None:
    """The epoch stays, so the same sequence in the next transaction is another record: never "already written"."""
    partition.write(1, 0, 0, 4, transactional=True)
    last = partition.write(1, 0, 4, 2, transactional=True)
    assert partition.write(1, 0, 4, 2, transactional=True) == last
    partition.mark(1, 0, version=1, commit=commit)
    partition.refused(ErrorCode.UNKNOWN_PRODUCER_ID, 1, 0, 4, 2, transactional=True)
    partition.refused(ErrorCode.UNKNOWN_PRODUCER_ID, 1, 0, 5, 3, transactional=True)
    opened = partition.write(1, 0, 6, transactional=True)
    partition.refused(ErrorCode.UNKNOWN_PRODUCER_ID, 1, 0, 4, 2, transactional=True)
    assert partition.write(1, 0, 6, transactional=True) == opened
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 6, 2, transactional=True)


def test_a_transactions_sequence_older_than_the_five_is_never_called_a_duplicate(partition: Partition) -> None:
    """Its batch may be one of an aborted transaction, and clients take "duplicate" for a success."""
    partition.write(1, 0, 0, transactional=True)
    partition.mark(1, 0, version=1, commit=False)
    for sequence in range(1, 9):
        partition.write(1, 0, sequence, transactional=True)
    partition.refused(ErrorCode.UNKNOWN_PRODUCER_ID, 1, 0, 0, transactional=True)
    partition.refused(ErrorCode.UNKNOWN_PRODUCER_ID, 1, 0, 1, transactional=True)


def test_a_plain_batch_is_no_retry_of_one_that_was_in_a_transaction(partition: Partition) -> None:
    for sequence in range(7):
        partition.write(1, 0, sequence, transactional=True)
    partition.mark(1, 0, version=1, commit=False)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 6)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 0)


# Markers


def test_a_late_produce_after_the_coordinator_aborted_is_refused_and_the_lso_is_not_stuck(partition: Partition) -> None:
    """KIP-890, scenario 1"""
    partition.write(1, 0, 0, transactional=True)
    partition.mark(1, 1, commit=False)
    partition.refused(ErrorCode.INVALID_PRODUCER_EPOCH, 1, 0, 1, transactional=True)
    assert partition.states.first_open_offset == -1


def test_a_marker_of_an_older_coordinator_is_refused(partition: Partition) -> None:
    partition.write(1, 0, 0, transactional=True)
    partition.mark(1, 1, coordinator=5)
    partition.write(1, 1, 0, transactional=True)
    with pytest.raises(Refused) as refusal:
        partition.mark(1, 2, coordinator=4)
    assert refusal.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_second_protocol_marker_needs_a_larger_epoch_than_the_data(partition: Partition) -> None:
    """KIP-1228"""
    partition.write(1, 4, 0, transactional=True)
    for epoch in (3, 4):
        with pytest.raises(Refused) as refusal:
            partition.mark(1, epoch)
        assert refusal.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    partition.mark(1, 5)
    assert partition.states.first_open_offset == -1


def test_a_first_protocol_marker_may_have_the_epoch_of_the_data(partition: Partition) -> None:
    partition.write(1, 4, 0, transactional=True)
    with pytest.raises(Refused):
        partition.mark(1, 3, version=1)
    partition.mark(1, 4, version=1)
    assert partition.states.first_open_offset == -1


def test_the_retry_of_a_written_marker_is_a_success_that_writes_nothing(partition: Partition) -> None:
    """K-19999"""
    partition.write(1, 0, 0, transactional=True)
    original = partition.mark(1, 1)
    end = partition.end_offset
    assert partition.mark(1, 1) == original
    assert partition.end_offset == end


def test_a_retried_marker_cannot_end_the_next_transaction(partition: Partition) -> None:
    """Scenario 2, on the partition's side"""
    partition.write(1, 0, 0, transactional=True)
    partition.mark(1, 1)
    partition.write(1, 1, 0, transactional=True)
    with pytest.raises(Refused) as refusal:
        partition.mark(1, 1)
    assert refusal.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.states.first_open_offset >= 0


def test_a_newer_coordinators_retry_is_written_so_that_the_older_one_stays_fenced(partition: Partition) -> None:
    partition.write(1, 0, 0, transactional=True)
    partition.mark(1, 1, coordinator=1)
    partition.mark(1, 1, coordinator=2)
    with pytest.raises(Refused) as refusal:
        partition.mark(1, 1, coordinator=1)
    assert refusal.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_marker_without_a_transaction_here_is_still_written(partition: Partition) -> None:
    partition.write(1, 0, 0)
    assert partition.mark(1, 0, version=1) == 1
    assert partition.mark(1, 0, version=1) == 2
    assert partition.mark(9, 0, version=1) == 3


# The last stable offset


def test_the_oldest_open_transaction_holds_the_last_stable_offset(partition: Partition) -> None:
    states = partition.states
    partition.write(1, 0, 0, transactional=True)
    partition.write(2, 0, 0, transactional=True)
    partition.write(3, 0, 0)
    assert states.first_unstable_offset == 0
    partition.mark(1, 1)
    states.replicated_to(partition.end_offset)
    assert states.first_unstable_offset == 1
    partition.mark(2, 1)
    states.replicated_to(partition.end_offset)
    assert states.first_unstable_offset == -1


def test_an_ended_transaction_holds_it_until_its_marker_is_below_the_high_watermark(partition: Partition) -> None:
    states = partition.states
    partition.write(1, 0, 0, transactional=True)
    marker = partition.mark(1, 1)
    assert states.first_unstable_offset == 0
    states.replicated_to(marker)
    assert states.first_unstable_offset == 0
    states.replicated_to(marker + 1)
    assert states.first_unstable_offset == -1


def test_what_a_marker_completes_says_where_the_lso_may_go(partition: Partition) -> None:
    partition.write(1, 0, 0, transactional=True)
    partition.write(2, 0, 0, transactional=True)
    first = partition.states.completes(1, 2, commit=False)
    assert first is not None and (first.first_offset, first.last_stable_offset) == (0, 1)
    second = partition.states.completes(2, 2, commit=False)
    assert second is not None and (second.first_offset, second.last_stable_offset) == (1, 0)
    partition.mark(1, 1)
    alone = partition.states.completes(2, 3, commit=True)
    assert alone is not None and alone.last_stable_offset == 4 and not alone.aborted


# Verification


def test_the_first_transactional_batch_needs_a_live_guard(partition: Partition) -> None:
    states = partition.states
    with pytest.raises(Refused) as refusal:
        states.check_verified(1, 0, None)
    assert refusal.value.code == ErrorCode.INVALID_TXN_STATE
    guard = states.start_verification(1, 0, 0, now_ms=0)
    states.check_verified(1, 0, guard)
    partition.write(1, 0, 0, transactional=True)
    states.check_verified(1, 0, None)
    assert states.start_verification(1, 0, 1, now_ms=0) is None


def test_an_abort_marker_between_verification_and_append_ends_the_guard(partition: Partition) -> None:
    """K-14884"""
    states = partition.states
    guard = states.start_verification(1, 0, 0, now_ms=0)
    partition.mark(1, 0, commit=False, version=1)
    with pytest.raises(Refused) as refusal:
        states.check_verified(1, 0, guard)
    assert refusal.value.code == ErrorCode.INVALID_TXN_STATE
    fresh = states.start_verification(1, 0, 0, now_ms=0)
    assert fresh is not guard
    with pytest.raises(Refused):
        states.check_verified(1, 0, guard)


def test_a_later_sequence_cannot_overtake_one_whose_verification_timed_out(partition: Partition) -> None:
    """K-14920"""
    states = partition.states
    states.start_verification(1, 0, 0, now_ms=0)
    states.start_verification(1, 0, 1, now_ms=0)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 1, transactional=True)
    assert partition.write(1, 0, 0, transactional=True) == 0
    assert partition.write(1, 0, 1, transactional=True) == 1


def test_a_request_of_an_earlier_transaction_that_comes_late_holds_up_nothing(partition: Partition) -> None:
    """After a cut the kernel still delivers what a client has sent on a connection that it gave up seconds ago. Under
    protocol V1 it has the epoch of the transaction that is open now. Its coordinator may have refused it, or agree."""
    states = partition.states
    for sequence in range(2):
        partition.write(1, 0, sequence, transactional=True)
        partition.mark(1, 0, version=1)
    late = states.start_verification(1, 0, 0, now_ms=0)
    guard = states.start_verification(1, 0, 2, now_ms=0)
    assert guard is late
    partition.refused(ErrorCode.UNKNOWN_PRODUCER_ID, 1, 0, 0, transactional=True)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 3, transactional=True)
    states.check_verified(1, 0, guard)
    assert partition.write(1, 0, 2, transactional=True) == 4


def test_an_epoch_bump_during_verification_forgets_the_older_sequences(partition: Partition) -> None:
    states = partition.states
    states.start_verification(1, 0, 0, now_ms=0)
    states.start_verification(1, 1, 3, now_ms=0)
    assert partition.write(1, 1, 3, transactional=True) == 0


@pytest.mark.parametrize("others_epoch", [0, 2, 32_767])
def test_what_another_epoch_sends_in_vain_holds_up_nothing(partition: Partition, others_epoch: int) -> None:
    """A fenced producer writes on, and its coordinator refuses it; or somebody makes an epoch up."""
    states = partition.states
    assert partition.write(1, 1, 0, transactional=True) == 0
    assert states.start_verification(1, others_epoch, 0, now_ms=0) is not None
    assert partition.write(1, 1, 1, transactional=True) == 1


def test_what_the_coordinator_will_never_agree_to_is_not_kept(partition: Partition) -> None:
    verifications = partition.states.verifications
    for code, kept in (
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, False),
        (ErrorCode.INVALID_PRODUCER_EPOCH, False),
        (ErrorCode.PRODUCER_FENCED, False),
        (ErrorCode.CONCURRENT_TRANSACTIONS, True),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, True),
    ):
        partition.states.start_verification(1, 0, 0, now_ms=0)
        verifications.answered(1, 0, code)
        assert bool(verifications) is kept


def test_under_the_second_protocol_an_unknown_producer_begins_at_zero(partition: Partition) -> None:
    states = partition.states
    states.start_verification(1, 0, 4, now_ms=0, supports_epoch_bump=True)
    partition.refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, 0, 4, transactional=True)


def test_a_transaction_of_an_older_epoch_does_not_stand_in_for_verification(partition: Partition) -> None:
    partition.write(1, 0, 0, transactional=True)
    assert partition.states.start_verification(1, 1, 0, now_ms=0) is not None


# Age


def test_an_idle_producer_is_forgotten_and_one_with_an_open_transaction_never(partition: Partition) -> None:
    partition.write(1, 0, 0, at_ms=0)
    partition.write(2, 0, 0, at_ms=0, transactional=True)
    partition.write(3, 0, 0, at_ms=DAY_MS // 2)
    assert partition.states.expire(DAY_MS, DAY_MS) == [1]
    assert set(partition.states.entries) == {2, 3}


def test_a_producer_known_only_by_a_marker_lives_as_long_as_any(partition: Partition) -> None:
    """K-9144"""
    partition.mark(1, 3, coordinator=7, at_ms=1000)
    assert partition.states.expire(1000 + DAY_MS - 1, DAY_MS) == []
    with pytest.raises(Refused) as refusal:
        partition.mark(1, 4, coordinator=6)
    assert refusal.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert partition.states.expire(1000 + DAY_MS, DAY_MS) == [1]


def test_a_verification_nobody_finished_is_forgotten(partition: Partition) -> None:
    guard = partition.states.start_verification(1, 0, 0, now_ms=0)
    partition.states.expire(DAY_MS, DAY_MS)
    with pytest.raises(Refused):
        partition.states.check_verified(1, 0, guard)


# Any history


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 2),
            st.integers(0, 6) | st.integers(LAST - 3, LAST),
            st.integers(1, 3),
        ),
        max_size=60,
    )
)
def test_whatever_is_sent_no_sequence_is_written_twice_and_none_is_skipped(
    sends: list[tuple[int, int, int, int]],
) -> None:
    partition = Partition()
    log: list[tuple[int, int, int, int]] = []
    for producer_id, epoch, first, count in sends:
        end = partition.end_offset
        try:
            offset = partition.write(producer_id, epoch, first, count)
        except Refused:
            assert partition.end_offset == end
            continue
        if partition.end_offset == end:
            assert (producer_id, epoch, first, count) in log
        else:
            assert offset == end
            log.append((producer_id, epoch, first, count))
    for producer_id in range(3):
        mine = [entry for entry in log if entry[0] == producer_id]
        for before, after in itertools.pairwise(mine):
            assert after[1] >= before[1]
            expected = (before[2] + before[3]) % 2**31 if after[1] == before[1] else 0
            assert after[2] == expected
