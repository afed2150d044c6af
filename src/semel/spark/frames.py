"""What a streaming frame is made of, read from its plan: its sources, whether it keeps state, its constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: Streaming steps that remember nothing from one micro-batch to the next. Whatever is not here is taken to remember.
_FORGETFUL = frozenset(
    {
        "CollectMetrics", "DataFrameDropColumns", "DeserializeToObject", "Filter", "Generate", "MapElements",
        "MapInArrow", "MapInPandas", "MapPartitions", "Project", "Repartition", "RepartitionByExpression",
        "ResolvedHint", "SerializeFromObject", "StreamingRelation", "StreamingRelationV2", "SubqueryAlias",
        "TypedFilter", "Union", "View",
    }
)  # fmt: skip

_KAFKA_SOURCES = ("semel", "kafka")


@dataclass(frozen=True, slots=True)
class StreamingSource:
    """One source of a streaming query: its format, and the options it was given (names in lower case)."""

    format: str
    options: dict[str, str]

    @property
    def has_kafka_offsets(self) -> bool:
        """Whether its offsets are those of topics: true of this package's source and of Spark's own."""
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
    """The sources a streaming frame reads, in the order in which Spark writes their offsets down."""
    found = []
    for node in _nodes(frame._jdf.queryExecution().analyzed()):
        if node.nodeName() == "StreamingRelationV2":
            options = {str(name).lower(): str(value) for name, value in dict(node.extraOptions()).items()}
            found.append(StreamingSource(str(node.sourceName()).lower(), options))
        elif node.nodeName() == "StreamingRelation":
            found.append(StreamingSource(str(node.sourceName()).lower(), {}))
    return found


def keeps_state(frame: Any) -> bool:
    """Whether the query remembers something between micro-batches: state, or how far event time has come."""
    for node in _nodes(frame._jdf.queryExecution().analyzed()):
        name = node.nodeName()
        if name == "Join":
            if all(child.isStreaming() for child in _children(node)):
                return True
        elif name not in _FORGETFUL and node.isStreaming():
            return True
    return False


def constant_in(frame: Any, column: str) -> Any:
    """The value a column has in every row, where the query itself says so; else None."""
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
    except Py4JError:  # not an alias, or a plan that is optimized in another way: the rows will tell
        return None
    return found if found is None or isinstance(found, int) else str(found)


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


def _children(node: Any) -> list[Any]:
    children = node.children()
    return [children.apply(index) for index in range(children.size())]
