"""What became of the transactions of a partition, by its own markers, as a history that can be judged.

Programs like Kafka's copiers do not tell when they begin and end transactions, but the log does: the batches of an
epoch of a producer up to its marker are one, the marker says how it ended and when. Beside it go the polls of a
reader that ran all the while, each with the time at which it returned: a record that was returned before its marker
was written is an uncommitted read, and one that the marker aborts is an aborted read whenever it was returned.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from confluent_kafka import Message

from semel.records.batch import read_records, split
from semel.records.markers import read_marker
from semel.testing.history import Ended, Operation, Outcome, Poll, Seen, Send
from tests.broker.raw import Raw

Value = Hashable


@dataclass(frozen=True, slots=True)
class TimedPoll:
    """What one poll returned, and when it did."""

    at_ms: int
    records: tuple[Seen, ...]


@dataclass(slots=True)
class StoredTransaction:
    """The records of one transaction in one partition; `committed` is None as long as there is no marker."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    records: list[tuple[int, Value]] = field(default_factory=list)
    committed: bool | None = None
    ended_at_ms: int = -1
    marker_epoch: int = -1

    @property
    def name(self) -> str:
        """The same in every partition where the marker's epoch belongs to one transaction, so that all are judged as
        one."""
        if self.marker_epoch > self.producer_epoch:
            return f"of producer {self.producer_id} up to epoch {self.marker_epoch}"
        return f"{self.topic}-{self.partition} of producer {self.producer_id} from {self.records[0][0]}"


def identity(key: bytes | None, value: bytes | None) -> Value:
    """What tells one record from another: values are unique, or they are so for their key."""
    return value if key is None else (key, value)


def timed_poll(messages: Sequence[Message]) -> TimedPoll:
    """The messages that a poll returned just now."""
    seen = (Seen(one.topic(), one.partition(), one.offset(), identity(one.key(), one.value())) for one in messages)
    return TimedPoll(time.time_ns() // 1_000_000, tuple(seen))


def stored_transactions(bootstrap_servers: str, topic: str, partition: int = 0) -> list[StoredTransaction]:
    """All transactions of a partition, in the order in which they began; every record must be in one."""
    found: list[StoredTransaction] = []
    opened: dict[int, StoredTransaction] = {}
    with Raw(bootstrap_servers) as raw:
        offset = 0
        while data := raw.fetch(topic, offset, partition=partition, max_wait_ms=0).records:
            for batch in split(data, partial_tail=True):  # Kafka fills an answer up with a part of the next batch
                offset = batch.next_offset
                if batch.is_control:
                    ended = opened.pop(batch.producer_id, None)
                    if ended is not None:
                        ended.committed = read_marker(batch).commit
                        ended.ended_at_ms = batch.max_timestamp
                        ended.marker_epoch = batch.producer_epoch
                    continue
                assert batch.is_transactional, f"{topic}-{partition}@{batch.base_offset} is in no transaction"
                transaction = opened.get(batch.producer_id)
                if transaction is None:
                    transaction = StoredTransaction(topic, partition, batch.producer_id, batch.producer_epoch)
                    opened[batch.producer_id] = transaction
                    found.append(transaction)
                for record in read_records(batch):
                    key = None if record.key is None else bytes(record.key)
                    value = None if record.value is None else bytes(record.value)
                    transaction.records.append((record.offset, identity(key, value)))
    return found


def history(
    transactions: Iterable[StoredTransaction], polls: Iterable[TimedPoll], *, in_order: Sequence[Value] = ()
) -> list[Operation]:
    """The history of a topic that only transactions write to, as seen by one reader of committed records.

    What is aborted is usually written again, so an aborted record goes by its value and its place. Values `in_order`
    must have been written, and in that order; others are taken as they come.
    """
    transactions = list(transactions)
    sends: dict[Value, Send] = {}
    dropped: list[Operation] = []
    aborted: dict[tuple[str, int, int], Value] = {}
    timed: list[tuple[int, Operation]] = []
    for one in transactions:
        for offset, value in one.records:
            if one.committed is False:
                value = aborted[one.topic, one.partition, offset] = ("aborted", offset, value)
                dropped.append(Send("dropped", one.topic, one.partition, value, offset, transaction=one.name))
            elif value not in sends:
                sends[value] = Send("writer", one.topic, one.partition, value, offset, transaction=one.name)
        if one.committed is not None:
            outcome = Outcome.OK if one.committed else Outcome.FAILED
            timed.append((one.ended_at_ms, Ended("writer", one.name, outcome)))
    for poll in polls:
        seen = (
            Seen(one.topic, one.partition, one.offset, aborted.get((one.topic, one.partition, one.offset), one.value))
            for one in poll.records
        )
        timed.append((poll.at_ms, Poll("reader", tuple(seen))))
    timed.sort(key=lambda pair: pair[0])  # stable: in the same millisecond the end comes first
    missing = [value for value in in_order if value not in sends]
    ordered: list[Operation] = [sends.pop(value) for value in in_order if value in sends]
    lost: list[Operation] = [Send("writer", "nowhere", 0, value) for value in missing]
    return [*ordered, *lost, *sends.values(), *dropped, *(operation for _, operation in timed)]
