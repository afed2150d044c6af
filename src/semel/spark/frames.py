"""What the plan of a streaming DataFrame says: its sources, whether it keeps state, its constant columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

#: Plan nodes that keep no state between micro-batches. Any other node is taken to keep state.
_STATELESS = frozenset(
    {
        "CollectMetrics", "DataFrameDropColumns", "DeserializeToObject", "Filter", "Generate", "MapElements",
        "MapInArrow", "MapInPandas", "MapPartitions", "Project", "Repartition", "RepartitionByExpression",
        "ResolvedHint", "SerializeFromObject", "StreamingRelation", "StreamingRelationV2", "SubqueryAlias",
        "TypedFilter", "Union", "View",
    }
)  # fmt: skip

#: Plan nodes that give at most one row for each that they get.
_ROW_BY_ROW = frozenset(
    {
        "CollectMetrics", "DataFrameDropColumns", "Filter", "Project", "ResolvedHint", "StreamingRelationV2",
        "SubqueryAlias", "View",
    }
)  # fmt: skip

_KAFKA_SOURCES = ("semel", "kafka")


@dataclass(frozen=True, slots=True)
class StreamingSource:
    """One source of a streaming query: its format and its options (names in lower case). Options may be secret."""

    format: str
    options: dict[str, str] = field(repr=False)
    #: Its columns, if it is a source of the second version of Spark's interface.
    columns: tuple[str, ...] = ()

    @property
    def has_kafka_offsets(self) -> bool:
        """Whether its offsets are offsets of topics: true for this package's source and for Spark's Kafka source."""
        return self.format in _KAFKA_SOURCES

    @property
    def bootstrap_servers(self) -> str:
        return self.options.get("kafka.bootstrap.servers", "")

    @property
    def description(self) -> str:
        """What is read, and where: `semel[subscribe=payments at localhost:9092]`."""
        ways = ("subscribe", "subscribepattern", "assign")
        what = ", ".join(f"{way}={self.options[way]}" for way in ways if way in self.options)
        return f"{self.format}[{what} at {self.bootstrap_servers}]"


def sources_of(frame: Any) -> list[StreamingSource]:
    """The sources of a streaming DataFrame, in the order in which Spark stores their offsets."""
    found = []
    for node in _nodes(frame._jdf.queryExecution().analyzed()):
        if node.nodeName() == "StreamingRelationV2":
            options = {str(name).lower(): str(value) for name, value in dict(node.extraOptions()).items()}
            columns = node.output()
            names = tuple(str(columns.apply(index).name()) for index in range(columns.size()))
            found.append(StreamingSource(str(node.sourceName()).lower(), options, names))
        elif node.nodeName() == "StreamingRelation":
            found.append(StreamingSource(str(node.sourceName()).lower(), {}))
    return found


def keeps_state(frame: Any) -> bool:
    """Whether the query keeps something between micro-batches: state, or a watermark."""
    for node in _nodes(frame._jdf.queryExecution().analyzed()):
        name = node.nodeName()
        if name == "Join":
            if all(child.isStreaming() for child in children_of(node)):
                return True
        elif name not in _STATELESS and node.isStreaming():
            return True
    return False


def adds_no_rows(frame: Any) -> bool:
    """Whether the query gives at most a row for each record of its sources, all of which have offsets of topics."""
    return all(node.nodeName() in _ROW_BY_ROW for node in _nodes(frame._jdf.queryExecution().analyzed())) and all(
        source.has_kafka_offsets for source in sources_of(frame)
    )


def constant_in(frame: Any, column: str) -> Any:
    """The value of a column that is constant in the query; None if it is not."""
    from py4j.protocol import Py4JError

    try:
        optimizer = frame.sparkSession._jsparkSession.sessionState().optimizer()
        plan = optimizer.execute(frame.select(column)._jdf.queryExecution().analyzed())
        if plan.nodeName() != "Project":
            return None
        value = plan.projectList().apply(0).child()
        if not value.foldable():
            return None
        found = value.eval(None)
    except Py4JError:  # not an alias, or another plan than expected: the rows will tell
        return None
    return found if found is None or isinstance(found, int) else str(found)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in children_of(plan):
        yield from _nodes(child)


def children_of(node: Any) -> list[Any]:
    """The children of a plan node."""
    children = node.children()
    return [children.apply(index) for index in range(children.size())]
