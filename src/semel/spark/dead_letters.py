"""Dead letters: rows that cannot be processed go to a topic of their own, in the transaction of the others.

A dead letter has the key and the value of its source record, byte for byte, so that it can be processed again. Where it
came from and what is wrong with it is in its headers: `source.topic`, `source.partition`, `source.offset`, `error`.
The record's own headers come before them, if the source reads them (`includeHeaders`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .preflight import PipelineMistake, check_topic_name

#: The columns of a source that say where a row came from.
ORIGIN = ("topic", "partition", "offset")
_ERROR = "__semel_error"


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Which rows go to a dead letter topic.

    `when` is a Column, SQL text, or a function from a DataFrame to one of them. Where it gives text, the row is a dead
    letter and the text is its error; where it gives true, the error is the condition. Null and false are good rows.

    >>> DeadLetters("payments.dead", when="try_cast(string(value) as bigint) is null").topic
    'payments.dead'
    """

    topic: str
    when: Any

    def __post_init__(self) -> None:
        check_topic_name("dead_letters: topic", self.topic)
        if not isinstance(self.when, str) and not callable(self.when) and not hasattr(self.when, "_jc"):
            raise PipelineMistake(
                f"dead_letters: when={type(self.when).__name__}: must be a Column, SQL text, or a function from a "
                "DataFrame to one of them"
            )

    def split(self, frame: Any, keep: Callable[[Any], Any] = lambda rows: rows) -> tuple[Any, Any]:
        """The good rows as they are, and the dead letters as rows for the sink.

        `keep` caches rows. The judged ones are kept, so that each is judged once: a condition that says something else
        the second time (it asks a service, it throws dice) would lose a row, or write it to both. Cache the good rows
        too before more is done with them. Otherwise Spark merges a later filter with this one and may evaluate that
        first, so that its cast fails for a row that is a dead letter.
        """
        from pyspark.sql.functions import col

        judged = keep(frame.withColumn(_ERROR, self._error(frame)))
        good = judged.where(col(_ERROR).isNull()).drop(_ERROR)
        return good, dead_letter_rows(judged.where(col(_ERROR).isNotNull()), _ERROR)

    def _error(self, frame: Any) -> Any:
        from pyspark.sql.functions import expr, lit, when
        from pyspark.sql.types import BooleanType, NullType, StringType

        said = self.when(frame) if _is_function(self.when) else self.when
        words = said if isinstance(said, str) else "the condition for dead letters holds"
        column = expr(said) if isinstance(said, str) else said
        if not hasattr(column, "_jc"):
            raise PipelineMistake(
                f"dead_letters: the function returned {type(said).__name__}, and must return a Column or SQL text"
            )
        kind = frame.select(column.alias(_ERROR)).schema[_ERROR].dataType
        if isinstance(kind, BooleanType):
            return when(column, lit(words))
        if isinstance(kind, (StringType, NullType)):
            return column.cast("string")
        raise PipelineMistake(
            f"dead_letters: the condition gives {kind.simpleString()}, and must give the error as text, or true"
        )


def _is_function(given: Any) -> bool:
    return isinstance(given, Callable) and not hasattr(given, "_jc")  # type: ignore[arg-type]


def dead_letter_rows(frame: Any, error: str) -> Any:
    """Rows of the source as dead letters. `error` is the name of the column with what is wrong.

    The frame must have the columns key, value, topic, partition and offset of the source.
    """
    from pyspark.sql.functions import array, array_append, coalesce, col, concat, lit, struct

    missing = [name for name in ("key", "value", *ORIGIN) if name not in frame.columns]
    if missing:
        raise PipelineMistake(
            f"dead letters need the source's columns key, value, topic, partition and offset; {', '.join(missing)} "
            "missing: select them too, and let the functions of the outputs choose theirs"
        )

    def header(name: str, value: Any) -> Any:
        return struct(lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))

    headers = array(*(header(f"source.{name}", col(name)) for name in ORIGIN))
    headers = array_append(headers, header("error", col(error)))
    if "headers" in frame.columns:
        own = col("headers").cast("array<struct<key: string, value: binary>>")
        headers = concat(coalesce(own, array().cast("array<struct<key: string, value: binary>>")), headers)
    return frame.select("key", "value", headers.alias("headers"))
