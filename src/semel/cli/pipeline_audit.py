"""`semel pipeline audit`: reads what the brokers have written down about a pipeline, and shows the ledger.

It reads as a consumer: `__transaction_state` for the topics that the id wrote to, `__consumer_offsets` for the history
of its progress, and the output topics for the records of its transactions. Only the verdict is computed elsewhere
(`machines/pipeline/ledger.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from semel.cli import ledger_plot
from semel.cli.output import show
from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.cluster import Leader
from semel.errors import ErrorCode, Refused, error_for
from semel.machines.groups import records as group_records
from semel.machines.internal_topics import partition_for
from semel.machines.pipeline.batch_marker import BatchMarker
from semel.machines.pipeline.ledger import End, Entry, History, Ledger, OffsetCommit, Written, make_ledger
from semel.machines.pipeline.progress_record import from_record
from semel.machines.values import TopicPartition
from semel.records.batch import Batch, read_records, split
from semel.records.markers import read_marker
from semel.wire import decode_versioned
from semel.wire.messages import coordinator_records as stored
from semel.wire.messages.configs import DescribeConfigsRequest
from semel.wire.messages.fetch import FetchRequest, ListOffsetsRequest
from semel.wire.messages.metadata import MetadataRequest

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
_EARLIEST, _LATEST = -2, -1
_FETCH_BYTES = 8 << 20
_TOPIC = 2


@dataclass
class Read:
    """What was read, and what could not be."""

    history: History
    topics: list[str]
    notes: list[str] = field(default_factory=list)


def audit(cluster: BlockingCluster, transactional_id: str, outputs: tuple[str, ...]) -> tuple[Ledger, Read]:
    """Read the logs and judge them. `outputs` are topics to look at beside those that the coordinator knows of."""
    notes: list[str] = []
    partitions = _partition_counts(cluster)
    topics, producers, is_whole = _from_transaction_log(cluster, transactional_id, partitions, notes)
    if OFFSETS not in partitions:
        raise click.ClickException(f"there is no {OFFSETS} at these brokers that this user may read: nothing to audit")
    place = TopicPartition(OFFSETS, partition_for(transactional_id, partitions[OFFSETS]))
    events, whole_from = _from_offsets_log(cluster, place, transactional_id)
    own = [event for event in events if isinstance(event, OffsetCommit) and BatchMarker.from_metadata(event.metadata)]
    producers |= {event.producer[0] for event in own if event.producer}
    chosen = sorted({topic for topic in topics if topic != OFFSETS} | set(outputs))
    written: list[Written] = []
    thinned: dict[str, str] = {}
    if not outputs and not (chosen and is_whole):
        thinned["output topics"] = (
            f"{TRANSACTIONS} no longer knows all of them, or never did: name them all with --output"
        )
    for topic in chosen:
        if topic not in partitions:
            notes.append(f"topic {topic} is gone, or this user may not see it: its records are not counted")
            thinned[topic] = "gone"
            continue
        for number in range(partitions[topic]):
            place = TopicPartition(topic, number)
            written += _from_output(cluster, place, transactional_id, producers, thinned)
        if "compact" in _cleanup_policy(cluster, topic):
            thinned.setdefault(topic, "it is compacted")
    history = History(tuple(events), tuple(written), whole_from, thinned)
    return make_ledger(history), Read(history, chosen, notes)


# --- the logs -----------------------------------------------------------------------------------------------------


def _from_transaction_log(
    cluster: BlockingCluster, transactional_id: str, partitions: dict[str, int], notes: list[str]
) -> tuple[set[str], set[int], bool]:
    """The topics that the id's transactions wrote to, and its producer ids; and whether the log still has them all."""
    topics: set[str] = set()
    producers: set[int] = set()
    expected, is_whole = 0, True
    if TRANSACTIONS not in partitions:
        notes.append(f"{TRANSACTIONS} cannot be read here: name the output topics with --output")
        return topics, producers, False
    place = TopicPartition(TRANSACTIONS, partition_for(transactional_id, partitions[TRANSACTIONS]))
    for batch in _batches(cluster, place):
        is_whole &= batch.base_offset == expected and batch.record_count == batch.last_offset - batch.base_offset + 1
        expected = batch.next_offset
        if batch.is_control:
            continue
        for record in read_records(batch):
            try:
                key = decode_versioned(stored.TransactionLogKey, bytes(record.key or b""))
                if key.transactional_id != transactional_id or record.value is None:
                    continue
                value = decode_versioned(stored.TransactionLogValue, bytes(record.value))
            except Refused:
                continue  # a record of a later version of Kafka
            producers.add(value.producer_id)
            topics |= {schema.topic for schema in value.transaction_partitions or ()}
    return topics, producers, is_whole


def _from_offsets_log(
    cluster: BlockingCluster, place: TopicPartition, group: str
) -> tuple[list[OffsetCommit | End], int]:
    """The group's commits and the markers between them; and the position from which on nothing is missing."""
    events: list[OffsetCommit | End] = []
    expected: int | None = 0
    whole_from = 0
    for batch in _batches(cluster, place):
        if batch.base_offset != expected or batch.record_count != batch.last_offset - batch.base_offset + 1:
            whole_from = batch.next_offset if batch.base_offset == expected else batch.base_offset
        expected = batch.next_offset
        if batch.is_control:
            events.append(_end(batch))
            continue
        producer = (batch.producer_id, batch.producer_epoch) if batch.is_transactional else None
        for record in read_records(batch):
            try:
                found = group_records.read(
                    bytes(record.key or b""), None if record.value is None else bytes(record.value)
                )
            except Refused:
                continue
            if found is None or not isinstance(found[0], stored.OffsetCommitKey) or found[0].group != group:
                continue
            key, value = found
            where = TopicPartition(key.topic, key.partition)
            if value is None:
                events.append(OffsetCommit(record.offset, producer, where, None, "", batch.max_timestamp))
            else:
                events.append(
                    OffsetCommit(record.offset, producer, where, value.offset, value.metadata, value.commit_timestamp)
                )
    return events, whole_from


def _end(batch: Batch) -> End:
    producer = (batch.producer_id, batch.producer_epoch)
    return End(batch.base_offset, producer, read_marker(batch).commit, batch.max_timestamp)


def _from_output(
    cluster: BlockingCluster, place: TopicPartition, transactional_id: str, producers: set[int], thinned: dict[str, str]
) -> Iterator[Written]:
    """What the producers wrote to a partition, one `Written` for each transaction."""
    pending: dict[int, list[Batch]] = {}
    expected = _offset(cluster, place, _EARLIEST)
    if expected > 0:  # told apart from the batches: there may be none left
        thinned[place.topic] = "records were deleted by retention"
    for batch in _batches(cluster, place):
        if batch.base_offset > expected:
            thinned.setdefault(place.topic, "it is compacted")
        expected = batch.next_offset
        if batch.producer_id not in producers:
            continue
        if batch.is_control:
            batches = pending.pop(batch.producer_id, [])
            if batches:
                yield _written(place, batches, read_marker(batch).commit, batch.max_timestamp)
        elif not _is_progress(batch, transactional_id):
            pending.setdefault(batch.producer_id, []).append(batch)
    for batches in pending.values():
        yield _written(place, batches, None, batches[-1].max_timestamp)


def _is_progress(batch: Batch, transactional_id: str) -> bool:
    """Whether a batch is the pipeline's own progress in a compacted topic, and none of its rows."""
    if batch.record_count != 1:
        return False
    record = next(iter(read_records(batch)))
    if record.key is None or record.value is None or bytes(record.key) != transactional_id.encode():
        return False
    try:
        return from_record(bytes(record.value)).marker is not None
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def _written(place: TopicPartition, batches: list[Batch], commit: bool | None, time_ms: int) -> Written:
    first, last = batches[0], batches[-1]
    records = sum(batch.record_count for batch in batches)
    producer = (first.producer_id, first.producer_epoch)
    return Written(place, producer, records, first.base_offset, last.last_offset, commit, time_ms)


def _batches(cluster: BlockingCluster, place: TopicPartition) -> Iterator[Batch]:
    """Every batch of a partition that is there now, aborted ones and markers included."""
    position, end = _offset(cluster, place, _EARLIEST), _offset(cluster, place, _LATEST)
    while position < end:
        row = _fetch(cluster, place, position)
        batches = split(row.records, partial_tail=True) if row.records else []
        if not batches:
            return  # the rest was removed while we read
        for batch in batches:
            if batch.base_offset >= end:
                return
            if batch.next_offset > position:
                yield batch
        position = batches[-1].next_offset


def _fetch(cluster: BlockingCluster, place: TopicPartition, position: int) -> Any:
    partition = FetchRequest.FetchPartition(
        partition=place.partition, fetch_offset=position, partition_max_bytes=_FETCH_BYTES
    )
    answer = cluster.request_retrying(
        FetchRequest(
            max_wait_ms=1000,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            topics=[FetchRequest.FetchTopic(topic=place.topic, partitions=[partition])],
        ),
        to=Leader(place.topic, place.partition),
        newest=12,
    )
    row = answer.responses[0].partitions[0]
    _raise_for(row.error_code, f"reading {place} at {position}")
    return row


def _offset(cluster: BlockingCluster, place: TopicPartition, which: int) -> int:
    partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=place.partition, timestamp=which)
    answer = cluster.request_retrying(
        ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(name=place.topic, partitions=[partition])]),
        to=Leader(place.topic, place.partition),
    )
    row = answer.topics[0].partitions[0]
    _raise_for(row.error_code, f"offsets of {place}")
    return int(row.offset)


def _partition_counts(cluster: BlockingCluster) -> dict[str, int]:
    answer = cluster.request_retrying(MetadataRequest(topics=None, allow_auto_topic_creation=False))
    return {topic.name: len(topic.partitions) for topic in answer.topics if not topic.error_code}


def _cleanup_policy(cluster: BlockingCluster, topic: str) -> str:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=["cleanup.policy"]
    )
    answer = cluster.request_retrying(DescribeConfigsRequest(resources=[resource]))
    return ",".join(row.value or "" for result in answer.results for row in result.configs)


def _raise_for(code: int, what: str) -> None:
    if code:
        error = ErrorCode.of(code)
        raise error_for(error, f"{what}: {error.meaning}")


# --- for people and programs --------------------------------------------------------------------------------------


def as_json(transactional_id: str, ledger: Ledger, read: Read) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "transactional_id": transactional_id,
        "exactly_once": ledger.is_exactly_once,
        "findings": list(ledger.findings),
        "not_judged": [*ledger.not_judged, *read.notes],
        "outputs": read.topics,
        "covered": [
            {"topic": place.topic, "partition": place.partition, "from": begin, "to": end}
            for place, (begin, end) in sorted(ledger.covered.items())
        ],
        "entries": [_row(entry) for entry in ledger.entries],
    }


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "batch": entry.batch_id,
        "query_id": entry.query_id,
        "outcome": entry.outcome,
        "producer_id": entry.producer[0],
        "producer_epoch": entry.producer[1],
        "offsets": [
            {"topic": place.topic, "partition": place.partition, "from": begin, "to": end}
            for place, (begin, end) in sorted(entry.ranges.items())
        ],
        "rows": entry.rows_said,
        "rows_in_log": entry.rows_found,
        "time_ms": entry.time_ms,
    }


def draw(transactional_id: str, ledger: Ledger, path: Path) -> None:
    """Write the ledger as a picture."""
    answer = "yes" if ledger.is_exactly_once else "no"
    title = f"{transactional_id}: transactions over the source's offsets"
    picture = ledger_plot.as_png(ledger_plot.bars_of(ledger), title, f"exactly once: {answer}")
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise click.ClickException(f"--plot: cannot write {path}: {error.strerror or error}") from None


def tell(transactional_id: str, ledger: Ledger, read: Read, *, bars: bool = False) -> None:
    """The ledger as a table, then the verdict."""
    rows = [
        {
            "batch": entry.batch_id,
            "offsets": ", ".join(_span(place, *ends) for place, ends in sorted(entry.ranges.items())) or None,
            "rows": entry.rows_said if entry.rows_said is not None else entry.rows_found,
            "in log": entry.rows_found,
            "transaction": f"{entry.producer[0]}/{entry.producer[1]}",
            "outcome": entry.outcome,
            "time": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time_ms / 1000)),
        }
        for entry in ledger.entries
    ]
    show(rows, ("batch", "offsets", "rows", "in log", "transaction", "outcome", "time"), as_json=False)
    click.echo()
    if bars:
        for line in ledger_plot.as_text(ledger_plot.bars_of(ledger)):
            click.echo(line)
        click.echo()
    outcomes = [entry.outcome for entry in ledger.entries]
    counted = ", ".join(f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes))
    click.echo(f"'{transactional_id}': {counted}; outputs: {', '.join(read.topics) or 'none known'}")
    for text in (*ledger.not_judged, *read.notes):
        click.echo(f"not judged: {text}")
    for text in ledger.findings:
        click.echo(f"wrong: {text}")
    for place, (begin, end) in sorted(ledger.covered.items()):
        click.echo(f"{place}: offsets {'up' if begin is None else begin} to {end}")
    answer = "yes" if ledger.is_exactly_once else "NO"
    click.echo(f"every source offset is covered by exactly one committed micro-batch: {answer}")


def _span(place: TopicPartition, begin: int | None, end: int) -> str:
    return f"{place} {'' if begin is None else begin}..{end}"
