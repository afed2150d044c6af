"""The producer state of one partition: the partition's half of exactly-once.

It guarantees that a retried batch is recognised and answered with the offset it already has, that a new batch is never
taken for a retry of one from an ended transaction, that a fenced producer or coordinator writes nothing, that a
transaction cannot begin here without its coordinator knowing, and that the last stable offset never passes data of an
open transaction.

The order is *check, write, remember*. A `check_*` method changes nothing: it refuses, recognises a retry, or allows the
write. A `remember_*` method is called once the bytes are in the log. Nothing is remembered that was not
written. Recovery calls the same `remember_*` methods for what it finds in the log, so there is no second set of rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from semel.errors import ErrorCode, InvariantViolation, Refused
from semel.machines.producing.verifications import Guard, Verifications
from semel.records.batch import Batch
from semel.records.layout import TRANSACTIONAL

#: How many batches of a producer can be recognised as retries: the most a client may have in flight.
REMEMBERED_BATCHES = 5
NO_PRODUCER_ID = -1
NO_EPOCH = -1
NO_SEQUENCE = -1

_SEQUENCES = 1 << 31
_HALF_OF_THE_SEQUENCES = 1 << 30


def precedes(sequence: int, other: int) -> bool:
    """Whether a sequence comes before another. Sequences wrap around to 0."""
    return 0 < (other - sequence) % _SEQUENCES < _HALF_OF_THE_SEQUENCES


class WrittenBatch(NamedTuple):
    """A batch in the log: enough to recognise a retry and answer it. One is made per append."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        if self.last_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.last_sequence - self.offset_delta) % _SEQUENCES


class ProducerEntry:
    """One producer id as this partition knows it.

    `batches` are all of `producer_epoch`. `contiguous_from_zero`: every sequence of the epoch up to the last one was
    written. Only then is "you sent that long ago" (DUPLICATE_SEQUENCE_NUMBER) a safe answer.
    """

    __slots__ = (
        "batches",
        "contiguous_from_zero",
        "coordinator_epoch",
        "current_transaction_first_offset",
        "heard_ms",
        "last_marker_offset",
        "last_timestamp_ms",
        "producer_epoch",
        "producer_id",
    )

    def __init__(self, producer_id: int, producer_epoch: int = NO_EPOCH, coordinator_epoch: int = -1) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp_ms = -1
        self.heard_ms = -1
        self.current_transaction_first_offset = -1
        self.batches: list[WrittenBatch] = []
        self.contiguous_from_zero = False
        self.last_marker_offset = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def has_open_transaction(self) -> bool:
        return self.current_transaction_first_offset >= 0

    def answers_for(self, written: WrittenBatch, transactional: bool) -> bool:
        """Whether a batch with the sequences of `written` is its retry.

        A transaction's batch can only repeat one of the transaction that is open: under protocol V1 the epoch outlives
        a transaction, so a sequence used again after a marker is a new record, and the old one may be aborted. What a
        snapshot holds is enough to tell, so a restart changes no answer.
        """
        if transactional:
            return 0 <= self.current_transaction_first_offset <= written.first_offset
        # A marker was written for this producer, or will be: its batch may have been one of a transaction.
        return self.coordinator_epoch < 0 and self.current_transaction_first_offset < 0

    def began_at_or_before(self, sequence: int) -> bool:
        """Whether the open transaction is known to have begun with this sequence or an earlier one."""
        for written in self.batches:
            if written.first_offset == self.current_transaction_first_offset:
                return not precedes(sequence, written.first_sequence)
        return False

    def facts(self) -> tuple[object, ...]:
        """Everything that survives a restart, to compare two histories."""
        return (
            self.producer_id,
            self.producer_epoch,
            self.coordinator_epoch,
            self.last_timestamp_ms,
            self.current_transaction_first_offset,
            tuple((batch.last_sequence, batch.last_offset, batch.offset_delta) for batch in self.batches),
        )

    def __repr__(self) -> str:
        return (
            f"ProducerEntry({self.producer_id}, epoch={self.producer_epoch}, last_sequence={self.last_sequence}, "
            f"last_offset={self.last_offset}, coordinator_epoch={self.coordinator_epoch}, "
            f"transaction_from={self.current_transaction_first_offset})"
        )


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that a marker ends: its range in this log and where the last stable offset may go after it."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int


class ProducerStates:
    """Every producer of one partition."""

    __slots__ = ("_first_open", "_open", "_unreplicated", "entries", "verifications")

    def __init__(self) -> None:
        self.entries: dict[int, ProducerEntry] = {}
        # First offset of each open transaction -> producer id.
        self._open: dict[int, int] = {}
        self._first_open = -1
        # Ended by a marker that is not yet below the high watermark: (first offset, marker offset), oldest first.
        self._unreplicated: list[tuple[int, int]] = []
        self.verifications = Verifications()

    # ------------------------------------------------------------------ check

    def check_data(
        self,
        producer_id: int,
        producer_epoch: int,
        first_sequence: int,
        last_sequence: int,
        transactional: bool,
    ) -> WrittenBatch | None:
        """Check a client's batch. None: it may be written. A `WrittenBatch`: this is its retry. Otherwise `Refused`."""
        entry = self.entries.get(producer_id)
        if entry is None:
            if self.verifications:
                self.verifications.check_sequence(producer_id, producer_epoch, first_sequence, known=False)
            return None
        epoch = entry.producer_epoch
        if producer_epoch == epoch:
            batches = entry.batches
            expected = (batches[-1].last_sequence + 1) % _SEQUENCES if batches else 0
            if first_sequence != expected:
                for written in batches:
                    if written.last_sequence == last_sequence and written.first_sequence == first_sequence:
                        if not entry.answers_for(written, transactional):
                            break
                        return written
                self.verifications.check_sequence(producer_id, producer_epoch, first_sequence, known=True)
                raise self._out_of_sequence(entry, first_sequence, last_sequence, expected, transactional)
            if self.verifications:
                self.verifications.check_sequence(producer_id, producer_epoch, first_sequence, known=True)
        else:
            self.check_epoch(producer_id, producer_epoch)
            self.verifications.check_sequence(producer_id, producer_epoch, first_sequence, known=epoch != NO_EPOCH)
            if first_sequence != 0 and epoch != NO_EPOCH:
                raise Refused(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} begins epoch {producer_epoch} at sequence {first_sequence}, not 0",
                )
        if not transactional and entry.current_transaction_first_offset >= 0:
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has a transaction open since offset "
                f"{entry.current_transaction_first_offset} and sent a batch outside of it",
            )
        return None

    def expected_sequence(self, producer_id: int, producer_epoch: int) -> int | None:
        """The sequence that comes next; None if nothing is known of the producer."""
        entry = self.entries.get(producer_id)
        if entry is None or entry.producer_epoch == NO_EPOCH:
            return None
        if entry.producer_epoch != producer_epoch or not entry.batches:
            return 0
        return (entry.batches[-1].last_sequence + 1) % _SEQUENCES

    def check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Check the epoch alone: a coordinator's own batches have no sequences."""
        entry = self.entries.get(producer_id)
        if entry is not None and producer_epoch < entry.producer_epoch:
            raise Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {producer_epoch}, but {entry.producer_epoch} was seen here",
            )

    def check_verified(self, producer_id: int, producer_epoch: int, guard: Guard | None) -> None:
        """A transactional batch needs an open transaction, or a guard that is still valid."""
        if self.in_transaction(producer_id, producer_epoch):
            return
        if not self.verifications.holds(producer_id, producer_epoch, guard):
            raise Refused(
                ErrorCode.INVALID_TXN_STATE,
                f"the coordinator has not confirmed that producer {producer_id} has a transaction on this partition",
            )

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, transaction_version: int
    ) -> int | None:
        """None: the marker may be written. Otherwise this is a retry: the offset of the original, -1 if not known."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return None
        bumped = transaction_version >= 2
        same_epoch = producer_epoch == entry.producer_epoch
        if producer_epoch < entry.producer_epoch or (bumped and same_epoch and entry.has_open_transaction):
            raise Refused(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the marker for producer {producer_id} has epoch {producer_epoch}, "
                f"the partition is at {entry.producer_epoch}",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise Refused(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {entry.coordinator_epoch} was written here, this one has "
                f"{coordinator_epoch}",
            )
        # Only V2 gives every transaction its own epoch, so only there the same epoch proves a retry. A retry by a newer
        # coordinator is still written: its epoch must be in the log to fence the older coordinator.
        if bumped and same_epoch and coordinator_epoch == entry.coordinator_epoch:
            return entry.last_marker_offset
        return None

    @staticmethod
    def _out_of_sequence(
        entry: ProducerEntry, first: int, last: int, expected: int, transactional: bool
    ) -> Refused:
        sent = f"producer {entry.producer_id} epoch {entry.producer_epoch} sent sequences {first}-{last}"
        if transactional:
            if precedes(first, expected) and not entry.began_at_or_before(first):
                # Clients that keep a transaction's sequences abort on this code and go on under a new epoch; after
                # OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka does not go on at all.
                return Refused(
                    ErrorCode.UNKNOWN_PRODUCER_ID,
                    f"{sent} again, which are not of the transaction it has open: abort it and ask for a new epoch",
                )
        elif (
            entry.batches
            and entry.contiguous_from_zero
            and entry.answers_for(entry.batches[0], transactional)
            and precedes(last, entry.batches[0].first_sequence)
        ):
            return Refused(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                f"sequences {first}-{last} of producer {entry.producer_id} were written longer ago than the "
                f"{REMEMBERED_BATCHES} batches whose offsets are kept",
            )
        return Refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{sent}; {expected} comes next")

    # --------------------------------------------------------------- remember

    def remember_data(self, batch: Batch, first_offset: int, timestamp_ms: int, *, heard_ms: int) -> None:
        """The batch is in the log at `first_offset`, with `timestamp_ms` as its largest timestamp.

        `heard_ms`: the broker's clock. It keeps a producer alive, however old its records are.
        """
        producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
        offset_delta = batch.last_offset_delta
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id)
        if producer_epoch != entry.producer_epoch:
            entry.producer_epoch = producer_epoch
            entry.batches.clear()
        batches = entry.batches
        if not batches:
            entry.contiguous_from_zero = batch.base_sequence == 0
        elif len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        batches.append(WrittenBatch(batch.last_sequence, first_offset + offset_delta, offset_delta, timestamp_ms))
        entry.last_timestamp_ms = timestamp_ms
        entry.heard_ms = heard_ms
        if batch.attributes & TRANSACTIONAL:
            if entry.current_transaction_first_offset < 0:
                entry.current_transaction_first_offset = first_offset
                self._open[first_offset] = producer_id
                if self._first_open < 0:
                    self._first_open = first_offset
            self.verifications.forget(producer_id)

    def completes(self, producer_id: int, marker_offset: int, commit: bool) -> CompletedTransaction | None:
        """The transaction that a marker at this offset ends; None if none is open. Changes nothing: the transaction
        index has to be written first."""
        entry = self.entries.get(producer_id)
        if entry is None or not entry.has_open_transaction:
            return None
        first = entry.current_transaction_first_offset
        if first == self._first_open:
            others = min((offset for offset in self._open if offset != first), default=marker_offset + 1)
        else:
            others = self._first_open
        return CompletedTransaction(producer_id, first, marker_offset, not commit, others)

    def remember_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, marker_offset: int, timestamp_ms: int
    ) -> None:
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id)
        if producer_epoch != entry.producer_epoch:
            entry.producer_epoch = producer_epoch
            entry.batches.clear()
            entry.contiguous_from_zero = False
        entry.coordinator_epoch = coordinator_epoch
        # K-9144: a marker keeps its producer alive, also when no data batch is left.
        entry.last_timestamp_ms = timestamp_ms
        entry.last_marker_offset = marker_offset
        first = entry.current_transaction_first_offset
        if first >= 0:
            entry.current_transaction_first_offset = -1
            owner = self._open.pop(first, None)
            if owner != producer_id:
                raise InvariantViolation(f"transaction at {first} ended by {producer_id} belongs to {owner}")
            if first == self._first_open:
                self._first_open = min(self._open, default=-1)
            self._unreplicated.append((first, marker_offset))
        self.verifications.forget(producer_id)

    # ------------------------------------------------------------ verification

    def in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        entry = self.entries.get(producer_id)
        return (
            entry is not None
            and entry.current_transaction_first_offset >= 0
            and entry.producer_epoch == producer_epoch
        )

    def start_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        first_sequence: int,
        now_ms: int,
        supports_epoch_bump: bool = False,
    ) -> Guard | None:
        """A guard to hold while the coordinator is asked; None if the transaction is already open here."""
        if self.in_transaction(producer_id, producer_epoch):
            return None
        expected = self.expected_sequence(producer_id, producer_epoch)
        if expected is not None and precedes(first_sequence, expected):
            # It was written before: a request that the network held up, on a connection that its client has given up.
            # It has no later batch to wait for it. The next new one would be refused, and librdkafka give up for good.
            first_sequence = expected
        return self.verifications.begin(producer_id, producer_epoch, first_sequence, now_ms, supports_epoch_bump)

    # ---------------------------------------------------------------- stability

    @property
    def first_unstable_offset(self) -> int:
        """The first offset of a transaction whose outcome is not final; -1 when there is none."""
        first = self._first_open
        if self._unreplicated:
            unreplicated = min(entry[0] for entry in self._unreplicated)
            if first < 0 or unreplicated < first:
                return unreplicated
        return first

    @property
    def first_open_offset(self) -> int:
        return self._first_open

    @property
    def open_transactions(self) -> dict[int, int]:
        """First offset -> producer id, oldest first."""
        return dict(sorted(self._open.items()))

    def replicated_to(self, high_watermark: int) -> None:
        """Markers below the high watermark are final: their transactions no longer hold back the last stable offset."""
        if self._unreplicated:
            self._unreplicated = [entry for entry in self._unreplicated if entry[1] >= high_watermark]

    # ------------------------------------------------------------------- ageing

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Forget producers that have been idle for `expiration_ms`. One with an open transaction is never idle."""
        gone = [
            producer_id
            for producer_id, entry in self.entries.items()
            if not entry.has_open_transaction
            and now_ms - max(entry.last_timestamp_ms, entry.heard_ms) >= expiration_ms
        ]
        for producer_id in gone:
            del self.entries[producer_id]
        self.verifications.expire(now_ms, expiration_ms)
        return gone

    # ---------------------------------------------------------------- snapshots

    def load(self, entries: Iterable[ProducerEntry]) -> None:
        """Replace everything by the entries of a snapshot."""
        self.entries = {entry.producer_id: entry for entry in entries}
        self._open = {
            entry.current_transaction_first_offset: entry.producer_id
            for entry in self.entries.values()
            if entry.has_open_transaction
        }
        self._first_open = min(self._open, default=-1)
        self._unreplicated = []
        self.verifications = Verifications()

    def facts(self) -> dict[int, tuple[object, ...]]:
        return {producer_id: entry.facts() for producer_id, entry in self.entries.items()}

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)
