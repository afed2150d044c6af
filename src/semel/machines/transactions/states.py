"""The life of a transaction as one table. `docs/states/transaction.md` is drawn from it.

Every legal move of the transaction coordinator is a cell of `TRANSACTION_STEPS`: from a state, an event leads to the
next state, or to the error code that the client gets. Nothing else in the coordinator decides which move is legal, so
the page, the tests and the behaviour agree.

`DEAD` and `PREPARE_EPOCH_FENCE` are never stored: the first is a tombstone, the second is a step within one decision on
the way to `PREPARE_ABORT`.
"""

from __future__ import annotations

import enum

from semel.errors import ErrorCode
from semel.machines.table import DONE, StateTable, title_of


class TransactionState(enum.IntEnum):
    """The state of a transactional id. The numbers are those in `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name that Kafka's tools print: `PrepareCommit`."""
        return title_of(self)


STATES_BY_TITLE: dict[str, TransactionState] = {state.title: state for state in TransactionState}

#: The outcome is decided; its markers are not all written.
PREPARED = frozenset((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
COMPLETED = frozenset((TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))
#: Begun, and its markers are not all written.
OPEN = PREPARED | {TransactionState.ONGOING}


class TransactionEvent(enum.Enum):
    """What can happen to a transactional id. The value is the event's name on the page."""

    INIT = "InitProducerId"
    KEEP = "InitProducerId (keep prepared)"
    ADD = "add partitions or offsets"
    COMMIT_V1 = "EndTxn(commit) v0-4"
    ABORT_V1 = "EndTxn(abort) v0-4"
    COMMIT = "EndTxn(commit) v5+"
    ABORT = "EndTxn(abort) v5+"
    COMMIT_AGAIN = "EndTxn(commit) v5+ repeated"
    ABORT_AGAIN = "EndTxn(abort) v5+ repeated"
    TIME_OUT = "timeout"
    FENCED = "epoch bumped"
    MARKED = "all markers written"
    EXPIRE = "id expired"


S = TransactionState
E = TransactionEvent

#: Retry later: the previous step is not finished.
LATER = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
ILLEGAL = ErrorCode.INVALID_TXN_STATE

#: A cell holds the next state or the error code for the client. A missing cell is INVALID_TXN_STATE.
TRANSACTION_STEPS: dict[TransactionState, dict[TransactionEvent, TransactionState | ErrorCode]] = {
    S.EMPTY: {
        E.INIT: S.EMPTY,
        E.KEEP: S.EMPTY,
        E.ADD: S.ONGOING,
        E.ABORT: S.PREPARE_ABORT,
        E.COMMIT_AGAIN: FENCED,
        E.ABORT_AGAIN: FENCED,
        E.EXPIRE: S.DEAD,
    },
    S.ONGOING: {
        E.INIT: S.PREPARE_EPOCH_FENCE,
        E.KEEP: S.ONGOING,
        E.ADD: S.ONGOING,
        E.COMMIT_V1: S.PREPARE_COMMIT,
        E.ABORT_V1: S.PREPARE_ABORT,
        E.COMMIT: S.PREPARE_COMMIT,
        E.ABORT: S.PREPARE_ABORT,
        E.COMMIT_AGAIN: FENCED,
        E.ABORT_AGAIN: FENCED,
        E.TIME_OUT: S.PREPARE_EPOCH_FENCE,
    },
    S.PREPARE_EPOCH_FENCE: {
        E.FENCED: S.PREPARE_ABORT,
    },
    S.PREPARE_COMMIT: {
        E.INIT: LATER,
        E.KEEP: LATER,
        E.ADD: LATER,
        E.COMMIT_V1: LATER,
        E.COMMIT: LATER,
        E.ABORT: LATER,
        E.COMMIT_AGAIN: LATER,
        E.MARKED: S.COMPLETE_COMMIT,
    },
    S.PREPARE_ABORT: {
        E.INIT: LATER,
        E.KEEP: LATER,
        E.ADD: LATER,
        E.ABORT_V1: LATER,
        E.COMMIT: LATER,
        E.ABORT: LATER,
        E.ABORT_AGAIN: LATER,
        E.MARKED: S.COMPLETE_ABORT,
    },
    S.COMPLETE_COMMIT: {
        E.INIT: S.EMPTY,
        E.KEEP: S.EMPTY,
        E.ADD: S.ONGOING,
        E.COMMIT_V1: DONE,
        E.ABORT: S.PREPARE_ABORT,
        E.COMMIT_AGAIN: DONE,
        E.EXPIRE: S.DEAD,
    },
    S.COMPLETE_ABORT: {
        E.INIT: S.EMPTY,
        E.KEEP: S.EMPTY,
        E.ADD: S.ONGOING,
        E.ABORT_V1: DONE,
        E.ABORT: S.PREPARE_ABORT,
        E.ABORT_AGAIN: DONE,
        E.EXPIRE: S.DEAD,
    },
    S.DEAD: {},
}

TRANSACTION_TABLE: StateTable[TransactionState, TransactionEvent, TransactionState | ErrorCode] = StateTable(
    TransactionState, TransactionEvent, TRANSACTION_STEPS, blank=ILLEGAL
)
