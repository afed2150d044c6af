"""Checks a data directory: reads every batch of every partition and compares it with the invariants.

It shares no code with the broker's log except the format of a batch: indexes, snapshots and checkpoints are parsed here
a second time, so that a mistake there is not repeated here. The invariants:

| | |
|---|---|
| L1 | offsets rise, and have no gap where no compaction was |
| L2 | every batch's CRC holds; as many records as offsets where no compaction was |
| L3 | no sequence of a producer's epoch is written twice |
| L4 | a producer's epoch never falls, and within an epoch no sequence is left out |
| L5 | leader epochs never fall, and the checkpoint says what the batches say |
| T1 | a producer's run of transactional data ends in one marker, or the transaction is open |
| T2 | a marker's epoch is not below its data's (V2: above it); a coordinator's epoch never falls |
| T3, T4 | by watching answers: the last stable offset is never above the high watermark, neither ever falls |
| T5 | the index of aborted transactions is what the markers say |
| R1, R2, R4 | a reader is given nothing past its bound; partitions agree on an outcome; an offset keeps its batch |
| C4, C5 | a snapshot of producers, and an index, say what the log below them says |

`check` is for a broker that was stopped or killed; `Watch` checks the responses of a running one.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from semel.errors import Refused
from semel.records.batch import HEADER_SIZE, Batch, split
from semel.records.batch import check as check_batch
from semel.records.markers import read_marker
from semel.records.sequence import last_sequence, next_sequence
from semel.testing.data_directory import DataDirectory
from semel.wire.messages.fetch import FetchResponse

_DIRECTORY = re.compile(r"(.+)-(\d+)")
_BASE_OFFSET = re.compile(r"\d{20}")
_LENGTH = struct.Struct(">8xi")
_INDEX_ENTRY = struct.Struct(">II")
_ABORTED_ENTRY = struct.Struct(">hqqqq")
_SNAPSHOT_HEAD = struct.Struct(">hIi")
_SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
_INTERNAL = ("__consumer_offsets", "__transaction_state")


@dataclass(frozen=True, slots=True)
class Violation:
    """One violated invariant: which, where, and what was found."""

    invariant: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.where}: {self.what}"


class InvariantsBroken(AssertionError):
    """A data directory, or a broker's response, violates an invariant."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """An aborted transaction, according to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(slots=True)
class ScannedProducer:
    """What the batches so far say about one producer."""

    producer_epoch: int
    last_sequence: int = -1
    last_offset: int = -1
    coordinator_epoch: int = -1
    open_since: int = -1
    #: The epoch of the data of the open transaction.
    data_epoch: int = -1
    #: When it last wrote anything.
    timestamp: int = -1

    @property
    def facts(self) -> tuple[int, int, int, int, int]:
        return self.producer_epoch, self.last_sequence, self.last_offset, self.coordinator_epoch, self.open_since


@dataclass(slots=True)
class Scan:
    """One partition, read from its first to its last batch."""

    topic: str
    partition: int
    first_offset: int = 0
    end_offset: int = 0
    compacted: bool = False
    #: It may have been copied from a leader that had compacted it.
    is_replica: bool = False
    producers: dict[int, ScannedProducer] = field(default_factory=dict)
    aborted: list[Aborted] = field(default_factory=list)
    #: (producer id, epoch of the marker) -> committed, for the transactions that ended here.
    outcomes: dict[tuple[int, int], bool] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)

    @property
    def open_transactions(self) -> dict[int, int]:
        """First offset -> producer id."""
        return {p.open_since: producer_id for producer_id, p in self.producers.items() if p.open_since >= 0}

    @property
    def last_stable_offset(self) -> int:
        """Where a reader of committed records stops, if everything written may be read."""
        return min(self.open_transactions, default=self.end_offset)

    def report(self, invariant: str, what: str) -> None:
        self.violations.append(Violation(invariant, f"{self.topic}-{self.partition}", what))


def check(
    data_directory: Path | str, *, transaction_version: int | None = None, at_rest: bool = False, killed: bool = False
) -> None:
    """Raise `InvariantsBroken` with all that `violations` finds."""
    found = violations(data_directory, transaction_version=transaction_version, at_rest=at_rest, killed=killed)
    if found:
        raise InvariantsBroken(f"{len(found)} violations:\n" + "\n".join(map(str, found[:50])))


def violations(
    data_directory: Path | str | DataDirectory,
    *,
    transaction_version: int | None = None,
    at_rest: bool = False,
    killed: bool = False,
    forgotten_after_ms: int | None = None,
) -> list[Violation]:
    """All violations in a data directory.

    `transaction_version` 2: every transaction was of protocol V2, whose rules are stricter. `at_rest`: no transaction
    may be open any more. `killed`: the broker did not stop by itself, so the last write may be torn.
    `forgotten_after_ms`: producer.id.expiration.ms, if it is so short that a producer may write again after it.
    """
    scans = list(
        scan_all(
            data_directory,
            transaction_version=transaction_version,
            killed=killed,
            forgotten_after_ms=forgotten_after_ms,
        )
    )
    found = [violation for scan in scans for violation in scan.violations]
    if at_rest:
        for scan in scans:
            for offset, producer_id in sorted(scan.open_transactions.items()):
                what = f"the transaction of producer {producer_id} is open since offset {offset}"
                found.append(Violation("T1", f"{scan.topic}-{scan.partition}", what))
    if transaction_version is not None and transaction_version >= 2:
        found += _disagreements(scans)
    return found


def scan_all(
    data_directory: Path | str | DataDirectory,
    *,
    transaction_version: int | None = None,
    killed: bool = False,
    forgotten_after_ms: int | None = None,
) -> Iterator[Scan]:
    """Every partition of a data directory."""
    root = data_directory if isinstance(data_directory, DataDirectory) else DataDirectory(data_directory)
    compacted = _compacted_topics(root)
    is_replica = bool(root.read(".semel_cluster"))
    for directory in root.directories():
        name = _DIRECTORY.fullmatch(directory)
        if name is not None:
            topic = name[1]
            scan = Scan(topic, int(name[2]), compacted=topic in compacted or topic in _INTERNAL, is_replica=is_replica)
            scanner = _Scanner(scan, root, directory, transaction_version, killed, forgotten_after_ms)
            if scanner.bases:
                yield scanner.run()


def _disagreements(scans: list[Scan]) -> Iterator[Violation]:
    """R2: under V2 a marker's epoch belongs to one transaction, so its markers are the same in all partitions."""
    first: dict[tuple[int, int], tuple[bool, Scan]] = {}
    for scan in scans:
        for key, commit in scan.outcomes.items():
            known, where = first.setdefault(key, (commit, scan))
            if known != commit:
                yield Violation(
                    "R2",
                    f"{scan.topic}-{scan.partition}",
                    f"the transaction of producer {key[0]} that ended with epoch {key[1]} is "
                    f"{_outcome_word(commit)} here and {_outcome_word(known)} in {where.topic}-{where.partition}",
                )


def _outcome_word(commit: bool) -> str:
    return "committed" if commit else "aborted"


class _Scanner:
    def __init__(
        self,
        scan: Scan,
        root: DataDirectory,
        directory: str,
        transaction_version: int | None,
        killed: bool,
        forgotten_after_ms: int | None,
    ) -> None:
        self.scan = scan
        self.root = root
        self.directory = directory
        self.bumps = transaction_version is not None and transaction_version >= 2
        self.killed = killed
        self.forgotten_after_ms = forgotten_after_ms
        self.epochs = _leader_epochs(_text(root, f"{directory}/leader-epoch-checkpoint"))
        self.epoch_starts = [start for _, start in self.epochs]
        self.leader_epoch = -1
        #: From this offset on nothing is missing.
        self.whole_from = -1
        names = root.names(directory)
        self.bases = _offsets(names, ".log")
        self.snapshots = _offsets(names, ".snapshot")
        #: Batches since the last base offset, for the indexes: position -> last offset.
        self.positions: dict[int, int] = {}

    def run(self) -> Scan:
        scan = self.scan
        bases = self.bases
        scan.first_offset = scan.end_offset = bases[0]
        for base in bases:
            is_last = base == bases[-1]
            if base < scan.end_offset:
                scan.report("L1", f"segment {base} begins before offset {scan.end_offset}, where the last one ended")
            elif base > scan.end_offset:
                if not scan.compacted:
                    scan.report("L1", f"offsets {scan.end_offset} to {base - 1} are missing before segment {base}")
                scan.end_offset = base
            # In a compacted topic only the last segment is certain to be complete, and in a cluster not that: who was
            # away while its leader compacted copies what is left.
            self.contiguous = not scan.compacted or (is_last and not scan.is_replica)
            self.whole_from = base if scan.compacted else -1
            self.positions.clear()
            first_aborted = len(scan.aborted)
            for position, batch in self._batches(base, is_last):
                self._check_batch(batch)
                self.positions[position] = batch.last_offset
            self._check_index(base)
            self._check_aborted(base, scan.aborted[first_aborted:])
        self._check_snapshots(None)
        return scan

    def _batches(self, base: int, is_last: bool) -> Iterator[tuple[int, Batch]]:
        name = f"{base:020d}.log"
        data = self.root.read(f"{self.directory}/{name}") or b""
        size, position = len(data), 0
        try:
            while position < size:
                length = _LENGTH.unpack_from(data, position)[0] + 12 if position + 12 <= size else 0
                if length < HEADER_SIZE or position + length > size:
                    if not (is_last and self.killed):
                        self.scan.report("L2", f"{name} ends in the middle of a batch, at byte {position}")
                    return
                try:
                    batch = Batch.parse(data[position : position + length])
                    check_batch(batch, stored=True)
                except Refused as refused:
                    if not (is_last and self.killed and position + length == size):
                        self.scan.report("L2", f"{name}, byte {position}: {refused.why}")
                    return
                yield position, batch
                position += length
        finally:
            if isinstance(data, mmap.mmap):
                data.close()

    # The batch

    def _check_batch(self, batch: Batch) -> None:
        scan = self.scan
        if batch.base_offset < scan.end_offset:
            scan.report("L1", f"offset {batch.base_offset} comes after offset {scan.end_offset - 1}")
        elif batch.base_offset > scan.end_offset and self.contiguous:
            scan.report("L1", f"offsets {scan.end_offset} to {batch.base_offset - 1} are missing")
        if self.contiguous and batch.record_count != batch.last_offset_delta + 1:
            what = f"{batch.record_count} records for {batch.last_offset_delta + 1} offsets at {batch.base_offset}"
            scan.report("L2", what)
        self._check_leader_epoch(batch)
        self._check_snapshots(batch.base_offset)
        if batch.producer_id >= 0:
            producer = scan.producers.get(batch.producer_id)
            if producer is None:
                producer = scan.producers[batch.producer_id] = ScannedProducer(-1)
            if batch.is_control:
                self._marker(producer, batch)
            else:
                self._data(producer, batch)
            producer.timestamp = batch.max_timestamp
        scan.end_offset = max(scan.end_offset, batch.next_offset)

    def _check_leader_epoch(self, batch: Batch) -> None:
        if batch.leader_epoch < self.leader_epoch:
            what = f"leader epoch {batch.leader_epoch} at offset {batch.base_offset} follows {self.leader_epoch}"
            self.scan.report("L5", what)
        self.leader_epoch = max(self.leader_epoch, batch.leader_epoch)
        found = bisect_right(self.epoch_starts, batch.base_offset)
        known = self.epochs[found - 1][0] if found else -1
        if self.epochs and known != batch.leader_epoch:
            what = f"the checkpoint gives epoch {known} to offset {batch.base_offset}, its batch {batch.leader_epoch}"
            self.scan.report("L5", what)

    def _data(self, producer: ScannedProducer, batch: Batch) -> None:
        scan, who = self.scan, f"producer {batch.producer_id}"
        if batch.producer_epoch < producer.producer_epoch:
            what = f"{who} fell from epoch {producer.producer_epoch} to {batch.producer_epoch} at {batch.base_offset}"
            scan.report("L4", what)
        if batch.base_sequence >= 0:
            self._check_sequence(producer, batch, who)
        if batch.is_transactional:
            if producer.open_since < 0:
                producer.open_since = batch.base_offset
            elif producer.data_epoch != batch.producer_epoch:
                what = (
                    f"{who} wrote epoch {batch.producer_epoch} at {batch.base_offset} into the transaction that epoch "
                    f"{producer.data_epoch} opened at {producer.open_since}"
                )
                scan.report("T1", what)
            producer.data_epoch = batch.producer_epoch
        elif producer.open_since >= 0:
            what = f"{who} wrote outside of its open transaction at offset {batch.base_offset}"
            scan.report("T1", what)
        producer.producer_epoch = batch.producer_epoch
        producer.last_offset = batch.last_offset

    def _check_sequence(self, producer: ScannedProducer, batch: Batch, who: str) -> None:
        known = producer.last_offset >= 0 and producer.last_sequence >= 0
        same_epoch = batch.producer_epoch == producer.producer_epoch
        if same_epoch and known:
            expected = next_sequence(producer.last_sequence, 1)
        elif producer.producer_epoch >= 0:
            expected = 0
        else:
            expected = batch.base_sequence
        ahead = (batch.base_sequence - expected) % 2**31
        at = f"at offset {batch.base_offset}"
        if ahead >= 2**30:
            self.scan.report("L3", f"{who} wrote sequence {batch.base_sequence} of its epoch again {at}")
        elif ahead and self.contiguous and producer.last_offset >= self.whole_from:
            # What stood between this batch and one of an earlier segment may have been compacted away.
            self.scan.report("L4", f"{who} wrote sequence {batch.base_sequence} where {expected} comes next, {at}")
        producer.last_sequence = last_sequence(batch.base_sequence, batch.last_offset_delta + 1)

    def _marker(self, producer: ScannedProducer, batch: Batch) -> None:
        scan = self.scan
        if batch.record_count == 0:
            return
        try:
            marker = read_marker(batch)
        except Refused as refused:
            scan.report("L2", f"the control batch at offset {batch.base_offset}: {refused.why}")
            return
        who = f"the marker of producer {batch.producer_id} at offset {batch.base_offset}"
        epoch = batch.producer_epoch
        if epoch < producer.producer_epoch:
            scan.report("T2", f"{who} has epoch {epoch}, {producer.producer_epoch} was there before")
        elif self.bumps and producer.open_since >= 0 and epoch <= producer.data_epoch:
            scan.report("T2", f"{who} has epoch {epoch}, no larger than its data's")
        if marker.coordinator_epoch < producer.coordinator_epoch:
            what = f"{who} has coordinator epoch {marker.coordinator_epoch}, {producer.coordinator_epoch} was there"
            scan.report("T2", what)
        key = batch.producer_id, epoch
        again = key in scan.outcomes and marker.coordinator_epoch == producer.coordinator_epoch
        age_ms = batch.max_timestamp - producer.timestamp
        if again and self.forgotten_after_ms is not None and age_ms >= self.forgotten_after_ms:
            # The coordinator did not get to note the first one, and by now the partition did not know it any more.
            again = False
        if self.bumps and again and not scan.compacted:
            scan.report("T1", f"{who} ends what was already ended")
        if producer.open_since >= 0:
            if not marker.commit:
                others = [offset for offset in scan.open_transactions if offset != producer.open_since]
                scan.aborted.append(
                    Aborted(
                        batch.producer_id,
                        producer.open_since,
                        batch.base_offset,
                        min(others, default=batch.next_offset),
                    )
                )
            scan.outcomes[key] = marker.commit
        if epoch != producer.producer_epoch:
            producer.last_sequence = producer.last_offset = -1
        producer.producer_epoch = epoch
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.open_since = producer.data_epoch = -1

    # The files beside the log

    def _check_index(self, base: int) -> None:
        name = f"{base:020d}.index"
        data = self.root.read(f"{self.directory}/{name}") or b""
        for relative, position in _INDEX_ENTRY.iter_unpack(data[: len(data) // 8 * 8]):
            if relative == position == 0:
                continue  # Kafka reserves room for more entries than there are yet.
            if self.positions.get(position) != base + relative:
                found = self.positions.get(position)
                what = f"{name} says that offset {base + relative} lies at byte {position}, there is {found}"
                self.scan.report("C5", what)
                return

    def _check_aborted(self, base: int, aborted: list[Aborted]) -> None:
        name = f"{base:020d}.txnindex"
        data = self.root.read(f"{self.directory}/{name}") or b""
        whole = len(data) // _ABORTED_ENTRY.size * _ABORTED_ENTRY.size
        listed = [Aborted(*fields[1:]) for fields in _ABORTED_ENTRY.iter_unpack(data[:whole])]
        if self.scan.compacted or self.scan.first_offset > 0:
            # What compaction or retention removed cannot be counted again: what is left must be listed.
            ends = {(entry.producer_id, entry.last_offset) for entry in listed}
            missing = [entry for entry in aborted if (entry.producer_id, entry.last_offset) not in ends]
            if missing:
                self.scan.report("T5", f"{name} does not list {missing[0]}")
        elif listed != aborted:
            self.scan.report("T5", f"{name} lists {listed}, the markers say {aborted}")

    def _check_snapshots(self, before: int | None) -> None:
        """Check the snapshots that end before this offset; None: all that are left."""
        while self.snapshots and (before is None or self.snapshots[0] <= before):
            offset = self.snapshots.pop(0)
            if self.scan.compacted or self.scan.first_offset > 0 or (offset > self.scan.end_offset and self.killed):
                continue
            stored = _snapshot(self.root.read(f"{self.directory}/{offset:020d}.snapshot") or b"")
            if stored is None:
                if not self.killed:
                    self.scan.report("C4", f"snapshot {offset} cannot be read")
                continue
            for producer_id, facts in stored.items():
                known = self.scan.producers.get(producer_id)
                if known is None or not (known.facts == facts or self._was_forgotten(known, facts)):
                    says = None if known is None else known.facts
                    what = f"snapshot {offset} has producer {producer_id} as {facts}, the log as {says}"
                    self.scan.report("C4", what)

    def _was_forgotten(self, known: ScannedProducer, stored: tuple[int, int, int, int, int]) -> bool:
        """Whether a snapshot lacks only the coordinator's epoch: the partition may have forgotten it after a
        marker of it. When, the log cannot tell: a follower may have written the next batch long after its timestamp."""
        return self.forgotten_after_ms is not None and stored == replace(known, coordinator_epoch=-1).facts


class Watch:
    """Checks the fetch responses of a running broker, from any number of clients.

    The responses for one partition must be passed in the order in which they were received.
    """

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}
        self._checksums: dict[tuple[str, int], dict[int, int]] = {}

    def saw(self, topic: str, isolation_level: int, data: FetchResponse.PartitionData) -> None:
        """Check one partition's part of a fetch response."""
        if data.error_code:
            return
        key = topic, data.partition_index
        stable, high = data.last_stable_offset, data.high_watermark
        if isolation_level and stable > high:
            self._report("T3", key, f"the last stable offset {stable} is above the high watermark {high}")
        last_stable, last_high = self._ends.get(key, (-1, -1))
        if high < last_high or (stable >= 0 and stable < last_stable):
            what = f"last stable offset and high watermark fell from {(last_stable, last_high)} to {(stable, high)}"
            self._report("T4", key, what)
        self._ends[key] = max(stable, last_stable), max(high, last_high)
        bound = stable if isolation_level else high
        checksums = self._checksums.setdefault(key, {})
        for batch in split(data.records or b""):
            if batch.next_offset > bound:
                self._report("R1", key, f"offset {batch.last_offset} was served, the bound is {bound}")
            if checksums.setdefault(batch.base_offset, batch.crc) != batch.crc:
                self._report("R4", key, f"offset {batch.base_offset} holds another batch than before")

    def check(self) -> None:
        """Raise the violations, if there were any."""
        if self.violations:
            raise InvariantsBroken("\n".join(map(str, self.violations)))

    def _report(self, invariant: str, key: tuple[str, int], what: str) -> None:
        self.violations.append(Violation(invariant, f"{key[0]}-{key[1]}", what))


def _offsets(names: list[str], suffix: str) -> list[int]:
    """The offsets in the names of the files of one kind."""
    stems = [name[: -len(suffix)] for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if _BASE_OFFSET.fullmatch(stem))


def _text(root: DataDirectory, path: str) -> str:
    """A file's text; nothing if there is no such file."""
    return bytes(root.read(path) or b"").decode()


def _compacted_topics(root: DataDirectory) -> set[str]:
    """Topics that may have been compacted, by their settings and by the cleaner's checkpoint."""
    names = set()
    if stored := _text(root, ".metadata/topics"):
        topics = json.loads(stored.splitlines()[1])["topics"]
        names = {name for name, row in topics.items() if "compact" in row["configs"].get("cleanup.policy", "")}
    names |= {line.split()[0] for line in _text(root, "cleaner-offset-checkpoint").splitlines()[2:]}
    return names


def _leader_epochs(text: str) -> list[tuple[int, int]]:
    if not text:
        return []
    _, count, *rows = [*text.splitlines(), "", ""]
    entries = [row.split() for row in rows if row]
    if str(len(entries)) != count or any(len(entry) != 2 for entry in entries):
        return []  # A torn checkpoint is rebuilt when the partition is opened, so it is ignored.
    return [(int(epoch), int(start)) for epoch, start in entries]


def _snapshot(data: bytes | mmap.mmap) -> dict[int, tuple[int, int, int, int, int]] | None:
    """Producer id -> its facts, as `ScannedProducer.facts`; None if the file is torn."""
    if len(data) < _SNAPSHOT_HEAD.size:
        return None
    _, _, count = _SNAPSHOT_HEAD.unpack_from(data)
    if len(data) != _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size:
        return None
    found = {}
    for row in _SNAPSHOT_ENTRY.iter_unpack(data[_SNAPSHOT_HEAD.size :]):
        producer_id, epoch, sequence, last_offset, _, _, coordinator_epoch, open_since = row
        found[producer_id] = (epoch, sequence, last_offset, coordinator_epoch, open_since)
    return found
