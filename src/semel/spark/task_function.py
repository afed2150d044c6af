"""Run a function in the tasks that compute a DataFrame, as `DataFrame.mapInArrow` does, with fewer calls to the JVM.

`mapInArrow` makes about thirty calls to the JVM, one after the other, and no task runs meanwhile. Most of them ask for
what is the same in every micro-batch. Here that is asked once. The function itself is pickled anew each time: it holds
what is to be written, and under which epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

#: What tasks run: from the rows of one task to its answer.
Function = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]

#: A larger function is left to Spark, which brings it to the tasks in another way: from 1 MB on, unless it is told
#: otherwise.
_LARGEST_COMMAND = 100_000


@dataclass(frozen=True, slots=True)
class _Known:
    """What the JVM was told before."""

    context: Any
    environment: dict[str, str]
    includes: list[str]
    new_function: Callable[..., Any]
    new_udf: Callable[..., Any]
    java_environment: Any
    java_includes: Any
    java_type: Any
    nothing: Any


class TaskFunctions:
    """Functions with one result type. `of_task` is run in tasks, like an argument of `mapInArrow`."""

    def __init__(self, result: Any) -> None:
        self._result = result
        self._known: _Known | None = None
        self._columns: dict[tuple[str, ...], Any] = {}

    def over(self, rows: Any, names: tuple[str, ...], function: Function) -> Any:
        """The same as `rows.mapInArrow(function, result)`. `names` are the columns of `rows`, all different."""
        from pyspark.serializers import CloudPickleSerializer
        from pyspark.sql import DataFrame
        from pyspark.util import PythonEvalType

        context = rows.sparkSession.sparkContext
        command = CloudPickleSerializer().dumps((function, self._result))
        if len(command) > _LARGEST_COMMAND or list(context._pickled_broadcast_vars):
            return rows.mapInArrow(function, self._result)
        known = self._what_is_known(rows.sparkSession)
        wrapped = known.new_function(
            bytearray(command), known.java_environment, known.java_includes, context.pythonExec, context.pythonVer,
            known.nothing, context._javaAccumulator,
        )  # fmt: skip
        kind = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
        udf = known.new_udf("semel", wrapped, known.java_type, kind, True, known.nothing, known.nothing)
        applied = udf.apply(self._columns_named(context, names))
        return DataFrame(rows._jdf.mapInArrow(applied, False, None), rows.sparkSession)

    def _what_is_known(self, session: Any) -> _Known:
        context, known = session.sparkContext, self._known
        environment, includes = dict(context.environment), list(context._python_includes)
        if known is None or (known.context, known.environment, known.includes) != (context, environment, includes):
            from py4j.java_collections import ListConverter, MapConverter

            client = context._gateway._gateway_client
            jvm = context._jvm
            known = self._known = _Known(
                context,
                environment,
                includes,
                jvm.SimplePythonFunction,
                getattr(jvm, "org.apache.spark.sql.execution.python.UserDefinedPythonFunction"),
                MapConverter().convert(environment, client),
                ListConverter().convert(includes, client),
                session._jsparkSession.parseDataType(self._result.json()),
                ListConverter().convert([], client),
            )
            self._columns.clear()
        return known

    def _columns_named(self, context: Any, names: tuple[str, ...]) -> Any:
        """These columns, by their names alone: those of the next micro-batch have the same."""
        from pyspark.sql.functions import col

        if names not in self._columns:
            self._columns[names] = context._jvm.PythonUtils.toSeq([col(f"`{name}`")._jc for name in names])
        return self._columns[names]
