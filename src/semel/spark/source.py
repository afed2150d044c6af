"""Reading a topic into Spark: committed records, as Arrow columns, in the form of Spark's own Kafka source.

Guarantees: a micro-batch covers exactly the offsets between its start and its end, so a rerun reads the same records;
planning goes up to the last stable offset, so no task ever waits for an open transaction; gaps that markers and
aborted records leave are not taken for data loss, which is judged by the log start offset alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from semel.client.cluster import Cluster, Leader
from semel.errors import ErrorCode, error_for
from semel.machines.contract import TopicPartition
from semel.machines.read_committed import all_batches, committed_batches
from semel.records.batch import split
from semel.records.columns import to_arrow
from semel.wire.messages.fetch import FetchRequest, ListOffsetsRequest

from .source_options import SourceOptions
from .writer import cluster_of

_SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
_HEADERS = ", headers array<struct<key: string, value: binary>>"
_EARLIEST, _LATEST = -2, -1
_FETCH_BYTES = 4 << 20

#: Offsets as Spark's Kafka source writes them into its checkpoint: {"topic": {"0": 42}}.
SparkOffsets = dict[str, dict[str, int]]


class DataLost(Exception):
    """Records that were to be read are gone; failOnDataLoss=false reads on from what is left."""


@dataclass
class OffsetRange(InputPartition):
    """What one task reads: offsets from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int


class SemelDataSource(DataSource):
    """`format("semel")`: a drop-in for Spark's Kafka source, by batch or as a stream."""

    @classmethod
    def name(cls) -> str:
        """The name to give to `format`."""
        return "semel"

    def schema(self) -> str:
        """The columns of Spark's own Kafka source."""
        return _SCHEMA + (_HEADERS if SourceOptions.parse(self.options).include_headers else "")

    def reader(self, schema: Any) -> DataSourceReader:
        """Read a bounded range."""
        return SemelBatchReader(SourceOptions.parse(self.options, streaming=False))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Read on and on."""
        return SemelStreamReader(SourceOptions.parse(self.options))


class _RangeReader:
    """What both readers share: asking for offsets on the driver, reading ranges in the tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def _offsets_at(self, where: list[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        loop, cluster = cluster_of(self._options.client_settings)
        return loop.run(_list_offsets(cluster, where, timestamp, self._options.isolation_level))

    def _partitions_of_topics(self) -> list[TopicPartition]:
        loop, cluster = cluster_of(self._options.client_settings)
        return loop.run(_wanted_partitions(cluster, self._options))

    def _resolve(self, named: str | Mapping[TopicPartition, int], where: list[TopicPartition]) -> SparkOffsets:
        """Turn 'earliest', 'latest' or explicit offsets (with -2 and -1) into offsets."""
        wanted = {
            place: {"earliest": _EARLIEST, "latest": _LATEST}[named] if isinstance(named, str) else named[place]
            for place in where
        }
        found = {place: offset for place, offset in wanted.items() if offset >= 0}
        for special in (_EARLIEST, _LATEST):
            places = [place for place, offset in wanted.items() if offset == special]
            if places:
                found.update(self._offsets_at(places, special))
        return _as_spark(found)

    def _ranges(self, start: SparkOffsets, end: SparkOffsets) -> list[OffsetRange]:
        ranges = []
        for topic, partitions in end.items():
            for partition, until in partitions.items():
                since = start.get(topic, {}).get(partition)
                if since is None:  # a partition that is new since the last batch is read from its beginning
                    place = TopicPartition(topic, int(partition))
                    since = self._offsets_at([place], _EARLIEST)[place]
                if since > until:
                    self._lost(f"{topic}-{partition} ends at {until}, but {since} was read before: was it recreated?")
                if until > since:
                    ranges.append(OffsetRange(topic, int(partition), since, until))
        return self._split(ranges)

    def _split(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Cut long ranges so that there are about minPartitions of them."""
        total = sum(one.end - one.start for one in ranges)
        wanted = self._options.min_partitions
        if not wanted or wanted <= len(ranges) or not total:
            return ranges
        pieces = []
        for one in ranges:
            length = one.end - one.start
            count = max(1, round(wanted * length / total))
            cuts = [one.start + length * i // count for i in range(count + 1)]
            pieces += [OffsetRange(one.topic, one.partition, a, b) for a, b in pairwise(cuts) if b > a]
        return pieces

    def _lost(self, why: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{why} Set failOnDataLoss=false to read on from what is left.")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range as Arrow record batches; runs in a task."""
        loop, cluster = cluster_of(self._options.client_settings)
        assert isinstance(partition, OffsetRange)
        position = partition.start
        while position < partition.end:
            row = loop.run(_fetch(cluster, partition, position, self._options.isolation_level))
            code = ErrorCode(row.error_code)
            if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                place = TopicPartition(partition.topic, partition.partition)
                left = self._offsets_at([place], _EARLIEST)[place]
                self._lost(f"{place}: offset {position} is gone, the log starts at {left}.")
                position = max(position + 1, left)
                continue
            if code is not ErrorCode.NONE:
                raise error_for(code, f"reading {partition.topic}-{partition.partition} at {position}: {code.meaning}")
            batches = split(row.records, partial_tail=True) if row.records else []
            if not batches:
                continue
            if self._options.isolation_level:
                aborted = [(gone.producer_id, gone.first_offset) for gone in row.aborted_transactions or ()]
                visible = list(committed_batches(batches, aborted))
            else:
                visible = list(all_batches(batches))
            if visible:
                columns = to_arrow(
                    visible,
                    topic=partition.topic,
                    partition=partition.partition,
                    from_offset=position,
                    to_offset=partition.end,
                    include_headers=self._options.include_headers,
                )
                if columns.num_rows:
                    yield columns
            position = batches[-1].last_offset + 1


class SemelBatchReader(_RangeReader, DataSourceReader):
    """A bounded read."""

    def partitions(self) -> list[OffsetRange]:
        """The ranges between startingOffsets and endingOffsets."""
        where = self._partitions_of_topics()
        start = self._resolve(self._options.starting_offsets, where)
        return self._ranges(start, self._resolve(self._options.ending_offsets, where))


class SemelStreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An unbounded read, planned batch by batch."""

    _until: SparkOffsets | None = None

    def initialOffset(self) -> SparkOffsets:
        """Where a query without a checkpoint starts."""
        return self._resolve(self._options.starting_offsets, self._partitions_of_topics())

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger, where it is given."""
        most = self._options.max_offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: SparkOffsets, limit: ReadLimit) -> SparkOffsets:
        """Where the next batch ends: the last stable offsets, or a fair share of the way there."""
        latest = self._until if self._until is not None else self._latest()
        for topic, partitions in start.items():  # what was read before never moves back, nor does it vanish
            for partition, offset in partitions.items():
                known = latest.setdefault(topic, {})
                known[partition] = max(offset, known.get(partition, offset))
        if isinstance(limit, ReadMaxRows):
            return _share(start, latest, limit.max_rows, self._earliest_of_new(start, latest))
        return latest

    def _latest(self) -> SparkOffsets:
        return _as_spark(self._offsets_at(self._partitions_of_topics(), _LATEST))

    def _earliest_of_new(self, start: SparkOffsets, latest: SparkOffsets) -> dict[TopicPartition, int]:
        new = [
            TopicPartition(topic, int(partition))
            for topic, partitions in latest.items()
            for partition in partitions
            if partition not in start.get(topic, {})
        ]
        return self._offsets_at(new, _EARLIEST) if new else {}

    def reportLatestOffset(self) -> SparkOffsets:
        """What is there now, for the query's progress report."""
        return self._latest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of an availableNow run."""
        self._until = self._latest()

    def partitions(self, start: SparkOffsets, end: SparkOffsets) -> list[OffsetRange]:
        """The ranges of one micro-batch."""
        return self._ranges(start, end)


def _as_spark(offsets: Mapping[TopicPartition, int]) -> SparkOffsets:
    found: SparkOffsets = {}
    for place, offset in offsets.items():
        found.setdefault(place.topic, {})[str(place.partition)] = offset
    return found


def _share(
    start: SparkOffsets, latest: SparkOffsets, most: int, earliest: Mapping[TopicPartition, int]
) -> SparkOffsets:
    """Give each partition its part of `most` offsets, in proportion to how far behind it is."""
    behind = {}
    for topic, partitions in latest.items():
        for partition, until in partitions.items():
            place = TopicPartition(topic, int(partition))
            since = start.get(topic, {}).get(partition, earliest.get(place, until))
            behind[place] = (since, until)
    total = sum(until - since for since, until in behind.values())
    if total <= most:
        return latest
    shared = {}
    for place, (since, until) in behind.items():
        step = most * (until - since) / total
        shared[place] = min(until, since + (max(1, int(step)) if until > since else 0))
    return _as_spark(shared)


async def _wanted_partitions(cluster: Cluster, options: SourceOptions) -> list[TopicPartition]:
    if options.assigned is not None:
        return list(options.assigned)
    names = options.topics
    if options.pattern is not None:
        await cluster.refresh_metadata(None)
        names = tuple(sorted(name for name in cluster.metadata.topics if options.pattern.fullmatch(name)))
    else:
        await cluster.refresh_metadata(names)
    found = []
    for name in names:
        topic = await cluster.topic(name)
        found += [TopicPartition(name, number) for number in range(len(topic.partitions))]
    return found


async def _list_offsets(
    cluster: Cluster, where: list[TopicPartition], timestamp: int, isolation: int
) -> dict[TopicPartition, int]:
    found = {}
    for place in where:
        answer = await cluster.request_retrying(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation,
                topics=[
                    ListOffsetsRequest.ListOffsetsTopic(
                        name=place.topic,
                        partitions=[
                            ListOffsetsRequest.ListOffsetsPartition(
                                partition_index=place.partition, timestamp=timestamp
                            )
                        ],
                    )
                ],
            ),
            to=Leader(place.topic, place.partition),
        )
        row = answer.topics[0].partitions[0]
        if row.error_code:
            code = ErrorCode(row.error_code)
            raise error_for(code, f"asking for the offsets of {place}: {code.meaning}")
        found[place] = row.offset
    return found


async def _fetch(cluster: Cluster, part: OffsetRange, position: int, isolation: int) -> Any:
    answer = await cluster.request_retrying(
        FetchRequest(
            replica_id=-1,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            isolation_level=isolation,
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=part.topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=part.partition, fetch_offset=position, partition_max_bytes=_FETCH_BYTES
                        )
                    ],
                )
            ],
        ),
        to=Leader(part.topic, part.partition),
        lane="fetch",
    )
    return answer.responses[0].partitions[0]


__all__ = ["DataLost", "OffsetRange", "SemelDataSource"]
