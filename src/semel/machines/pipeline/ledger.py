"""The ledger of a pipeline: which micro-batches its logs hold, and whether they cover the source exactly once.

Guarantees: the verdict is computed from what stands in the logs, not from what the pipeline believes. A transaction
counts as committed only if a commit marker follows it. What compaction or retention has removed is reported as not
judged, and never guessed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from semel.machines.pipeline.batch_marker import BatchMarker, MarkerDetails
from semel.machines.values import TopicPartition

#: A producer id and an epoch.
Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """One record of `__consumer_offsets` for the pipeline's group. Without an offset it is a tombstone."""

    position: int
    producer: Identity | None
    place: TopicPartition
    offset: int | None
    metadata: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class End:
    """A marker: how a transaction of a producer ended in a partition."""

    position: int
    producer: Identity
    commit: bool
    time_ms: int


@dataclass(frozen=True, slots=True)
class Written:
    """What one transaction wrote to one output partition. `commit` is None while it is open."""

    place: TopicPartition
    producer: Identity
    records: int
    first_offset: int
    last_offset: int
    commit: bool | None
    time_ms: int


@dataclass(frozen=True, slots=True)
class History:
    """What was read from the logs."""

    events: tuple[OffsetCommit | End, ...]
    written: tuple[Written, ...]
    #: From this position on, no record of the group's offsets is missing.
    whole_from: int = 0
    #: Output topics from which records may have been removed, and why.
    thinned: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """One transaction of the pipeline."""

    batch_id: int | None
    query_id: str | None
    producer: Identity
    outcome: str
    #: For each source partition, where the micro-batch begins (None: not told) and where it ends.
    ranges: Mapping[TopicPartition, tuple[int | None, int]]
    #: Rows as the marker says; None if it says nothing.
    rows_said: int | None
    #: Records of this transaction in the output's log; None if the log cannot tell.
    rows_found: int | None
    time_ms: int
    position: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """All transactions in their order, what is wrong with them, and what could not be judged."""

    entries: tuple[Entry, ...]
    findings: tuple[str, ...]
    not_judged: tuple[str, ...]
    covered: Mapping[TopicPartition, tuple[int | None, int]]

    @property
    def is_exactly_once(self) -> bool:
        """Whether every offset that was judged is covered by exactly one committed micro-batch."""
        return not self.findings and any(entry.outcome == COMMITTED for entry in self.entries)


COMMITTED, ABORTED, OPEN = "committed", "aborted", "open"


def make_ledger(history: History) -> Ledger:
    """Put the logs together and judge them."""
    entries = sorted(_with_rows(history), key=lambda entry: (entry.time_ms, entry.position))
    findings: list[str] = []
    not_judged: list[str] = []
    judged: list[Entry] = []
    committed = [entry for entry in entries if entry.outcome == COMMITTED and entry.batch_id is not None]
    for entry in sorted(committed, key=lambda entry: entry.position):
        if entry.position < history.whole_from:
            continue
        judged.append(entry)
    if len(judged) < len(committed):
        not_judged.append(
            f"{len(committed) - len(judged)} micro-batches lie before offset {history.whole_from} of the group's "
            "offsets, where compaction has removed records: what was between them is not known"
        )
    before: list[Entry] = []
    for query_id, group in itertools.groupby(judged, key=lambda entry: entry.query_id):
        mine = list(group)
        _judge_query(mine, str(query_id), findings)
        _judge_after_another(before, mine, findings, not_judged)
        before += mine
    _judge_rows(entries, history, findings, not_judged)
    if others := [event for event in history.events if isinstance(event, OffsetCommit) and _is_of_another(event)]:
        last = others[-1]
        not_judged.append(
            f"another program has committed offsets in the group of this name, {len(others)} times, last {last.place} "
            f"at {last.offset}: a consumer with this group.id? It overwrites the pipeline's progress"
        )
    return Ledger(tuple(entries), tuple(findings), tuple(not_judged), _covered(judged))


def _judge_query(entries: list[Entry], query_id: str, findings: list[str]) -> None:
    """Each micro-batch once, one after the other, and each begins where the last one ended."""
    seen: dict[int, Entry] = {}
    ends: dict[TopicPartition, tuple[int, int]] = {}
    last: int | None = None
    for entry in entries:
        assert entry.batch_id is not None
        number = entry.batch_id
        if number in seen:
            findings.append(
                f"batch {number} of query {query_id} was committed twice: by producer {_name(seen[number].producer)} "
                f"and by {_name(entry.producer)}"
            )
            continue
        if last is not None and number != last + 1:
            findings.append(f"batch {number} of query {query_id} follows batch {last}")
        seen[number] = entry
        last = number
        for place, (begin, end) in entry.ranges.items():
            known = ends.get(place)
            if known is not None:
                before, by = known
                if begin is not None and begin < before:
                    findings.append(
                        f"{place}: offsets {begin} to {before} are covered by batch {by} and by batch {number}"
                    )
                elif begin is not None and begin > before:
                    findings.append(
                        f"{place}: offsets {before} to {begin} are covered by none (batches {by}, {number})"
                    )
                elif end < before:
                    findings.append(f"{place}: batch {number} ends at {end}, before batch {by} at {before}")
            ends[place] = (end, number)


def _judge_after_another(
    before: list[Entry], entries: list[Entry], findings: list[str], not_judged: list[str]
) -> None:
    """A query from another checkpoint must not cover again what those before it have covered.

    Where the first micro-batch of a checkpoint begins is not in the logs: only that it wrote rows, and where it ends.
    """
    covered: dict[TopicPartition, tuple[int, str]] = {}
    for entry in before:
        for place, (_, end) in entry.ranges.items():
            covered[place] = max(covered.get(place, (-1, "")), (end, str(entry.query_id)))
    unknown: dict[TopicPartition, None] = {}
    for entry in entries:
        known = {place: ends for place, ends in entry.ranges.items() if place in covered}
        again = [place for place, (begin, _) in known.items() if begin is not None and begin < covered[place][0]]
        if entry.rows_said and known and all(end <= covered[place][0] for place, (_, end) in known.items()):
            again += known if len(known) == len(entry.ranges) else ()
        for place in dict.fromkeys(again):
            end, query_id = covered.pop(place)
            unknown.pop(place, None)
            findings.append(
                f"{place}: offsets up to {min(end, entry.ranges[place][1])} are covered by query {query_id} and again "
                f"by batch {entry.batch_id} of query {entry.query_id}, from another checkpoint: the progress was "
                "forgotten between them (if the topic was made anew, these are other records)"
            )
        unknown |= dict.fromkeys(place for place in known if place in covered and known[place][0] is None)
    for place in unknown:
        end, query_id = covered[place]
        not_judged.append(
            f"{place}: query {entries[0].query_id} has another checkpoint than query {query_id} before it, and where "
            f"it began is not in the logs: whether offsets up to {end} were written again"
        )


def _judge_rows(entries: Iterable[Entry], history: History, findings: list[str], not_judged: list[str]) -> None:
    """What the markers say against what the logs of the outputs hold."""
    reasons = "; ".join(f"{topic}: {why}" for topic, why in sorted(history.thinned.items()))
    fewer = 0
    for entry in entries:
        if entry.outcome != COMMITTED or entry.rows_said is None or entry.rows_found is None:
            continue
        if entry.rows_found > entry.rows_said or (entry.rows_found < entry.rows_said and not history.thinned):
            findings.append(
                f"batch {entry.batch_id}: its marker says {entry.rows_said} rows, and the log holds {entry.rows_found}"
            )
        elif entry.rows_found < entry.rows_said:
            fewer += 1
    if fewer:
        not_judged.append(f"of {fewer} micro-batches the outputs hold fewer records than were written ({reasons})")


def _with_rows(history: History) -> list[Entry]:
    """The transactions of the group's offsets, each with its records; and those that only wrote records."""
    drafts = list(_transactions(history.events))
    drafted: dict[Identity, list[Entry]] = {}
    for entry in drafts:
        drafted.setdefault(entry.producer, []).append(entry)
    written: dict[Identity, list[Written]] = {}
    for one in history.written:
        written.setdefault(one.producer, []).append(one)
    found: list[Entry] = []
    for producer, group in drafted.items():
        # Under the old protocol several transactions share an epoch: then the log cannot tell their records apart.
        mine = written.pop(producer, [])
        for entry in group:
            rows = sum(one.records for one in mine) if len(group) == 1 else None
            found.append(
                Entry(
                    entry.batch_id, entry.query_id, producer, entry.outcome, entry.ranges, entry.rows_said, rows,
                    entry.time_ms, entry.position,
                )
            )  # fmt: skip
    for producer, mine in written.items():
        outcome = (
            COMMITTED
            if any(one.commit for one in mine)
            else OPEN
            if any(one.commit is None for one in mine)
            else ABORTED
        )
        rows = sum(one.records for one in mine)
        found.append(Entry(None, None, producer, outcome, {}, None, rows, max(one.time_ms for one in mine), -1))
    return found


def _transactions(events: Iterable[OffsetCommit | End]) -> Iterable[Entry]:
    """Commits of one producer up to its next marker are one transaction. Markers may have a later epoch (KIP-890)."""
    pending: dict[int, list[OffsetCommit]] = {}
    for event in events:
        if isinstance(event, End):
            commits = pending.pop(event.producer[0], [])
            if commits:
                yield _entry(commits, COMMITTED if event.commit else ABORTED)
        elif event.producer is not None and event.offset is not None and not _is_of_another(event):
            pending.setdefault(event.producer[0], []).append(event)
    for commits in pending.values():
        yield _entry(commits, OPEN)


def _is_of_another(event: OffsetCommit) -> bool:
    """Whether an offset was committed by somebody else: the pipeline's have a marker. Who deletes them is not told."""
    return event.offset is not None and BatchMarker.from_metadata(event.metadata) is None


def _entry(commits: list[OffsetCommit], outcome: str) -> Entry:
    marker, rows = None, None
    ranges: dict[TopicPartition, tuple[int | None, int]] = {}
    for commit in commits:
        marker = BatchMarker.from_metadata(commit.metadata) or marker
        details = MarkerDetails.from_metadata(commit.metadata)
        rows = details.rows if details.rows is not None else rows
        if details.is_source_offset and commit.offset is not None:
            ranges[commit.place] = (details.begins_at, commit.offset)
    first = commits[0]
    assert first.producer is not None
    return Entry(
        marker.batch_id if marker else None, marker.query_id if marker else None, first.producer, outcome, ranges, rows,
        None, max(commit.time_ms for commit in commits), first.position,
    )  # fmt: skip


def _covered(entries: Iterable[Entry]) -> dict[TopicPartition, tuple[int | None, int]]:
    covered: dict[TopicPartition, tuple[int | None, int]] = {}
    for entry in entries:
        for place, (begin, end) in entry.ranges.items():
            covered[place] = (covered[place][0] if place in covered else begin, end)
    return covered


def _name(producer: Identity) -> str:
    return f"{producer[0]} epoch {producer[1]}"
