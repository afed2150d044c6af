"""Every cell of the table, driven through the coordinator; and the documentation drawn from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.errors import ErrorCode
from semel.machines.transactions.coordinator import TransactionSettings
from semel.machines.transactions.states import (
    STEPS,
    Event,
    State,
    document,
    step,
)
from semel.machines.values import ProducerIdentity
from tests.machines.transactions.transaction_host import OTHER, Host, metadata_in

STORED = [state for state in State if state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)]
CURRENT = ProducerIdentity(77, 5)
BEFORE = ProducerIdentity(77, 4)


def happened(host: Host, event: Event) -> ErrorCode:
    """Let the event happen to the id, and tell what its sender was told (NONE where nobody sends it)."""
    match event:
        case Event.INIT:
            return ErrorCode(host.init().error_code)
        case Event.KEEP:
            return ErrorCode(host.init(keep=True, two_phase=True).error_code)
        case Event.ADD:
            return host.produce(CURRENT, OTHER)
        case Event.COMMIT_V1:
            return host.commit(CURRENT, version=4)
        case Event.ABORT_V1:
            return host.abort(CURRENT, version=4)
        case Event.COMMIT:
            return host.commit(CURRENT)
        case Event.ABORT:
            return host.abort(CURRENT)
        case Event.COMMIT_AGAIN:
            return host.commit(BEFORE)
        case Event.ABORT_AGAIN:
            return host.abort(BEFORE)
        case Event.TIME_OUT:
            host.tick(60_001)
        case Event.MARKED:
            host.waiting.extend(
                effect
                for decision in host.coordinator.loaded(host.coordinator.partition_for("payments"), host.now_ms)
                for effect in decision.effects
            )
            host.write_markers()
        case Event.EXPIRE:
            host.tick(host.settings.transactional_id_expiration_ms)
    return ErrorCode.NONE


@pytest.mark.parametrize("event", [event for event in Event if event is not Event.FENCED], ids=lambda each: each.name)
@pytest.mark.parametrize("state", STORED, ids=lambda each: each.name)
def test_the_coordinator_does_what_the_cell_says(state: State, event: Event) -> None:
    # An id that may expire must not at the same time be one that can time out.
    expiration_ms = 10_000 if event is Event.EXPIRE else 604_800_000
    host = Host(
        TransactionSettings(
            transaction_two_phase_commit_enable=True,
            transactional_id_expiration_ms=expiration_ms,
            transaction_remove_expired_transaction_cleanup_interval_ms=1_000,
        )
    )
    host.place(metadata_in(state))
    written_before = len(host.log)

    told = happened(host, event)

    cell = step(state, event)
    written = host.log[written_before:]
    internal = event in (Event.TIME_OUT, Event.MARKED, Event.EXPIRE)
    if isinstance(cell, ErrorCode):
        assert written == [], "a refusal writes nothing"
        assert host.metadata() == metadata_in(state)
        assert told is (ErrorCode.NONE if internal else cell)
    elif cell is State.DEAD:
        assert [record.value for record in written] == [None]
        assert host.known() == {}
    elif cell is State.PREPARE_EPOCH_FENCE:
        assert step(cell, Event.FENCED) is State.PREPARE_ABORT
        assert host.metadata().state is State.PREPARE_ABORT
        assert told is (ErrorCode.NONE if internal else ErrorCode.CONCURRENT_TRANSACTIONS)
    else:
        assert told is ErrorCode.NONE
        states = {cell}
        if cell is State.PREPARE_ABORT and state is not State.ONGOING:
            # Nothing was written in it, so it is complete at once.
            states = {State.COMPLETE_ABORT}
        assert {host.metadata().state} == states


def test_a_state_that_is_never_stored_accepts_nothing_from_a_client() -> None:
    assert STEPS[State.DEAD] == {}
    assert STEPS[State.PREPARE_EPOCH_FENCE] == {Event.FENCED: State.PREPARE_ABORT}


def test_only_a_decided_transaction_can_complete_and_only_the_way_it_was_decided() -> None:
    completing = {state: cells[Event.MARKED] for state, cells in STEPS.items() if Event.MARKED in cells}
    assert completing == {
        State.PREPARE_COMMIT: State.COMPLETE_COMMIT,
        State.PREPARE_ABORT: State.COMPLETE_ABORT,
    }


def test_no_event_leads_from_a_decided_outcome_to_the_opposite_one() -> None:
    for event in Event:
        assert step(State.PREPARE_COMMIT, event) not in (State.PREPARE_ABORT, State.COMPLETE_ABORT)
        assert step(State.PREPARE_ABORT, event) not in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)


def test_the_document_is_drawn_from_the_table() -> None:
    path = Path(__file__).parents[3] / "docs" / "transaction-states.md"
    assert path.read_text() == document(), "regenerate it: python -m semel.machines.transactions.states > " + str(path)
