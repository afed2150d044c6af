"""Read ranges of offsets in a task: fetch, drop aborted records, decode into Arrow columns.

The next fetch is sent before the columns of the last one are decoded, also that of the next range.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from semel.client.blocking.loop_thread import LoopThread
from semel.client.cluster.cluster import Cluster, Leader
from semel.client.offset_requests import list_offsets
from semel.errors import ErrorCode, error_for
from semel.machines.reading.read_committed import all_batches, committed_batches
from semel.machines.values import TopicPartition
from semel.records.batch import Batch, split
from semel.records.columns import to_arrow
from semel.wire.messages.fetch import FetchRequest

from .column_needs import only_needed, told_columns
from .connections import cluster_of
from .source_options import EARLIEST, SourceOptions


class DataLost(Exception):
    """Records that should be read are gone. With failOnDataLoss=false the read goes on with what is left."""


@dataclass
class OffsetRange(InputPartition):
    """What one task reads: the offsets from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass
class SeveralRanges(InputPartition):
    """What one task reads if each range has little: several of them, one after the other."""

    ranges: tuple[OffsetRange, ...]


def read_ranges(wanted: Sequence[OffsetRange], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The visible records of ranges, one range after the other, as Arrow record batches.

    Columns that the query does not look at are null, if the driver has told the task which these are.
    """
    loop, cluster = cluster_of(options.client_settings)
    readers = [_RangeReader(loop, cluster, one, options) for one in wanted]
    needed = told_columns()
    try:
        for reader, following in zip_longest(readers, readers[1:]):
            for rows in reader.read(following):
                yield only_needed(rows, needed)
    finally:
        for reader in readers:
            reader.cancel()


class _RangeReader:
    """Reads one range, with one fetch on its way."""

    def __init__(self, loop: LoopThread, cluster: Cluster, wanted: OffsetRange, options: SourceOptions) -> None:
        self._loop, self._cluster, self._wanted, self._options = loop, cluster, wanted, options
        self._place = TopicPartition(wanted.topic, wanted.partition)
        self._verify = bool(cluster.config["check.crcs"])
        self._position = wanted.start
        self._coming: Future[Any] | None = None

    def ask(self) -> None:
        """Send the next fetch, unless one is on its way or all has come."""
        if self._coming is None and self._position < self._wanted.end:
            fetch = _fetch(self._cluster, self._wanted, self._position, self._options.isolation_level)
            self._coming = asyncio.run_coroutine_threadsafe(fetch, self._loop.loop)

    def cancel(self) -> None:
        """Wait no longer for the fetch that is on its way."""
        if self._coming is not None:
            self._coming.cancel()

    def read(self, following: _RangeReader | None) -> Iterator[pa.RecordBatch]:
        """Read the range. When its last fetch has come, the first one of the `following` range is sent."""
        moved_at = time.monotonic()
        self.ask()
        while self._coming is not None:
            row, self._coming = self._coming.result(), None
            since = self._position
            batches = self._batches(row, moved_at)
            if batches:
                self._position, moved_at = batches[-1].next_offset, time.monotonic()
            self.ask()
            if self._coming is None and following is not None:
                following.ask()
            columns = _columns(batches, row, self._wanted, since, self._options, self._verify) if batches else None
            if columns is not None and columns.num_rows:
                yield columns

    def _batches(self, row: Any, moved_at: float) -> list[Batch]:
        """The batches of an answer, or an error that says why there are none."""
        code = ErrorCode.of(row.error_code)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._position = _after_loss(
                self._loop, self._cluster, self._place, self._position, self._wanted.end, self._options
            )
            return []
        if code is not ErrorCode.NONE:
            raise error_for(code, f"reading {self._place} at {self._position}: {code.meaning}")
        batches = split(row.records, partial_tail=True) if row.records else []
        waited_ms = (time.monotonic() - moved_at) * 1000
        if not batches and waited_ms > self._options.poll_timeout_ms:
            raise DataLost(
                f"{self._place}: nothing came from offset {self._position} on for {self._options.poll_timeout_ms} ms, "
                f"but the range goes up to {self._wanted.end} (last stable offset: {row.last_stable_offset}). Is the "
                "ending offset beyond the log, or has a transaction been open all this time?"
            )
        return batches


def _columns(
    batches: list[Batch], row: Any, wanted: OffsetRange, since: int, options: SourceOptions, verify: bool
) -> pa.RecordBatch:
    if options.isolation_level:
        aborted = [(gone.producer_id, gone.first_offset) for gone in row.aborted_transactions or ()]
        visible = committed_batches(batches, aborted)
    else:
        visible = all_batches(batches)
    return to_arrow(
        visible,
        topic=wanted.topic,
        partition=wanted.partition,
        from_offset=since,
        to_offset=wanted.end,
        include_headers=options.include_headers,
        verify=verify,
    )


def _after_loss(
    loop: LoopThread, cluster: Cluster, place: TopicPartition, position: int, end: int, options: SourceOptions
) -> int:
    """The offset to go on from when an offset is no longer in the log, or `DataLost`."""
    timeout_ms = cluster.config["default.api.timeout.ms"]
    left = loop.run(list_offsets(cluster, {place: EARLIEST}, timeout_ms=timeout_ms))[place].offset
    if options.fail_on_data_loss:
        if left > position:
            what = f"the log starts at {left}."
        else:
            what = "the log ends before it: was the topic deleted and created again?"
        raise DataLost(
            f"{place}: offset {position} is gone, {what} Set failOnDataLoss=false to read on from what is left."
        )
    return left if left > position else end


async def _fetch(cluster: Cluster, wanted: OffsetRange, position: int, isolation: int) -> Any:
    most = cluster.config["max.partition.fetch.bytes"]
    answer = await cluster.request_retrying(
        FetchRequest(
            replica_id=-1,
            max_wait_ms=cluster.config["fetch.max.wait.ms"],
            min_bytes=1,
            max_bytes=most,
            isolation_level=isolation,
            session_id=0,
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=wanted.topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=wanted.partition, fetch_offset=position, partition_max_bytes=most
                        )
                    ],
                )
            ],
        ),
        to=Leader(wanted.topic, wanted.partition),
        lane="fetch",
    )
    return answer.responses[0].partitions[0]
