"""The life of a transaction as one table, and the picture drawn from it.

Every legal move of the transaction coordinator is a cell of `TRANSACTION_STEPS`: from a state, an event leads to the
next state or to the code its sender gets. Nothing else in the coordinator decides legality, so the picture in the
documentation, the tests and the behaviour cannot drift apart.

`DEAD` and `PREPARE_EPOCH_FENCE` are never stored: the first is a tombstone, the second is passed through within one
decision on the way to `PREPARE_ABORT`.
"""

from __future__ import annotations

import enum

from semel.errors import ErrorCode


class TransactionState(enum.IntEnum):
    """What a transactional id is in; the number is the one stored in `__transaction_state`."""

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
        """The name people and Kafka's tools know it by: `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


STATES_BY_TITLE: dict[str, TransactionState] = {state.title: state for state in TransactionState}

#: The outcome is decided and on its way into the partitions.
PREPARED = frozenset((TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT))
COMPLETED = frozenset((TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT))
#: Begun, and not over before every marker is written.
OPEN = PREPARED | {TransactionState.ONGOING}


class TransactionEvent(enum.Enum):
    """What can happen to a transactional id, and how the picture calls it."""

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

#: Success with nothing to do: the sender repeats what is already so.
DONE = ErrorCode.NONE
#: Not now: the previous step is still on its way.
LATER = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
ILLEGAL = ErrorCode.INVALID_TXN_STATE

#: A cell is the next state, or the code the sender gets; a blank cell is INVALID_TXN_STATE.
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


def step(state: TransactionState, event: TransactionEvent) -> TransactionState | ErrorCode:
    """The cell of the table."""
    return TRANSACTION_STEPS[state].get(event, ILLEGAL)


def table_as_mermaid() -> str:
    """The moves from state to state as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {S.EMPTY.title}: {E.INIT.value}"]
    for state, row in TRANSACTION_STEPS.items():
        moves: dict[TransactionState, list[str]] = {}
        for event, cell in row.items():
            if isinstance(cell, TransactionState):
                moves.setdefault(cell, []).append(event.value)
        lines.extend(f"    {state.title} --> {target.title}: {', '.join(names)}" for target, names in moves.items())
    lines.append(f"    {S.DEAD.title} --> [*]")
    return "\n".join(lines) + "\n"


def table_as_markdown() -> str:
    """Every cell, refusals included: a row per event, a column per state."""
    states = [state for state in TransactionState if TRANSACTION_STEPS[state]]
    lines = [
        "| event | " + " | ".join(state.title for state in states) + " |",
        "|---|" + "---|" * len(states),
    ]
    for event in TransactionEvent:
        cells = [step(state, event) for state in states]
        names = [cell.title if isinstance(cell, TransactionState) else _in_words(cell) for cell in cells]
        lines.append(f"| {event.value} | " + " | ".join(names) + " |")
    return "\n".join(lines) + "\n"


def _in_words(code: ErrorCode) -> str:
    if code is DONE:
        return "*done*"
    return "" if code is ILLEGAL else code.name


def document() -> str:
    """The page about this table; `python -m semel.machines.transactions.states` prints it."""
    return f"""# The life of a transaction

This page is drawn from the table in `semel/machines/transactions/states.py`; a test keeps the two the same.

```mermaid
{table_as_mermaid()}```

What each event leads to from each state. A name like `Ongoing` is the next state, a name in capitals is the error code
the sender gets, *done* is a success that changes nothing because it repeats what is already so, and a blank is
INVALID_TXN_STATE.

{table_as_markdown()}
- **PrepareEpochFence** is passed through within one decision and never stored: the epoch is bumped, so that the absent
  owner is fenced, and the transaction goes on to PrepareAbort. A client whose InitProducerId started this is told
  CONCURRENT_TRANSACTIONS and comes back when the abort is complete.
- **Dead** is a tombstone: the id is forgotten.
- An abort of a transaction in which nothing was written (protocol V2) has nobody to tell, and is complete at once.
- *Repeated* means that the request carries the epoch from before the bump: its answer was lost.
- While a step is being written to `__transaction_state`, everyone else is told CONCURRENT_TRANSACTIONS.
"""


if __name__ == "__main__":
    print(document(), end="")
