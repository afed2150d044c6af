"""Where each row goes. Rows stay in the task that computed them: there is no shuffle.

Guarantees: a row goes to the partition in its column `partition`, else to the one that Kafka's clients choose for its
key. Rows of one key stay in their order. A row without a key goes to the partition that its task fills at the moment;
tasks and micro-batches begin with different ones, so that all partitions fill alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from semel.errors import Misuse
from semel.records.columns import partition_column

from .connections import cluster_of
from .kafka_options import ClientSettings
from .limits import find_topic

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns of Spark's Kafka sink.
_TYPES = {
    "value": "binary",
    "key": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "partition": "bigint",
    "topic": "string",
}

#: How long to wait for a topic that a row names: a broker may be creating it.
_TOPIC_PATIENCE_MS = 10_000


def kafka_columns(frame: Any, topic: str | None) -> tuple[Any, tuple[str, ...]]:
    """The columns of Spark's Kafka sink, cast to Kafka's types; and the source's offset, to name a refused row.

    Returns the rows, and the names of their columns.
    """
    types = [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
    names = {"value", *(name for name, _ in types)} - ({"topic"} if topic is not None else set())
    wanted = {name: kind for name, kind in _TYPES.items() if name in names}
    if ("partition", "int") in types:
        wanted["partition"] = "int"  # a longer one must not be cut off: that would be another partition
    if [kind for name, kind in types if name.lower() == "offset"] == ["bigint"]:
        wanted["offset"] = "bigint"
    if sorted(types) == sorted(wanted.items()):
        # A cast that changes nothing would still be analyzed anew in every micro-batch.
        return frame, tuple(name for name, _ in types)
    return frame.selectExpr(*(f"cast(`{name}` as {kind}) as {name}" for name, kind in wanted.items())), tuple(wanted)


def came_from(rows: pa.RecordBatch, row: int) -> str:
    """Which row it is, for a message: by the source's offset, if the rows have it."""
    offset = rows.column("offset")[row].as_py() if "offset" in rows.schema.names else None
    return "" if offset is None else f" (the row came from offset {offset})"


class Router:
    """The destinations of a task's rows.

    `partitions` is the partition count of `topic`; both are None if a column names the topic. `refuse_row` is called
    for a row whose topic is missing or does not exist. `turn` differs between tasks and between micro-batches.
    """

    def __init__(
        self,
        topic: str | None,
        partitions: int | None,
        settings: ClientSettings,
        refuse_row: Callable[[str], NoReturn],
        turn: int,
    ) -> None:
        self._topic, self._settings, self._refuse_row, self._turn = topic, settings, refuse_row, turn
        self._counts = {} if topic is None or partitions is None else {topic: partitions}
        self._filling: dict[str, int] = {}

    def route(self, batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """The rows of a batch by topic and partition, in their order."""
        import pyarrow.compute as pc

        if self._topic is not None:
            yield from self._within(self._topic, batch)
            return
        topics = batch.column("topic")
        if topics.null_count:
            which = came_from(batch, pc.index(topics.is_null(), True).as_py())
            self._refuse_row(
                f"a row has no topic{which}: give start() a topic, or fill the column 'topic' in every row"
            )
        for name in pc.unique(topics).to_pylist():
            yield from self._within(name, batch.filter(pc.equal(topics, name)).drop_columns(["topic"]))

    def _within(self, topic: str, rows: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        import pyarrow.compute as pc

        count, names = self._count(topic, rows), rows.schema.names
        filling = self._filling.setdefault(topic, self._turn % count)
        targets = partition_column(rows.column("key"), count, filling) if "key" in names else None
        if "partition" in names:
            given = rows.column("partition")
            targets = pc.fill_null(given, filling) if targets is None else pc.coalesce(given, targets)
            rows = rows.drop_columns(["partition"])
        if targets is None:
            yield topic, filling, rows
            return
        counts = pc.value_counts(targets)
        if len(counts) == 1:
            yield topic, targets[0].as_py(), rows
            return
        rows = rows.take(pc.array_sort_indices(targets))  # a stable sort
        start = 0
        for each in sorted(counts.to_pylist(), key=lambda each: each["values"]):
            yield topic, each["values"], rows.slice(start, each["counts"])
            start += each["counts"]

    def is_full(self, topic: str, partition: int) -> None:
        """A batch for this partition is complete: rows without a key go to the next one."""
        if self._filling[topic] == partition:
            self._filling[topic] = (partition + 1) % self._counts[topic]

    def _count(self, topic: str, rows: pa.RecordBatch) -> int:
        if topic not in self._counts:
            self._counts[topic] = _partition_count(topic, self._settings, self._refuse_row, came_from(rows, 0))
        return self._counts[topic]


def _partition_count(topic: str, settings: ClientSettings, refuse_row: Callable[[str], NoReturn], which: str) -> int:
    loop, cluster = cluster_of(settings)
    try:
        if topic in cluster.metadata.topics:
            return len(loop.run(cluster.topic(topic)).partitions)
        found = loop.run(find_topic(cluster, topic, patience_ms=_TOPIC_PATIENCE_MS, allow_auto_create=True))
    except Misuse as error:
        refuse_row(f"the column 'topic' says '{topic}'{which}: {error.why}")
    if found is None:
        refuse_row(
            f"the column 'topic' says '{topic}'{which}, and the cluster has no such topic: create it, or correct it"
        )
    return len(found.partitions)
