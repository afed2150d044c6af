"""Read a topic into Spark: committed records as Arrow columns, with the schema of Spark's Kafka source.

Guarantees: a micro-batch covers exactly the offsets between its start and its end, so a rerun reads the same records. A
batch ends at the last stable offset at most, so no task waits for an open transaction. The gaps of markers and aborted
records are not taken for data loss: only the log start offset decides that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from semel.client.cluster.cluster import Cluster
from semel.client.cluster.metadata import NO_TOPIC_ID
from semel.client.offset_requests import list_offsets
from semel.errors import KafkaError, RequestTimedOut
from semel.machines.values import TopicPartition

from .connections import cluster_of
from .limits import find_topic
from .range_reader import DataLost, OffsetRange, SeveralRanges, read_ranges
from .source_check import TOPIC_PATIENCE_MS, check_topics
from .source_options import COLUMNS, EARLIEST, LATEST, OWN_COLUMNS, Bound, OptionError, SourceOptions
from .source_plan import (
    SparkOffsets,
    as_spark,
    by_place,
    ends_not_before,
    ends_within_limit,
    is_batch_due,
    join_ranges,
    places_of,
    split_ranges,
    unread_spans,
)

log = logging.getLogger("semel.spark")

_SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
_HEADERS = ", headers array<struct<key: string, value: binary>>"

#: How long a topic that was read is looked for until it counts as deleted. A broker that was just restarted, or has
#: just become the controller, may not know it for a moment.
_GONE_PATIENCE_MS = 10_000

#: What was heard of a topic so lately need not be asked again.
_JUST_NOW_S = 1.0

#: The pauses between questions for an end of a log that lies before what was read.
_ASK_AGAIN_S = (0.2, 0.5, 1.0, 0.0)

_NO_STREAM_WRITER = (
    "format('semel') reads. To write so that every row arrives exactly once, give the streaming DataFrame to "
    "semel.spark.start(frame, bootstrap_servers=..., transactional_id=..., topic=..., checkpoint=...)"
)
_NO_WRITER = (
    "format('semel') reads. To write so that every row arrives exactly once, give the DataFrame to "
    "semel.spark.write(frame, name=..., bootstrap_servers=..., transactional_id=..., topic=...)"
)


class SemelDataSource(DataSource):
    """`format("semel")`: a replacement for Spark's Kafka source, for batch and streaming queries."""

    #: A read of little is cut into no more tasks than these. None: a task for each partition.
    most_tasks: int | None = None

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "semel"

    def schema(self) -> str:
        """The columns of Spark's Kafka source. `load()` calls this, so mistakes in the options are raised here."""
        with _without_stack():
            options = SourceOptions.parse(self.options, streaming=None)
            check_topics(options)
        return _SCHEMA + (_HEADERS if options.include_headers else "")

    def reader(self, schema: Any) -> DataSourceReader:
        """The reader of a batch query."""
        with _without_stack():
            _refuse_another_schema(schema)
            return SemelBatchReader(SourceOptions.parse(self.options, streaming=False), self.most_tasks)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """The reader of a streaming query."""
        with _without_stack():
            _refuse_another_schema(schema)
            return SemelStreamReader(SourceOptions.parse(self.options), self.most_tasks)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        """Refused: Spark would write in parts, which cannot be one transaction."""
        with _without_stack():
            raise OptionError(_NO_WRITER)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        """Refused: Spark gives such a writer no way to run a batch again."""
        with _without_stack():
            raise OptionError(_NO_STREAM_WRITER)


def _refuse_another_schema(schema: Any) -> None:
    """Refuse the schema of a user, for which Spark does not ask `schema()`."""
    if tuple(schema.names)[: len(COLUMNS)] != COLUMNS:
        raise OptionError(OWN_COLUMNS)


@contextmanager
def _without_stack() -> Iterator[None]:
    """Raise a user's mistake as one sentence. Otherwise Spark prints this worker's stack trace before it.

    The worker ends with the error, so the environment variable needs no reset.
    """
    try:
        yield
    except (OptionError, KafkaError, DataLost):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


class _RangeReader:
    """Common to both readers: offsets are looked up on the driver, ranges are read in the tasks."""

    def __init__(self, options: SourceOptions, most_tasks: int | None = None) -> None:
        self._options, self._most_tasks = options, most_tasks
        #: Topics that are to be read and were deleted.
        self._gone: set[str] = set()

    def _offsets_at(
        self, wanted: Mapping[TopicPartition, int], most_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Offsets by timestamp, or by -2 and -1 for the start and the end of the log. -1 if no record is that young."""
        if not wanted:
            return {}
        loop, cluster = cluster_of(self._options.client_settings)
        timeout_ms = cluster.config["default.api.timeout.ms"] if most_ms is None else most_ms
        isolation = self._options.isolation_level
        found = loop.run(list_offsets(cluster, wanted, isolation_level=isolation, timeout_ms=timeout_ms))
        return {place: answer.offset for place, answer in found.items()}

    def _partitions_of_topics(self) -> list[TopicPartition]:
        """What is to be read, as far as it is there: `_gone` are the topics that are not."""
        loop, cluster = cluster_of(self._options.client_settings)
        return loop.run(_wanted_partitions(cluster, self._options, self._gone))

    def _all_partitions(self) -> list[TopicPartition]:
        """What is to be read. No topic may be missing: nothing says yet where reading is to begin."""
        places = self._partitions_of_topics()
        if self._gone:
            raise OptionError(f"topic '{min(self._gone)}' is gone: it was there at load(). Correct what is to be read")
        return places

    def _resolve(self, bound: Bound, places: list[TopicPartition]) -> SparkOffsets:
        """The offset of a bound for each partition."""
        wanted = {place: bound.for_partition(place) for place in places}
        if not bound.by_timestamp:
            special = {place: offset for place, offset in wanted.items() if offset in (EARLIEST, LATEST)}
            return as_spark({**wanted, **self._offsets_at(special)})
        found = self._offsets_at(wanted)
        unmatched = [place for place, offset in found.items() if offset < 0]
        if unmatched and not bound.latest_if_unmatched:
            raise OptionError(
                f"{bound.option}: no record of {unmatched[0]} is as young as {wanted[unmatched[0]]}. Set "
                "startingOffsetsByTimestampStrategy=latest to start at the end there."
            )
        return as_spark({**found, **self._offsets_at(dict.fromkeys(unmatched, LATEST))})

    def _ends_of_logs(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the logs end, whatever transactions are open."""
        loop, cluster = cluster_of(self._options.client_settings)
        timeout_ms = cluster.config["default.api.timeout.ms"]
        found = loop.run(list_offsets(cluster, dict.fromkeys(places, LATEST), isolation_level=0, timeout_ms=timeout_ms))
        return {place: answer.offset for place, answer in found.items()}

    def _ranges(self, start: SparkOffsets, end: SparkOffsets) -> list[OffsetRange | SeveralRanges]:
        new = [place for place in places_of(end) if str(place.partition) not in start.get(place.topic, {})]
        beginnings = self._offsets_at(dict.fromkeys(new, EARLIEST))  # a new partition is read from its beginning
        ranges = []
        for place in places_of(end):
            since = beginnings.get(place)
            since = start[place.topic][str(place.partition)] if since is None else since
            until = end[place.topic][str(place.partition)]
            if since > until and self._options.fail_on_data_loss:
                raise DataLost(_moved_back(place, until, since))
            if until > since:
                ranges.append(OffsetRange(place.topic, place.partition, since, until))
        if self._options.max_records_per_partition or self._options.min_partitions:
            return [*split_ranges(ranges, self._options.max_records_per_partition, self._options.min_partitions)]
        return join_ranges(ranges, self._most_tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task is to read, as Arrow record batches. Runs in the task."""
        if isinstance(partition, SeveralRanges):
            return read_ranges(partition.ranges, self._options)
        if not isinstance(partition, OffsetRange):
            return iter(())  # for a batch without ranges Spark makes up a partition, and runs a task
        return read_ranges((partition,), self._options)


class SemelBatchReader(_RangeReader, DataSourceReader):
    """The reader of a batch query."""

    def partitions(self) -> list[OffsetRange | SeveralRanges]:
        """The ranges between the starting and the ending offsets."""
        with _without_stack():
            places = self._all_partitions()
            for bound in (self._options.start, self._options.end):
                self._refuse_beyond_the_end(bound, places)
            start, end = self._resolve(self._options.start, places), self._resolve(self._options.end, places)
            return self._ranges(start, ends_not_before(start, end) if self._options.end.by_timestamp else end)

    def _refuse_beyond_the_end(self, bound: Bound, places: list[TopicPartition]) -> None:
        """Refuse an offset that does not exist yet. A task would wait for it for minutes."""
        if bound.by_timestamp or isinstance(bound.at, int):
            return
        for place, end in self._ends_of_logs(place for place in places if place in bound.at).items():
            if bound.at[place] > end:
                raise OptionError(f"{bound.option}: {bound.at[place]} for {place} is beyond its end, {end}: lower it")


class SemelStreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query. Spark plans one micro-batch after the other."""

    def __init__(
        self, options: SourceOptions, most_tasks: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(options, most_tasks)
        self._clock = clock
        self._until: SparkOffsets | None = None
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._last_batch_at: float | None = None
        self._told_gone: set[str] = set()

    def initialOffset(self) -> SparkOffsets:
        """Where a query with a new checkpoint starts."""
        return self._resolve(self._options.start, self._all_partitions())

    def getDefaultReadLimit(self) -> ReadLimit:
        """maxOffsetsPerTrigger, if it is given."""
        most = self._options.max_offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: SparkOffsets, limit: ReadLimit) -> SparkOffsets:
        """Where the next batch ends: at the last stable offsets, or before them if maxOffsetsPerTrigger is less."""
        self._refuse_offsets_of_another(start)
        found = self._latest() if self._until is None else self._until
        self._refuse_recreated()
        # No offset moves back and no partition of the start is dropped, unless data was lost and the user allows that.
        # Then reading goes on at the end: from the beginning it could repeat all that was read.
        latest = as_spark({**by_place(ends_not_before(start, found)), **self._moved_back(start, found)})
        new = [place for place in places_of(latest) if str(place.partition) not in start.get(place.topic, {})]
        waiting = unread_spans(start, latest, self._offsets_at(dict.fromkeys(new, EARLIEST)))
        if self._until is None and not self._is_due(sum(abs(until - since) for since, until in waiting.values())):
            return ends_not_before(start, {})
        return ends_within_limit(waiting, limit.max_rows) if isinstance(limit, ReadMaxRows) else latest

    def _refuse_offsets_of_another(self, start: SparkOffsets) -> None:
        """Refuse offsets of other topics: this source would take its own for new, and read all of them."""
        if self._options.are_of_another(known := places_of(start)):
            raise DataLost(self._options.nothing_of(known, "the checkpoint"))

    def _moved_back(self, start: SparkOffsets, found: SparkOffsets) -> dict[TopicPartition, int]:
        """The ends of the partitions that end before what was read of them: something was lost there.

        A last stable offset may lie before the start, and a new leader may know its end a moment later than its
        readers: only an end of the log that stays behind is a loss. A topic that is gone is one, too.
        """
        ends = by_place(found)
        back = {place: at for place, at in by_place(start).items() if ends.get(place, at) < at}
        behind: dict[TopicPartition, int] = {}
        for pause_s in _ASK_AGAIN_S if back else ():
            behind = {place: end for place, end in self._ends_of_logs(back).items() if end < back[place]}
            if not behind:
                return {}
            time.sleep(pause_s)
        if not back:
            self._refuse_what_is_gone(start, ends)
            return {}
        for place, end in behind.items():
            if self._options.fail_on_data_loss:
                raise DataLost(_moved_back(place, end, back[place]))
            log.warning("%s ends at %d, and was read up to %d: reading goes on at its end", place, end, back[place])
        return behind

    def _refuse_what_is_gone(self, start: SparkOffsets, ends: Mapping[TopicPartition, int]) -> None:
        """A topic that was deleted: what was not read of it is lost."""
        loop, cluster = cluster_of(self._options.client_settings)
        pattern = self._options.pattern
        for place in places_of(start):
            if place in ends:
                continue
            is_gone = place.topic in self._gone
            if pattern is not None and self._options.fail_on_data_loss and pattern.fullmatch(place.topic):
                is_gone = loop.run(find_topic(cluster, place.topic, patience_ms=TOPIC_PATIENCE_MS)) is None
            if is_gone:
                self._tell_gone(place, start[place.topic][str(place.partition)])

    def _tell_gone(self, place: TopicPartition, since: int) -> None:
        words = f"{place} was read up to {since}, and is gone: was the topic deleted?"
        if self._options.fail_on_data_loss:
            raise DataLost(f"{words} Set failOnDataLoss=false to go on without it.")
        if place.topic not in self._told_gone:
            self._told_gone.add(place.topic)
            log.warning("%s Reading goes on without it", words)

    def _refuse_recreated(self) -> None:
        """A topic with another id is another topic: its offsets say nothing of what was read."""
        _, cluster = cluster_of(self._options.client_settings)
        for name, topic in cluster.metadata.topics.items():
            known = self._topic_ids.setdefault(name, topic.topic_id)
            if known == topic.topic_id or NO_TOPIC_ID in (known, topic.topic_id):
                continue
            words = f"topic '{name}' was deleted and created again: what was not read of the old one is lost"
            if self._options.fail_on_data_loss:
                raise DataLost(
                    f"{words}, and its offsets mean nothing in the new one. To read the new one from its beginning, "
                    "start with an empty checkpoint. To go on at the old offsets, set failOnDataLoss=false."
                )
            log.warning("%s, and the new one is read from the offsets of the old one on", words)
            self._topic_ids[name] = topic.topic_id

    def _is_due(self, waiting: int) -> bool:
        """Whether a batch is due: minOffsetsPerTrigger is reached, or maxTriggerDelay has passed."""
        least, now = self._options.min_offsets_per_trigger, self._clock()
        since_last_ms = None if self._last_batch_at is None else (now - self._last_batch_at) * 1000
        if not is_batch_due(waiting, least, since_last_ms, self._options.max_trigger_delay_ms):
            return False
        self._last_batch_at = now
        return True

    def _latest(self) -> SparkOffsets:
        _, cluster = cluster_of(self._options.client_settings)
        deadline = time.monotonic() + cluster.config["default.api.timeout.ms"] / 1000
        while True:
            places = self._partitions_of_topics()
            left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
            try:
                return as_spark(self._offsets_at(dict.fromkeys(places, LATEST), min(left_ms, _GONE_PATIENCE_MS)))
            except RequestTimedOut:
                # A topic may have been deleted between the two questions: its offsets would be asked for in vain.
                if time.monotonic() >= deadline:
                    raise

    def reportLatestOffset(self) -> SparkOffsets:
        """The latest offsets, for the query's progress report."""
        return self._latest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of an availableNow run."""
        self._until = self._latest()

    def partitions(self, start: SparkOffsets, end: SparkOffsets) -> list[OffsetRange | SeveralRanges]:
        """The ranges of one micro-batch. Those of a topic that was deleted meanwhile are lost."""
        begins = by_place(start)
        unread = [place for place, until in by_place(end).items() if begins.get(place, 0) < until]
        loop, cluster = cluster_of(self._options.client_settings)
        gone = loop.run(_topics_that_are_gone(cluster, {place.topic for place in unread}))
        for place in unread:
            if place.topic in gone:
                self._tell_gone(place, begins.get(place, 0))
        return self._ranges(start, {topic: ends for topic, ends in end.items() if topic not in gone})


def _moved_back(place: TopicPartition, end: int, start: int) -> str:
    return (
        f"{place} ends at {end}, before {start}, where reading is to go on: was the topic deleted and created again, "
        "or is startingOffsets wrong? Set failOnDataLoss=false to go on at its end."
    )


async def _wanted_partitions(cluster: Cluster, options: SourceOptions, gone: set[str]) -> list[TopicPartition]:
    """The partitions to read. `gone` is changed: the topics that are not there, and are waited for only once."""
    patience_ms = cluster.config["default.api.timeout.ms"]  # a broker may be down for a while
    if options.pattern is not None:
        await cluster.refresh_retrying(None, timeout_ms=patience_ms)
        names = [name for name in sorted(cluster.metadata.topics) if options.pattern.fullmatch(name)]
    else:
        names = list(dict.fromkeys(options.topics or [place.topic for place in options.assigned or ()]))
        await cluster.refresh_retrying(names, timeout_ms=patience_ms)
    counts: dict[str, int] = {}
    for name in names:
        topic = cluster.metadata.topics.get(name)
        if topic is None and name not in gone:
            topic = await find_topic(cluster, name, patience_ms=_GONE_PATIENCE_MS)
        if topic is None:
            gone.add(name)
        else:
            gone.discard(name)
            counts[name] = len(topic.partitions)
    if options.assigned is not None:
        return [place for place in options.assigned if place.partition < counts.get(place.topic, 0)]
    return [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]


async def _topics_that_are_gone(cluster: Cluster, names: Iterable[str]) -> set[str]:
    """Those of the topics that were deleted. Brokers are asked only if that is not known from just now."""
    now = asyncio.get_running_loop().time()
    old = [name for name in names if now - cluster.metadata.fetched_at.get(name, -_JUST_NOW_S) >= _JUST_NOW_S]
    if not old:
        return set()
    await cluster.refresh_retrying(old, timeout_ms=cluster.config["default.api.timeout.ms"])
    missing = [name for name in old if name not in cluster.metadata.topics]
    return {name for name in missing if await find_topic(cluster, name, patience_ms=_GONE_PATIENCE_MS) is None}


__all__ = ["DataLost", "OffsetRange", "SemelDataSource"]
