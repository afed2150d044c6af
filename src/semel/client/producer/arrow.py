"""Encodes Arrow tables into batches by partition, without a Python object per row."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from semel.errors import ErrorCode, InvalidRecord, Refused, error_for
from semel.records.batch import Batch
from semel.records.columns import from_arrow, partition_column

#: Other columns of a table are left alone.
SENT_COLUMNS = ("key", "value", "headers")


def check_rows(rows: object) -> None:
    """Refuse anything that is not a table of records. Column types are checked when the columns are encoded."""
    if not isinstance(rows, (pa.Table, pa.RecordBatch)):
        raise TypeError(f"rows are a pyarrow Table or RecordBatch, not {type(rows).__name__}")
    names = rows.schema.names
    if "value" not in names:
        raise InvalidRecord(ErrorCode.INVALID_RECORD, f"there is no column 'value' among {names}")
    for name in SENT_COLUMNS:
        if names.count(name) > 1:
            raise InvalidRecord(ErrorCode.INVALID_RECORD, f"there are {names.count(name)} columns '{name}'")


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
    max_row_bytes: int,
) -> list[tuple[int, bytes, int]]:
    """(partition, batch, record count) for all rows. Rows of a partition keep their order.

    All rows are encoded before the first is sent: if one cannot be encoded, none is sent.
    """
    try:
        return [
            (number, data, Batch.parse(data).record_count)
            for number, part in _by_partition(rows, partition_count, partition, keyless_partition)
            for data in from_arrow(
                part,
                timestamp_ms=timestamp_ms,
                codec=codec,
                level=level,
                max_batch_bytes=max_batch_bytes,
                max_row_bytes=max_row_bytes,
            )
        ]
    except Refused as refused:
        raise error_for(refused.code, f"{refused.why} (max.request.size)") from None
    except (ValueError, LookupError) as error:
        raise InvalidRecord(ErrorCode.INVALID_RECORD, f"the table holds a row that is not a record: {error}") from error
    except NotImplementedError as error:  # Arrow has no such conversion
        raise TypeError(str(error)) from error


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
    rows = _that_can_be_picked(rows)
    for number in pc.unique(targets).to_pylist():
        yield number, rows.filter(pc.equal(targets, number))


def _that_can_be_picked(rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """The columns that are sent, of types of which Arrow can pick rows. Of views (Polars gives them) it cannot."""
    columns = {name: rows.column(name) for name in SENT_COLUMNS if name in rows.schema.names}
    return pa.table({name: column.cast(_without_views(column.type)) for name, column in columns.items()})


def _without_views(kind: pa.DataType) -> pa.DataType:
    if kind == pa.string_view():
        return pa.large_string()
    if kind == pa.binary_view():
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_without_views(kind.value_type)))
    return kind
