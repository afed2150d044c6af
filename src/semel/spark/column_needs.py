"""Which of the source's columns a query looks at, told to the tasks that read. The others are null there.

Spark does not tell a Python source what a query needs: all seven columns of each record would be made, go through a
socket, and be copied by Spark twice, only to be dropped. `start` knows the plan, and tells the tasks by a local
property of the job that writes.

Guarantees: a column is left out only if no expression of the query and no column of its result refers to it. The
property counts for one query, and only while its rows are written: it names the query, and any other job that gets to
see it reads all columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .frames import children_of

if TYPE_CHECKING:
    import pyarrow as pa

_PROPERTY = "semel.columns"

#: Spark's own property of the jobs of a streaming query.
_QUERY_ID = "sql.streaming.queryId"

#: Plan nodes that use nothing of their input but what their expressions refer to. Others may compare whole rows.
_SIMPLE = ("Project", "Filter")


def needed_columns(frame: Any) -> frozenset[str] | None:
    """The columns of this package's source that a streaming query needs; None if that is not known for sure."""
    from py4j.protocol import Py4JError

    try:
        optimizer = frame.sparkSession._jsparkSession.sessionState().optimizer()
        plan = optimizer.execute(frame._jdf.queryExecution().analyzed())
        needed = set(_ids(plan.output()))
        while plan.nodeName() in _SIMPLE:
            if not plan.subqueries().isEmpty():
                return None  # a job of the same query, which may read this package's source as well
            needed.update(_ids(plan.references().toSeq()))
            [plan] = children_of(plan)
        if plan.nodeName() != "StreamingRelationV2" or str(plan.sourceName()).lower() != "semel":
            return None
        columns = plan.output()
        names = [str(columns.apply(index).name()) for index in range(columns.size())]
        return frozenset(name for name, number in zip(names, _ids(columns), strict=True) if number in needed)
    except Py4JError:  # another plan than expected
        return None


def _ids(attributes: Any) -> list[int]:
    return [int(attributes.apply(index).exprId().id()) for index in range(attributes.size())]


@contextmanager
def told_to_tasks(session: Any, columns: frozenset[str] | None) -> Iterator[None]:
    """Tell the tasks of the jobs that this thread runs meanwhile, for the streaming query that it runs."""
    context = session.sparkContext
    # There is no id if Python's threads are not the JVM's (PYSPARK_PIN_THREAD=false): then nothing is told.
    query_id = None if columns is None else context.getLocalProperty(_QUERY_ID)
    if columns is None or not query_id:
        yield
        return
    context.setLocalProperty(_PROPERTY, f"{query_id} {','.join(sorted(columns))}")
    try:
        yield
    finally:
        context.setLocalProperty(_PROPERTY, None)


def told_columns() -> frozenset[str] | None:
    """What the driver told this task: the columns that are needed. None for all."""
    from pyspark import TaskContext

    context = TaskContext.get()
    told = None if context is None else context.getLocalProperty(_PROPERTY)
    if context is None or not told:
        return None
    query_id, _, names = told.partition(" ")
    return frozenset(names.split(",")) if query_id == context.getLocalProperty(_QUERY_ID) else None


def only_needed(rows: pa.RecordBatch, needed: frozenset[str] | None) -> pa.RecordBatch:
    """The rows, with null in the columns that nobody looks at."""
    import pyarrow as pa

    if needed is None:
        return rows
    columns = [
        column if field.name in needed else pa.nulls(rows.num_rows, field.type)
        for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
