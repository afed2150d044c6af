"""Why is a partition's last stable offset not moving? The diagnosis, from two views of the same transaction.

The partition knows which producer opened a transaction in it, and at which offset. The coordinator knows whether that
producer has a transaction open, and its outcome. If the two agree, the transaction will end. If the coordinator does
not know it, nobody will ever end it: it hangs. Nothing here talks to a broker.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from semel.machines.transactions.metadata import NO_TIMEOUT_MS
from semel.machines.transactions.states import PREPARED, STATES_BY_TITLE, TransactionState
from semel.machines.values import TopicPartition

#: How long after its timeout the abort of a transaction may take.
GRACE_MS = 30_000
#: A producer that has written nothing for so long may be dead.
SILENT_MS = 60_000
#: Semel's brokers give the time of the last write. Those of Apache Kafka give the newest record's timestamp, which the
#: producer sets: it tells when the producer wrote only as long as its records carry the time at which they are made.
TIMES_IN_WORDS = (
    "This goes by the last timestamp that the partitions give: with Semel the time of the write, with Apache Kafka the "
    "timestamp of the record, which may be older."
)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """The partition's view of one open transaction."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class CoordinatorView:
    """The coordinator's view of the transactional id behind a producer id."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: frozenset[TopicPartition]


class Verdict(enum.Enum):
    """The conclusion from the two views."""

    IN_PROGRESS = "in progress"
    SILENT = "silent"
    PREPARED_OUTSIDE = "two-phase"
    OVERDUE = "overdue"
    COMPLETING = "completing"
    UNKNOWN = "coordinator away"
    HANGING = "hanging"

    @property
    def is_trouble(self) -> bool:
        """Whether it will not end by itself, or nobody knows."""
        return self in (Verdict.OVERDUE, Verdict.HANGING, Verdict.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Finding:
    """One open transaction in a partition, with both views and the verdict."""

    partition: TopicPartition
    last_stable_offset: int
    high_watermark: int
    opened: PartitionView
    coordinated: CoordinatorView | None
    verdict: Verdict
    age_ms: int
    #: For how long nothing was written in the transaction, in any of its partitions; None when that is not known.
    silent_ms: int | None = 0
    #: Partitions of coordinators that could not be asked.
    away: frozenset[TopicPartition] = frozenset()

    @property
    def holds_readers(self) -> bool:
        """Whether readers of committed data stop at this transaction."""
        return self.opened.first_offset <= self.last_stable_offset

    @property
    def who(self) -> str:
        identity = f"producer id {self.opened.producer_id}, epoch {self.opened.producer_epoch}"
        if self.coordinated is None:
            return f"an unknown transactional id ({identity})"
        return f"transactional id {self.coordinated.transactional_id!r} ({identity})"

    def as_dict(self) -> dict[str, object]:
        coordinated: dict[str, object] | None = None
        if self.coordinated is not None:
            coordinated = asdict(self.coordinated)
            coordinated["partitions"] = sorted(map(str, self.coordinated.partitions))
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "last_stable_offset": self.last_stable_offset,
            "high_watermark": self.high_watermark,
            "verdict": self.verdict.value,
            "holds_readers": self.holds_readers,
            "age_ms": self.age_ms,
            "silent_ms": self.silent_ms,
            "partition_view": asdict(self.opened),
            "coordinator_view": coordinated,
            "meaning": meaning(self),
            "advice": advice(self),
        }


def judge(
    partition: TopicPartition,
    last_stable_offset: int,
    high_watermark: int,
    opened: PartitionView,
    coordinated: CoordinatorView | None,
    now_ms: int,
    last_written_ms: int = -1,
    seen_writing: bool = False,
    away: frozenset[TopicPartition] = frozenset(),
) -> Finding:
    """Compare the partition's view with the coordinator's.

    `away`: coordinators that could not be asked. Who is known to none of the others may be known to them.

    `last_written_ms`: the last timestamp of the producer in any of the transaction's partitions, if others were asked.
    `seen_writing`: the producer wrote between two looks, whatever the timestamps say.
    """
    verdict = _verdict(partition, opened, coordinated, now_ms)
    if verdict is Verdict.HANGING and coordinated is None and away:
        verdict = Verdict.UNKNOWN
    if verdict is not Verdict.HANGING and coordinated is not None and coordinated.start_ms >= 0:
        began_ms = coordinated.start_ms
    else:
        began_ms = opened.last_timestamp_ms if opened.last_timestamp_ms >= 0 else now_ms
    age_ms = max(0, now_ms - began_ms)
    silent_ms = 0 if seen_writing else _silent_ms(max(last_written_ms, opened.last_timestamp_ms), began_ms, now_ms)
    if verdict is Verdict.IN_PROGRESS and silent_ms is not None and silent_ms > SILENT_MS:
        verdict = Verdict.SILENT
    return Finding(
        partition, last_stable_offset, high_watermark, opened, coordinated, verdict, age_ms, silent_ms, away
    )


def _silent_ms(last_timestamp_ms: int, began_ms: int, now_ms: int) -> int | None:
    """How long ago the producer wrote last; None when the timestamp cannot be the time of a write.

    A record of the transaction is written after the transaction began, by the coordinator's clock, and before now. A
    timestamp outside of that was set by the producer, and says nothing about when it wrote. Clocks differ, and a record
    is made a moment before it is sent: so much is allowed.
    """
    if not began_ms - SILENT_MS <= last_timestamp_ms <= now_ms + SILENT_MS:
        return None
    # Nobody was silent in the transaction before it began.
    return min(max(0, now_ms - began_ms), max(0, now_ms - last_timestamp_ms))


def _verdict(
    partition: TopicPartition, opened: PartitionView, coordinated: CoordinatorView | None, now_ms: int
) -> Verdict:
    if coordinated is None or coordinated.producer_id != opened.producer_id:
        return Verdict.HANGING
    state = STATES_BY_TITLE.get(coordinated.state)
    if state in PREPARED and partition in coordinated.partitions:
        return Verdict.COMPLETING
    if state is not TransactionState.ONGOING or partition not in coordinated.partitions:
        return Verdict.HANGING
    if coordinated.timeout_ms == NO_TIMEOUT_MS:
        return Verdict.PREPARED_OUTSIDE
    overdue = now_ms > coordinated.start_ms + coordinated.timeout_ms + GRACE_MS
    return Verdict.OVERDUE if overdue else Verdict.IN_PROGRESS


def meaning(finding: Finding) -> str:
    """What is happening, in a sentence or two."""
    coordinated = finding.coordinated
    match finding.verdict:
        case Verdict.HANGING:
            known = "knows of no such transaction"
            if coordinated is not None:
                known = f"says {coordinated.transactional_id!r} is {coordinated.state}, without this partition"
            return (
                f"The partition waits for a marker that nobody will write: the coordinator {known}. The transaction "
                "hangs and will never end by itself."
            )
        case Verdict.UNKNOWN:
            names = ", ".join(sorted(map(str, finding.away))[:3]) + (", ..." if len(finding.away) > 3 else "")
            return (
                f"No coordinator that could be asked knows the transaction, and {names} has no leader or has just got "
                "another one: the coordinator behind it may know it, and may have decided it."
            )
        case Verdict.COMPLETING:
            assert coordinated is not None
            outcome = "committed" if coordinated.state == TransactionState.PREPARE_COMMIT.title else "aborted"
            return (
                f"The transaction is decided: it will be {outcome}. Its marker is on the way to this partition and is "
                "retried until it is written. If that never ends, the partition refuses it: it has seen a marker of a "
                "higher epoch, which was not this coordinator's."
            )
        case Verdict.PREPARED_OUTSIDE:
            return (
                "The transaction takes part in a two-phase commit: it has no timeout and stays open until its outside "
                "coordinator ends it."
            )
        case Verdict.OVERDUE:
            assert coordinated is not None
            return (
                f"The transaction is open for longer than its timeout of {duration(coordinated.timeout_ms)}: the "
                "coordinator should have aborted it by now."
            )
        case Verdict.SILENT:
            assert coordinated is not None
            left_ms = max(0, coordinated.timeout_ms - finding.age_ms)
            assert finding.silent_ms is not None
            return (
                f"It seems that nothing was written in the transaction for {duration(finding.silent_ms)}: its producer "
                f"is busy with something else, hangs, or has died. {TIMES_IN_WORDS} If the producer does not end the "
                f"transaction, the coordinator aborts it in {duration(left_ms)} at the latest, and readers wait until "
                "then."
            )
        case Verdict.IN_PROGRESS:
            assert coordinated is not None
            left_ms = max(0, coordinated.timeout_ms - finding.age_ms)
            ends = f"If it does not end it, the coordinator aborts it in {duration(left_ms)} at the latest."
            if finding.silent_ms is None:
                return (
                    "The producer has a transaction open. When it last wrote is not known: its records do not carry "
                    f"the time at which they were written. {ends}"
                )
            return (
                f"The producer has a transaction open and last wrote {duration(finding.silent_ms)} ago, as it should "
                f"be. {ends}"
            )


def advice(finding: Finding) -> str:
    """What is safe to do."""
    match finding.verdict:
        case Verdict.HANGING:
            return "It is safe to write the missing abort marker (--fix): no record of it was ever committed."
        case Verdict.UNKNOWN:
            return (
                "Ask again in a moment. If it stays like this, start the brokers that hold the coordinator's partition "
                "(`semel cluster status` names them). Nothing is safe before that, and --fix does nothing."
            )
        case Verdict.COMPLETING:
            return (
                "Wait a moment. If it stays like this, it is safe to write the outcome that was decided (--fix), which "
                "the partition then takes; the log of the broker that leads it says why it took no other."
            )
        case Verdict.PREPARED_OUTSIDE:
            return (
                "Ask its outside coordinator first: aborting (--fix) loses what it may already have promised to "
                "commit. Abort only if that coordinator is gone for good."
            )
        case Verdict.OVERDUE:
            return "It is safe to abort it (--fix): its producer is fenced, and its records stay invisible."
        case Verdict.SILENT:
            return (
                "Look whether its producer still runs. If not, abort the transaction (--fix), or start the producer "
                "again, which aborts it too: its records stay invisible. If it does run, aborting is safe for the data "
                "as well, but fences it."
            )
        case Verdict.IN_PROGRESS:
            return (
                "Wait, or look at why its producer is slow. Aborting it now (--fix) is safe for the data, but fences "
                "the producer, which then has to start again."
            )


def explain(finding: Finding) -> str:
    """The whole finding as text."""
    opened, coordinated = finding.opened, finding.coordinated
    count = finding.high_watermark - finding.last_stable_offset
    held_back = "1 offset is" if count == 1 else f"{count} offsets are"
    lines = [f"{finding.partition}: {finding.verdict.value}"]
    if finding.holds_readers:
        lines.append(
            f"  Readers of committed data stop at offset {finding.last_stable_offset}; the log goes on to "
            f"{finding.high_watermark}, so {held_back} held back."
        )
    else:
        lines.append(f"  Also open, behind the offset at which readers stop ({finding.last_stable_offset}).")
    lines.append(f"  Held by      {finding.who}, for {duration(finding.age_ms)}.")
    lines.append(
        f"  Partition    open since offset {opened.first_offset}, last sequence {opened.last_sequence}, "
        f"last timestamp {moment(opened.last_timestamp_ms)}."
    )
    if coordinated is None:
        known = "of those that could be asked, " if finding.away else ""
        lines.append(f"  Coordinator  {known}no transactional id has this producer id.")
    else:
        partitions = ", ".join(sorted(map(str, coordinated.partitions))) or "none"
        timeout = "none" if coordinated.timeout_ms == NO_TIMEOUT_MS else duration(coordinated.timeout_ms)
        lines.append(
            f"  Coordinator  {coordinated.state}, epoch {coordinated.producer_epoch}, begun "
            f"{moment(coordinated.start_ms)}, timeout {timeout}, partitions: {partitions}."
        )
    lines.append(f"  Meaning      {meaning(finding)}")
    lines.append(f"  Safe to do   {advice(finding)}")
    return "\n".join(lines)


def duration(span_ms: int) -> str:
    """A duration as text: `4 min 12 s`."""
    seconds, milliseconds = divmod(span_ms, 1000)
    if seconds == 0:
        return f"{milliseconds} ms"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    shown = [f"{count} {unit}" for count, unit in parts if count]
    return " ".join(shown[:2])


def moment(at_ms: int) -> str:
    if at_ms < 0:
        return "never"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
