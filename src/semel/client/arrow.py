"""Arrow tables to batches by partition, with never a Python object per row."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from semel.records.batch import Batch
from semel.records.columns import from_arrow, partition_column


def encode_by_partition(
    rows: pa.Table | pa.RecordBatch,
    *,
    partition_count: int,
    partition: int | None,
    keyless_partition: int,
    timestamp_ms: int,
    codec: int,
    level: int | None,
    max_batch_bytes: int,
) -> Iterator[tuple[int, bytes, int]]:
    """(partition, batch, record count) for all rows; rows of a partition keep their order."""
    for number, part in _by_partition(rows, partition_count, partition, keyless_partition):
        for data in from_arrow(
            part, timestamp_ms=timestamp_ms, codec=codec, level=level, max_batch_bytes=max_batch_bytes
        ):
            yield number, data, Batch.parse(data).record_count


def _by_partition(
    rows: pa.Table | pa.RecordBatch, partition_count: int, partition: int | None, keyless_partition: int
) -> Iterator[tuple[int, pa.Table | pa.RecordBatch]]:
    if rows.num_rows == 0:
        return
    if partition is not None:
        yield partition, rows
        return
    if "key" not in rows.schema.names or partition_count == 1:
        yield keyless_partition if partition_count > 1 else 0, rows
        return
    targets = partition_column(rows.column("key"), partition_count, keyless_partition)
    for number in pc.unique(targets).to_pylist():
        yield number, rows.filter(pc.equal(targets, number))
