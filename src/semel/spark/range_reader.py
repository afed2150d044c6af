"""Read one range of offsets in a task: fetch, drop aborted records, decode into Arrow columns.

The next fetch is sent before the columns of the last one are decoded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
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
class SmallRanges(InputPartition):
    """What one task reads if there is little: several ranges, one after the other."""

    ranges: tuple[OffsetRange, ...]


def read_range(wanted: OffsetRange, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The visible records of a range, as Arrow record batches."""
    loop, cluster = cluster_of(options.client_settings)
    place = TopicPartition(wanted.topic, wanted.partition)
    verify = bool(cluster.config["check.crcs"])
    position = wanted.start
    moved_at = time.monotonic()
    coming = _ask(loop, cluster, wanted, position, options) if position < wanted.end else None
    try:
        while coming is not None:
            row = coming.result()
            code = ErrorCode.of(row.error_code)
            if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                position = _after_loss(loop, cluster, place, position, wanted.end, options)
                batches: list[Batch] = []
            elif code is not ErrorCode.NONE:
                raise error_for(code, f"reading {place} at {position}: {code.meaning}")
            else:
                batches = split(row.records, partial_tail=True) if row.records else []
                if not batches and (time.monotonic() - moved_at) * 1000 > options.poll_timeout_ms:
                    raise DataLost(
                        f"{place}: nothing came from offset {position} on for {options.poll_timeout_ms} ms, but the "
                        f"range goes up to {wanted.end} (last stable offset: {row.last_stable_offset}). Is the ending "
                        "offset beyond the log, or has a transaction been open all this time?"
                    )
            since = position
            if batches:
                position, moved_at = batches[-1].next_offset, time.monotonic()
            coming = _ask(loop, cluster, wanted, position, options) if position < wanted.end else None
            columns = _columns(batches, row, wanted, since, options, verify) if batches else None
            if columns is not None and columns.num_rows:
                yield columns
    finally:
        if coming is not None:
            coming.cancel()


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


def _ask(loop: LoopThread, cluster: Cluster, wanted: OffsetRange, position: int, options: SourceOptions) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(_fetch(cluster, wanted, position, options.isolation_level), loop.loop)


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
