"""The producer's state table, and what each error code of a coordinator means for the producer."""

from __future__ import annotations

import enum
from typing import Any

from semel.errors import ErrorCode
from semel.machines.table import StateTable
from semel.wire.error_codes import error_codes
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)


class ProducerState(enum.Enum):
    """The states of a producer."""

    UNINITIALIZED = "uninitialized"
    INITIALIZING = "initializing"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


class ProducerEvent(enum.Enum):
    """What happens to a producer: calls of its user, and answers. The value is the event's name on the page."""

    INITIALIZE = "init_transactions"
    INITIALIZED = "identity given"
    FOUND_PREPARED = "a prepared transaction was kept"
    BEGIN = "begin_transaction"
    WRITE = "send"
    PREPARE = "prepare_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    ENDED = "transaction ended"
    ABORTABLE = "abortable failure"
    NOT_ALLOWED = "no identity for this principal"
    FATAL = "fatal failure"


S, E = ProducerState, ProducerEvent

#: From (state, event) to the next state; a blank cell is a misuse of the producer and raises `Misuse`.
PRODUCER_STEPS: dict[ProducerState, dict[ProducerEvent, ProducerState]] = {
    S.UNINITIALIZED: {E.INITIALIZE: S.INITIALIZING, E.FATAL: S.FATAL_ERROR},
    S.INITIALIZING: {
        E.INITIALIZE: S.INITIALIZING,
        E.INITIALIZED: S.READY,
        E.FOUND_PREPARED: S.PREPARED,
        E.NOT_ALLOWED: S.UNINITIALIZED,
        E.ABORTABLE: S.ABORTABLE_ERROR,
        E.FATAL: S.FATAL_ERROR,
    },
    S.READY: {E.BEGIN: S.IN_TRANSACTION, E.INITIALIZE: S.INITIALIZING, E.ABORTABLE: S.READY, E.FATAL: S.FATAL_ERROR},
    S.IN_TRANSACTION: {
        E.WRITE: S.IN_TRANSACTION,
        E.PREPARE: S.PREPARED,
        E.COMMIT: S.COMMITTING,
        E.ABORT: S.ABORTING,
        E.ABORTABLE: S.ABORTABLE_ERROR,
        E.FATAL: S.FATAL_ERROR,
    },
    S.PREPARED: {
        E.COMMIT: S.COMMITTING,
        E.ABORT: S.ABORTING,
        E.ABORTABLE: S.ABORTABLE_ERROR,
        E.FATAL: S.FATAL_ERROR,
    },
    S.COMMITTING: {
        E.COMMIT: S.COMMITTING,
        E.ENDED: S.READY,
        E.ABORTABLE: S.ABORTABLE_ERROR,
        E.FATAL: S.FATAL_ERROR,
    },
    S.ABORTING: {
        E.ABORT: S.ABORTING,
        E.ENDED: S.READY,
        E.INITIALIZE: S.INITIALIZING,
        E.ABORTABLE: S.ABORTING,
        E.FATAL: S.FATAL_ERROR,
    },
    S.ABORTABLE_ERROR: {E.ABORT: S.ABORTING, E.ABORTABLE: S.ABORTABLE_ERROR, E.FATAL: S.FATAL_ERROR},
    S.FATAL_ERROR: {E.ABORTABLE: S.FATAL_ERROR, E.FATAL: S.FATAL_ERROR},
}

PRODUCER_TABLE: StateTable[ProducerState, ProducerEvent, ProducerState | None] = StateTable(
    ProducerState, ProducerEvent, PRODUCER_STEPS, blank=None
)

WHAT_TO_DO_FIRST = {
    S.UNINITIALIZED: "call init_transactions() first",
    S.INITIALIZING: "init_transactions() has not finished",
    S.READY: "call begin_transaction() first",
    S.IN_TRANSACTION: "a transaction is open: commit or abort it first",
    S.PREPARED: "the transaction is prepared: complete it first",
    S.COMMITTING: "commit_transaction() has not finished: call it again",
    S.ABORTING: "abort_transaction() has not finished: call it again",
    S.ABORTABLE_ERROR: "the transaction failed: call abort_transaction()",
    S.FATAL_ERROR: "the producer failed: close it",
}


class ProducerVerdict(enum.Enum):
    """What an error code in an answer means for the producer."""

    RETRY = "retry"
    ABORTABLE = "abortable"
    FENCED = "fenced"
    NOT_ALLOWED = "not allowed until the permission is granted"
    FATAL = "fatal"


_FENCED = {ErrorCode.PRODUCER_FENCED: ProducerVerdict.FENCED, ErrorCode.INVALID_PRODUCER_EPOCH: ProducerVerdict.FENCED}
#: A producer that the broker has forgotten gets a new identity. One whose transactional id is used by another does not.
_RENEWED_BY_ABORT = {
    ErrorCode.UNKNOWN_PRODUCER_ID: ProducerVerdict.ABORTABLE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ProducerVerdict.FATAL,
}
#: As in the Java client: whoever may use the id no longer must not go on with a transaction that was begun.
_FORBIDDEN = {
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ProducerVerdict.FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ProducerVerdict.FATAL,
}
_MEMBER_MOVED_ON = {
    ErrorCode.FENCED_INSTANCE_ID: ProducerVerdict.ABORTABLE,
    ErrorCode.UNKNOWN_MEMBER_ID: ProducerVerdict.ABORTABLE,
    ErrorCode.ILLEGAL_GENERATION: ProducerVerdict.ABORTABLE,
    ErrorCode.STALE_MEMBER_EPOCH: ProducerVerdict.ABORTABLE,
}

#: From (request, error code) to a verdict. A code that is not here follows its own row in `errors`.
PRODUCER_VERDICTS: dict[type, dict[ErrorCode, ProducerVerdict]] = {
    InitProducerIdRequest: {
        **_FENCED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ProducerVerdict.NOT_ALLOWED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ProducerVerdict.NOT_ALLOWED,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: ProducerVerdict.FATAL,
    },
    AddPartitionsToTxnRequest: {**_FENCED, **_FORBIDDEN, **_RENEWED_BY_ABORT},
    AddOffsetsToTxnRequest: {**_FENCED, **_FORBIDDEN, **_RENEWED_BY_ABORT},
    TxnOffsetCommitRequest: {**_FENCED, **_FORBIDDEN, **_RENEWED_BY_ABORT, **_MEMBER_MOVED_ON},
    EndTxnRequest: {
        **_FENCED, **_FORBIDDEN, **_RENEWED_BY_ABORT, ErrorCode.INVALID_TXN_STATE: ProducerVerdict.FATAL
    },
}


def verdict(request: Any, code: ErrorCode) -> ProducerVerdict:
    """What this code means in the answer to this request. A code without a cell follows its own row in `errors`."""
    found = PRODUCER_VERDICTS[type(request)].get(code)
    if found is not None:
        return found
    if code.retriable:
        return ProducerVerdict.RETRY
    return ProducerVerdict.ABORTABLE if code.abortable else ProducerVerdict.FATAL


def deciding_code(request: Any, response: Any) -> ErrorCode:
    """The code that decides over an answer with several: the first that cannot be retried, else the first."""
    rows = list(error_codes(response))
    for row in rows:
        if row is not ErrorCode.OPERATION_NOT_ATTEMPTED and verdict(request, row) is not ProducerVerdict.RETRY:
            return row
    return rows[0] if rows else ErrorCode.NONE
