"""What every broker-side machine promises its host.

A machine decides; its host does. A command is answered with a `Decision`: the records that must be durable before
anything else happens, the reply, and what to do afterwards. The host appends the records, hands each one back to
the machine's `replay`, and then performs the effects and sends the reply, in the order that the broker's durability
asks for (`broker/durability.py`). Recovery is the same `replay` over the stored records: there is no second code path.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from semel.machines.values import ProducerIdentity, TopicPartition

Reply = TypeVar("Reply", covariant=True)

Answered = TypeVar("Answered")

#: A question whose answer takes long, in steps: whoever asks may do other things in between. What is told of one group
#: or one transaction is told as it was at one moment.
Steps = Generator[None, None, Answered]
#: So many things are looked at in one step.
AT_ONCE = 100


def done(steps: Steps[Answered]) -> Answered:
    """All steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as last:
            answer: Answered = last.value
            return answer


#: Identifies a parked request. The host maps it to whoever waits for the answer.
Token = int


class StateRecord(NamedTuple):
    """One record of an internal topic; a `value` of None is a tombstone."""

    partition: int
    key: bytes
    value: bytes | None


class Effect:
    """Something the host does after the records are durable and replayed."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Answer(Effect):
    """A parked request has its answer now."""

    token: Token
    reply: object


@dataclass(frozen=True, slots=True)
class SendMarkers(Effect):
    """Write this transaction's outcome into every partition, then report back with `markers_written`.

    `producer_epoch` is the epoch the markers carry (under transaction protocol V2 already the bumped one).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Decision(Generic[Reply]):
    """What a machine decided.

    `reply` is None when the request is parked (an `Answer` effect comes later) or when nobody asked. With
    `producer` set, the records go into one transactional batch of that producer: they count when its marker comes.
    """

    reply: Reply | None
    records: tuple[StateRecord, ...] = ()
    effects: tuple[Effect, ...] = ()
    producer: ProducerIdentity | None = None
