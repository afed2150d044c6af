"""Every cell of the table, driven through the coordinator."""

from __future__ import annotations

import pytest

from semel.errors import ErrorCode
from semel.machines.transactions.coordinator import TransactionSettings
from semel.machines.transactions.states import (
    TRANSACTION_STEPS,
    TRANSACTION_TABLE,
    TransactionEvent,
    TransactionState,
)
from semel.machines.values import ProducerIdentity
from tests.machines.transactions.transaction_driver import OTHER, TransactionDriver, metadata_in

STORED = [
    state for state in TransactionState if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
]
CURRENT = ProducerIdentity(77, 5)
BEFORE = ProducerIdentity(77, 4)


def happened(driver: TransactionDriver, event: TransactionEvent) -> ErrorCode:
    """Let the event happen to the id, and tell what its sender was told (NONE where nobody sends it)."""
    match event:
        case TransactionEvent.INIT:
            return ErrorCode(driver.init().error_code)
        case TransactionEvent.KEEP:
            return ErrorCode(driver.init(keep=True, two_phase=True).error_code)
        case TransactionEvent.ADD:
            return driver.produce(CURRENT, OTHER)
        case TransactionEvent.COMMIT_V1:
            return driver.commit(CURRENT, version=4)
        case TransactionEvent.ABORT_V1:
            return driver.abort(CURRENT, version=4)
        case TransactionEvent.COMMIT:
            return driver.commit(CURRENT)
        case TransactionEvent.ABORT:
            return driver.abort(CURRENT)
        case TransactionEvent.COMMIT_AGAIN:
            return driver.commit(BEFORE)
        case TransactionEvent.ABORT_AGAIN:
            return driver.abort(BEFORE)
        case TransactionEvent.TIME_OUT:
            driver.tick(60_001)
        case TransactionEvent.MARKED:
            driver.waiting.extend(
                effect
                for decision in driver.coordinator.loaded(driver.coordinator.partition_for("payments"), driver.now_ms)
                for effect in decision.effects
            )
            driver.write_markers()
        case TransactionEvent.EXPIRE:
            driver.tick(driver.settings.transactional_id_expiration_ms)
    return ErrorCode.NONE


@pytest.mark.parametrize(
    "event", [event for event in TransactionEvent if event is not TransactionEvent.FENCED], ids=lambda each: each.name
)
@pytest.mark.parametrize("state", STORED, ids=lambda each: each.name)
def test_the_coordinator_does_what_the_cell_says(state: TransactionState, event: TransactionEvent) -> None:
    # An id that may expire must not at the same time be one that can time out.
    expiration_ms = 10_000 if event is TransactionEvent.EXPIRE else 604_800_000
    driver = TransactionDriver(
        TransactionSettings(
            transaction_two_phase_commit_enable=True,
            transactional_id_expiration_ms=expiration_ms,
            transaction_remove_expired_transaction_cleanup_interval_ms=1_000,
        )
    )
    driver.place(metadata_in(state))
    written_before = len(driver.log)

    told = happened(driver, event)

    cell = TRANSACTION_TABLE.step(state, event)
    written = driver.log[written_before:]
    internal = event in (TransactionEvent.TIME_OUT, TransactionEvent.MARKED, TransactionEvent.EXPIRE)
    if isinstance(cell, ErrorCode):
        assert written == [], "a refusal writes nothing"
        assert driver.metadata() == metadata_in(state)
        assert told is (ErrorCode.NONE if internal else cell)
    elif cell is TransactionState.DEAD:
        assert [record.value for record in written] == [None]
        assert driver.known() == {}
    elif cell is TransactionState.PREPARE_EPOCH_FENCE:
        assert TRANSACTION_TABLE.step(cell, TransactionEvent.FENCED) is TransactionState.PREPARE_ABORT
        assert driver.metadata().state is TransactionState.PREPARE_ABORT
        assert told is (ErrorCode.NONE if internal else ErrorCode.CONCURRENT_TRANSACTIONS)
    else:
        assert told is ErrorCode.NONE
        states = {cell}
        if cell is TransactionState.PREPARE_ABORT and state is not TransactionState.ONGOING:
            # Nothing was written in it, so it is complete at once.
            states = {TransactionState.COMPLETE_ABORT}
        assert {driver.metadata().state} == states


def test_a_state_that_is_never_stored_accepts_nothing_from_a_client() -> None:
    assert TRANSACTION_STEPS[TransactionState.DEAD] == {}
    assert TRANSACTION_STEPS[TransactionState.PREPARE_EPOCH_FENCE] == {
        TransactionEvent.FENCED: TransactionState.PREPARE_ABORT
    }


def test_only_a_decided_transaction_can_complete_and_only_the_way_it_was_decided() -> None:
    completing = {
        state: cells[TransactionEvent.MARKED]
        for state, cells in TRANSACTION_STEPS.items()
        if TransactionEvent.MARKED in cells
    }
    assert completing == {
        TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
        TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
    }


def test_no_event_leads_from_a_decided_outcome_to_the_opposite_one() -> None:
    for event in TransactionEvent:
        assert TRANSACTION_TABLE.step(TransactionState.PREPARE_COMMIT, event) not in (
            TransactionState.PREPARE_ABORT,
            TransactionState.COMPLETE_ABORT,
        )
        assert TRANSACTION_TABLE.step(TransactionState.PREPARE_ABORT, event) not in (
            TransactionState.PREPARE_COMMIT,
            TransactionState.COMPLETE_COMMIT,
        )
