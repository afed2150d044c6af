"""Where each row goes: its output partition, and the task that writes it.

Guarantees: a row always goes to the same partition, also when Spark computes a lost task again with the rows in another
order. The partition is the row's `partition` column, else Kafka's hash of the key, else a hash of the value; it never
depends on the order of rows. Only keys are sent to Python for this; everything else stays in the JVM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from semel.errors import Misuse
from semel.records.columns import partition_column

from .connections import cluster_of
from .kafka_options import ClientSettings
from .limits import find_topic

if TYPE_CHECKING:
    import pyarrow as pa

#: The column that carries a row's output partition through the shuffle.
TARGET = "__semel_target"

_HEADERS = "array<struct<key: string, value: binary>>"

#: How long to wait for a topic that a row names: a broker may be creating it.
_TOPIC_PATIENCE_MS = 10_000


def kafka_columns(frame: Any, topic: str | None) -> Any:
    """The columns of Spark's Kafka sink, cast to Kafka's types; and the source's offset, to name a refused row."""
    from pyspark.sql.functions import col
    from pyspark.sql.types import LongType

    names = set(frame.columns)
    columns = [col("value").cast("binary").alias("value")]
    if "key" in names:
        columns.append(col("key").cast("binary").alias("key"))
    if "headers" in names:
        columns.append(col("headers").cast(_HEADERS).alias("headers"))
    if "partition" in names:
        columns.append(col("partition").cast("int").alias("partition"))
    if topic is None:
        columns.append(col("topic").cast("string").alias("topic"))
    if "offset" in names and isinstance(frame.schema["offset"].dataType, LongType):
        columns.append(col("offset"))
    return frame.select(*columns)


def rows_by_partition(
    rows: Any, partitions: int | None, settings: ClientSettings, writers: int, refuse_row: Callable[[str], NoReturn]
) -> Any:
    """Add the output partition to each row, and shuffle so that each output partition is in one task.

    `partitions` is the topic's partition count; None if a column names the topic. A task calls `refuse_row` for a row
    whose topic is missing or does not exist.
    """
    from pyspark.sql.functions import coalesce, col, lit, when, xxhash64
    from pyspark.sql.functions import hash as hash_of
    from pyspark.sql.functions import pmod as remainder

    task = col(TARGET)
    if partitions is None:
        key = col("key") if "key" in rows.columns else lit(None).cast("binary")
        target = _partition_by_topic(settings, refuse_row)(col("topic"), key, col("value"))
        task = remainder(hash_of(col("topic")) + col(TARGET), lit(writers))
    else:
        target = remainder(xxhash64(col("value")), lit(partitions)).cast("int")
        if "key" in rows.columns:
            target = when(col("key").isNull(), target).otherwise(_partition_by_key(partitions)(col("key")))
    if "partition" in rows.columns:
        target = coalesce(col("partition"), target)
    return rows.withColumn(TARGET, target).drop("partition").repartitionById(writers, task)


def _partition_by_key(partitions: int) -> Any:
    def partition_of(keys: pa.Array) -> pa.Array:
        return partition_column(keys, partitions, 0)

    return _as_udf(partition_of)


def _partition_by_topic(settings: ClientSettings, refuse_row: Callable[[str], NoReturn]) -> Any:
    def partition_of(topics: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
        return partitions_for(topics, keys, values, settings, refuse_row)

    return _as_udf(partition_of)


def _as_udf(function: Any) -> Any:
    """An Arrow UDF. Spark reads the annotations, which must be types and not strings."""
    import pyarrow as pa
    import pyspark.sql.functions as spark_functions

    function.__annotations__ = dict.fromkeys(function.__annotations__, pa.Array)
    functions: Any = spark_functions
    return functions.arrow_udf(function, "int")


def partitions_for(
    topics: pa.Array, keys: pa.Array, values: pa.Array, settings: ClientSettings, refuse_row: Callable[[str], NoReturn]
) -> pa.Array:
    """The partition of each row in the topic that it names. Runs in a task."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if topics.null_count:
        refuse_row("a row has no topic: give start() a topic, or fill the column 'topic' in every row")
    chosen = pa.nulls(len(topics), pa.int32())
    for name in pc.unique(topics).to_pylist():
        count = _partition_count(name, settings, refuse_row)
        here = pc.if_else(pc.is_valid(keys), partition_column(keys, count, 0), partition_column(values, count, 0))
        chosen = pc.if_else(pc.equal(topics, name), here, chosen)
    return chosen


def _partition_count(topic: str, settings: ClientSettings, refuse_row: Callable[[str], NoReturn]) -> int:
    loop, cluster = cluster_of(settings)
    try:
        if topic in cluster.metadata.topics:
            return len(loop.run(cluster.topic(topic)).partitions)
        found = loop.run(find_topic(cluster, topic, patience_ms=_TOPIC_PATIENCE_MS, allow_auto_create=True))
    except Misuse as error:
        refuse_row(f"the column 'topic' says '{topic}': {error.why}")
    if found is None:
        refuse_row(f"the column 'topic' says '{topic}', and the cluster has no such topic: create it, or correct it")
    return len(found.partitions)
