"""What a coordinator and its host promise each other.

A coordinator decides; its host acts. A command returns a `Decision`: the records to write, the reply, and the effects.
The host appends the records to the coordinator's internal topic and hands each one back to `replay`. Then it performs
the effects and sends the reply, in the order that the broker's durability asks for (`broker/durability.py`). A
coordinator changes its stored state in `replay` alone, so recovery is the same `replay` over the stored records: there
is no second code path.

If the append fails, the host calls `append_failed` instead of `replay`, and the coordinator drops the decision.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from semel.errors import ErrorCode
from semel.machines.values import ProducerIdentity, TopicPartition

Reply = TypeVar("Reply", covariant=True)

Result = TypeVar("Result")

#: A question that takes long, answered in steps: the caller may serve others between two steps. What the answer says
#: of one group or one transaction was true at one moment.
Steps = Generator[None, None, Result]
#: How many entries one step looks at.
AT_ONCE = 100


def run_all(steps: Steps[Result]) -> Result:
    """Run all steps at once and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as last:
            result: Result = last.value
            return result


#: Identifies a parked request. The host maps it to the client that waits for the answer.
Token = int


class StateRecord(NamedTuple):
    """One record of an internal topic. A `value` of None is a tombstone.

    With a `producer` the record belongs to the open transaction of that producer: it counts once the transaction
    commits.
    """

    partition: int
    key: bytes
    value: bytes | None
    producer: ProducerIdentity | None = None


class Effect:
    """Something the host does after the records are written and replayed."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AnswerParked(Effect):
    """Answer a parked request."""

    token: Token
    reply: object


@dataclass(frozen=True, slots=True)
class SendMarkers(Effect):
    """Write the transaction's outcome into all its partitions, then call `markers_written`.

    `producer_epoch` is the epoch the markers carry (under transaction protocol V2 already the bumped one).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


# Not `frozen`, although it never changes: that would double the time to make one, and every request makes one.
@dataclass(slots=True)
class Decision(Generic[Reply]):
    """What a coordinator decided.

    `reply` is None when the request is parked (an `AnswerParked` effect answers it later) or when nobody asked.
    """

    reply: Reply | None
    records: tuple[StateRecord, ...] = ()
    effects: tuple[Effect, ...] = ()


class Coordinator(Protocol):
    """What a host needs of a coordinator. Its commands take a request and `now_ms` and return a `Decision`.

    The host calls one method at a time. It writes and replays a decision before it calls the next command. `loaded`
    and `tick` may return several decisions; no two of them change the same group or transactional id.
    """

    def partition_for(self, key: str, /) -> int:
        """The partition of the internal topic that stores this group or transactional id."""

    def key_of(self, record: StateRecord, /) -> str:
        """The group or transactional id of a record that a client wrote; `Refused` if no client may write it."""

    def load(self, partition: int, coordinator_epoch: int) -> None:
        """Start to load a partition: its stored records follow. Until `loaded`, its ids are refused."""

    def replay(self, record: StateRecord) -> None:
        """Take in a written record. This is the only way that stored state changes."""

    def loaded(self, partition: int, now_ms: int) -> list[Decision[Any]]:
        """All stored records are replayed: serve the partition. Returns what has to be finished."""

    def unload(self, partition: int) -> list[Decision[Any]]:
        """Forget a partition. Returns the answers to requests that are parked in it."""

    def append_failed(self, decision: Decision[Result], code: ErrorCode) -> Result | None:
        """Drop a decision whose records could not be written. Returns the reply to send instead.

        `code` is the error of the log. Parked requests that the decision would have answered get an error from the
        next `tick`, which is due at once.
        """

    def refused_reply(self, reply: Result, code: ErrorCode) -> Result:
        """The reply to send instead: what it tells was written, and then not replicated. `code` is the log's error."""

    def tick(self, now_ms: int) -> list[Decision[Any]]:
        """Do what is due: timeouts, retries, expirations."""

    def next_wake_ms(self) -> int | None:
        """When `tick` has something to do next. A time in the past means now, None means nothing is due."""
