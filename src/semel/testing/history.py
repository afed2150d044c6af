"""Checks what clients saw: takes the history of a run and returns every anomaly in it, by kind.

The kinds follow jepsen.tests.kafka. The checker is pure and does not know where the history comes from: a simulation, a
fault test with real clients, or a production trace. It needs one thing: every value sent is unique within its history.
If an outcome is *unknown* (a timeout, a crash) both results are allowed, but a transaction must still be all or
nothing.

    >>> sent = Send("p", "ledger", 0, "a", offset=0)
    >>> again = Poll("c", (Seen("ledger", 0, 0, "a"), Seen("ledger", 0, 1, "a")))
    >>> [str(anomaly) for anomaly in judge([sent, again])]
    ["duplicate: 'a' is at ledger-0@0 and ledger-0@1"]

Two things are allowed, and so not reported: sends of different producers that interleave, and cycles of writes only
(there is no write isolation between transactions).
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

Value = Hashable
Partition = tuple[str, int]


class Outcome(enum.Enum):
    """What the client was told. A timeout is unknown, never failed."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Send:
    """One record sent. `offset` if the acknowledgement had it; `transaction` if it belongs to one."""

    process: str
    topic: str
    partition: int
    value: Value
    offset: int | None = None
    outcome: Outcome = Outcome.OK
    transaction: Hashable | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """One record as a poll returned it."""

    topic: str
    partition: int
    offset: int
    value: Value


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll returned, in order. `transaction` if its offsets are committed in one."""

    process: str
    records: tuple[Seen, ...]
    committed_only: bool = True
    transaction: Hashable | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """The positions of a process: it got everything readable from its last known position up to here.

    The first one after an assignment says where it starts. A reader of committed records at the last stable offset of
    every partition has seen whole transactions; with this a history can say so, also for the last records.
    """

    process: str
    positions: tuple[tuple[Partition, int], ...]


@dataclass(frozen=True, slots=True)
class Assigned:
    """The process got these partitions, or changed its position: its next read may start anywhere."""

    process: str
    partitions: frozenset[Partition]


@dataclass(frozen=True, slots=True)
class Ending:
    """The process asks for the end of a transaction. Nothing of it may be visible before."""

    process: str
    transaction: Hashable


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a transaction, as its process was told: OK is committed, FAILED is aborted."""

    process: str
    transaction: Hashable
    outcome: Outcome


Operation = Send | Poll | Reached | Assigned | Ending | Ended


class AnomalyKind(enum.Enum):
    """The kinds of anomalies."""

    INCONSISTENT_OFFSETS = "inconsistent offsets"
    DUPLICATE = "duplicate"
    LOST_WRITE = "lost write"
    UNSEEN = "unseen"
    ABORTED_READ = "aborted read"
    UNCOMMITTED_READ = "uncommitted read"
    TORN_TRANSACTION = "torn transaction"
    POLL_SKIP = "poll skip"
    POLL_BACK = "poll back"
    SEND_BACK = "send back"
    WRITE_READ_CYCLE = "write-read cycle"
    UNWRITTEN_READ = "unwritten read"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One anomaly, with the evidence as text."""

    kind: AnomalyKind
    what: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.what}"


def judge(history: Iterable[Operation], *, at_rest: bool = False) -> list[Anomaly]:
    """Every anomaly of a history.

    With `at_rest` the history must end with reads up to the end of every partition: then an acknowledged record that
    nobody read is an anomaly, even above the highest position read.
    """
    return list(_Judge(list(history), at_rest).anomalies())


@dataclass(slots=True)
class _Stretch:
    """A range that a process read without a gap: everything readable from `first` up to `end`."""

    first: int
    end: int


def _place(partition: Partition, offset: int) -> str:
    return f"{partition[0]}-{partition[1]}@{offset}"


class _Judge:
    """The history, with the indexes that the checks need."""

    def __init__(self, history: Sequence[Operation], at_rest: bool) -> None:
        self.history = history
        self.at_rest = at_rest
        self.sends: dict[Value, Send] = {}
        self.ended: dict[Hashable, Outcome] = {}
        self.ending_at: dict[Hashable, int] = {}
        self.values_at: dict[Partition, dict[int, set[Value]]] = defaultdict(lambda: defaultdict(set))
        self.places: dict[Value, set[tuple[Partition, int]]] = defaultdict(set)
        self.read: set[Value] = set()
        self.highest_read: dict[Partition, int] = {}
        #: What each reader of committed records got: values, and stretches by partition.
        self.given: dict[str, set[Value]] = defaultdict(set)
        self.stretches: dict[tuple[str, Partition], list[_Stretch]] = defaultdict(list)
        begun: dict[tuple[str, Partition], _Stretch] = {}
        for position, operation in enumerate(history):
            match operation:
                case Send():
                    self.sends[operation.value] = operation
                    if operation.offset is not None and operation.outcome is Outcome.OK:
                        self._note_place((operation.topic, operation.partition), operation.offset, operation.value)
                case Poll():
                    for seen in operation.records:
                        partition = (seen.topic, seen.partition)
                        self._note_place(partition, seen.offset, seen.value)
                        if operation.committed_only:
                            self.read.add(seen.value)
                            self.given[operation.process].add(seen.value)
                            self._note_position(begun, operation.process, partition, seen.offset, seen.offset + 1)
                case Reached():
                    for partition, place in operation.positions:
                        self._note_position(begun, operation.process, partition, place, place)
                case Assigned():
                    for partition in operation.partitions:
                        begun.pop((operation.process, partition), None)
                case Ending():
                    self.ending_at.setdefault(operation.transaction, position)
                case Ended():
                    self.ended[operation.transaction] = operation.outcome
                    self.ending_at.setdefault(operation.transaction, position)
        self.must_be_readable = {value for value, send in self.sends.items() if self.fate(send) is Outcome.OK}

    def _note_place(self, partition: Partition, offset: int, value: Value) -> None:
        self.values_at[partition][offset].add(value)
        self.places[value].add((partition, offset))

    def _note_position(
        self, begun: dict[tuple[str, Partition], _Stretch], process: str, partition: Partition, first: int, end: int
    ) -> None:
        stretch = begun.get((process, partition))
        if stretch is None:
            stretch = begun[process, partition] = _Stretch(first, end)
            self.stretches[process, partition].append(stretch)
        stretch.end = max(stretch.end, end)
        if stretch.first < stretch.end:
            self.highest_read[partition] = max(self.highest_read.get(partition, -1), stretch.end - 1)

    def fate(self, send: Send) -> Outcome:
        """Whether a reader of committed records must (OK), must not (FAILED) or may (UNKNOWN) see the record."""
        if send.transaction is None:
            return send.outcome
        ended = self.ended.get(send.transaction, Outcome.UNKNOWN)
        return send.outcome if ended is Outcome.OK else ended

    def below_a_read(self, value: Value) -> bool:
        """Whether a reader has passed the place of the record. Records without a known place are checked `at_rest`."""
        return any(offset <= self.highest_read.get(partition, -1) for partition, offset in self.places[value])

    def anomalies(self) -> Iterator[Anomaly]:
        yield from self.inconsistent_offsets()
        yield from self.duplicates()
        yield from self.missing()
        yield from self.reads_that_must_not_be()
        yield from self.torn_transactions()
        yield from self.torn_views()
        yield from self.poll_order()
        yield from self.send_order()
        yield from self.write_read_cycles()

    def inconsistent_offsets(self) -> Iterator[Anomaly]:
        for partition, offsets in self.values_at.items():
            for offset, values in offsets.items():
                if len(values) > 1:
                    held = " and ".join(sorted(map(repr, values)))
                    yield Anomaly(AnomalyKind.INCONSISTENT_OFFSETS, f"{_place(partition, offset)} held {held}")

    def duplicates(self) -> Iterator[Anomaly]:
        for value, places in self.places.items():
            if len(places) > 1:
                where = " and ".join(_place(*place) for place in sorted(places))
                yield Anomaly(AnomalyKind.DUPLICATE, f"{value!r} is at {where}")

    def missing(self) -> Iterator[Anomaly]:
        for value in self.must_be_readable - self.read:
            acknowledged = f"{value!r} of {self.sends[value].process} was acknowledged"
            if self.below_a_read(value):
                yield Anomaly(AnomalyKind.LOST_WRITE, f"{acknowledged}, passed, and never read")
            elif self.at_rest:
                yield Anomaly(AnomalyKind.UNSEEN, f"{acknowledged}, and is not there at rest")

    def reads_that_must_not_be(self) -> Iterator[Anomaly]:
        for position, poll in enumerate(self.history):
            if not isinstance(poll, Poll):
                continue
            for seen in poll.records:
                where = f"{seen.value!r} at {_place((seen.topic, seen.partition), seen.offset)}, read by {poll.process}"
                send = self.sends.get(seen.value)
                if send is None:
                    yield Anomaly(AnomalyKind.UNWRITTEN_READ, f"{where}, was never sent")
                elif not poll.committed_only:
                    continue
                elif self.fate(send) is Outcome.FAILED:
                    yield Anomaly(AnomalyKind.ABORTED_READ, where)
                elif send.transaction is not None and position < self.ending_at.get(send.transaction, position + 1):
                    own = ", its own writer," if poll.process == send.process else ""
                    yield Anomaly(AnomalyKind.UNCOMMITTED_READ, f"{where}{own} before the end of {send.transaction!r}")

    def parts(self) -> dict[Hashable, list[Value]]:
        """The acknowledged records of each transaction."""
        parts: dict[Hashable, list[Value]] = defaultdict(list)
        for value, send in self.sends.items():
            if send.transaction is not None and send.outcome is Outcome.OK:
                parts[send.transaction].append(value)
        return parts

    def torn_transactions(self) -> Iterator[Anomaly]:
        """For transactions with unknown outcome: one part was read, and another was passed without being read."""
        for transaction, values in self.parts().items():
            if self.ended.get(transaction, Outcome.UNKNOWN) is not Outcome.UNKNOWN:
                continue
            unread = [value for value in values if value not in self.read]
            if len(unread) == len(values):
                continue
            for value in unread:
                if self.at_rest or self.below_a_read(value):
                    yield Anomaly(AnomalyKind.TORN_TRANSACTION, f"{transaction!r} is visible, but not its {value!r}")

    def torn_views(self) -> Iterator[Anomaly]:
        """One reader saw a part of a transaction, and passed another part that other readers saw.

        Markers reach partitions one by one, so a reader may see a part before the rest is visible. But a reader that
        passes a record of a committed transaction must have got it.
        """
        parts = self.parts()
        for process, given in self.given.items():
            seen = {send.transaction for value in given if (send := self.sends.get(value)) is not None}
            for transaction in seen & parts.keys():
                for value in parts[transaction]:
                    if value in self.read and value not in given and self._has_passed(process, value):
                        what = f"{process} saw {transaction!r}, but passed its {value!r} unseen"
                        yield Anomaly(AnomalyKind.TORN_TRANSACTION, what)

    def _has_passed(self, process: str, value: Value) -> bool:
        return any(
            stretch.first <= offset < stretch.end
            for partition, offset in self.places[value]
            for stretch in self.stretches.get((process, partition), ())
        )

    def poll_order(self) -> Iterator[Anomaly]:
        readable: dict[Partition, list[int]] = defaultdict(list)
        for value in self.must_be_readable:
            for partition, offset in self.places[value]:
                readable[partition].append(offset)
        for offsets in readable.values():
            offsets.sort()
        last: dict[tuple[str, Partition], int] = {}
        for operation in self.history:
            if isinstance(operation, Assigned):
                for partition in operation.partitions:
                    last.pop((operation.process, partition), None)
            if isinstance(operation, Reached):
                for partition, place in operation.positions:
                    stood = last.setdefault((operation.process, partition), place - 1)
                    last[operation.process, partition] = max(stood, place - 1)
                    what = f"{operation.process} stands at {_place(partition, place)} after {stood}"
                    if place <= stood:
                        yield Anomaly(AnomalyKind.POLL_BACK, what)
                    elif (skipped := _first_between(readable[partition], stood, place)) is not None:
                        yield Anomaly(AnomalyKind.POLL_SKIP, f"{what}, and was not given {skipped}")
            if not isinstance(operation, Poll):
                continue
            for seen in operation.records:
                partition = (seen.topic, seen.partition)
                before = last.get((operation.process, partition))
                last[operation.process, partition] = seen.offset
                if before is None:
                    continue
                if seen.offset <= before:
                    what = f"{operation.process} read {_place(partition, seen.offset)} after {before}"
                    yield Anomaly(AnomalyKind.POLL_BACK, what)
                elif (skipped := _first_between(readable[partition], before, seen.offset)) is not None:
                    what = f"{operation.process} read {_place(partition, seen.offset)} after {before}"
                    yield Anomaly(AnomalyKind.POLL_SKIP, f"{what}, and not {skipped}")

    def send_order(self) -> Iterator[Anomaly]:
        last: dict[tuple[str, Partition], tuple[int, Value]] = {}
        for operation in self.history:
            if not isinstance(operation, Send):
                continue
            partition = (operation.topic, operation.partition)
            places = [offset for where, offset in self.places[operation.value] if where == partition]
            if len(places) != 1 or operation.outcome is Outcome.FAILED:
                continue
            before = last.get((operation.process, partition))
            last[operation.process, partition] = (places[0], operation.value)
            if before is not None and places[0] < before[0]:
                what = f"{operation.process} sent {operation.value!r} after {before[1]!r}, but it is at "
                yield Anomaly(AnomalyKind.SEND_BACK, f"{what}{_place(partition, places[0])}, before {before[0]}")

    def write_read_cycles(self) -> Iterator[Anomaly]:
        """G1c, by reads only: a transaction that read something that depends on its own writes."""
        readers: dict[Hashable, set[Hashable]] = defaultdict(set)
        for poll in self.history:
            if isinstance(poll, Poll) and poll.transaction is not None:
                for seen in poll.records:
                    send = self.sends.get(seen.value)
                    if send is not None and send.transaction is not None and send.transaction != poll.transaction:
                        readers[send.transaction].add(poll.transaction)
        for component in _strong_components(readers):
            if len(component) > 1:
                names = ", ".join(sorted(map(repr, component)))
                yield Anomaly(AnomalyKind.WRITE_READ_CYCLE, f"each of {names} read what another of them wrote")


def _first_between(offsets: list[int], low: int, high: int) -> int | None:
    """The first of the sorted offsets that is strictly between `low` and `high`."""
    index = bisect_right(offsets, low)
    return offsets[index] if index < len(offsets) and offsets[index] < high else None


def _strong_components(edges: dict[Hashable, set[Hashable]]) -> Iterator[list[Hashable]]:
    """Tarjan's strongly connected components, without recursion: chains of transactions may be long."""
    index: dict[Hashable, int] = {}
    low: dict[Hashable, int] = {}
    stack: list[Hashable] = []
    on_stack: set[Hashable] = set()
    for root in list(edges):
        if root in index:
            continue
        work: list[tuple[Hashable, Iterator[Hashable]]] = [(root, iter(edges.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(edges.get(target, ()))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[Hashable] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    yield component
