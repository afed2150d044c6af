"""What a micro-batch is written to: one topic, or several, each by a function of its own, and dead letters.

Guarantees: with several outputs the source is read once for a micro-batch. Its rows are kept while they are written,
and released however that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .batch_transaction import BatchTransaction
from .dead_letters import DeadLetters
from .hopeless import CODING_ERRORS, failed_function, in_words
from .preflight import PipelineMistake, check_columns, check_topic_name

#: From the rows of a micro-batch to the rows of an output.
Transform = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the rows of a micro-batch go."""

    #: The one topic; None if rows name theirs, or if there are `functions`.
    topic: str | None = None
    functions: Mapping[str, Transform] = field(default_factory=dict)
    dead_letters: DeadLetters | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are known before there are rows."""
        named = (self.topic, *self.functions, self.dead_letters.topic if self.dead_letters else None)
        return tuple(name for name in named if name is not None)

    @property
    def description(self) -> str:
        """For the query's progress."""
        return ", ".join(self.topics) or "topics by row"

    def write(self, transaction: BatchTransaction, frame: Any) -> None:
        """Write a micro-batch into the open transaction."""
        if not self.functions:
            transaction.write(frame, self.topic)
            return
        kept: list[Any] = []

        def keep(rows: Any) -> Any:
            kept.append(rows.persist())
            return kept[-1]

        try:
            for rows, topic in self._parts_of(frame, keep, _rows_of_a_batch):
                transaction.write(rows, topic)
        finally:
            for rows in kept:
                rows.unpersist()

    def _parts_of(
        self, frame: Any, keep: Transform, rows_of: Callable[[str, Transform, Any], Any]
    ) -> list[tuple[Any, str]]:
        if self.dead_letters is None:
            frame, dead = keep(frame), []
        else:
            good, rows = self.dead_letters.split(frame, keep)
            frame, dead = keep(good), [(rows, self.dead_letters.topic)]
        return [*((rows_of(name, function, frame), name) for name, function in self.functions.items()), *dead]

    def check(self, frame: Any) -> None:
        """Check what each output would be given: the functions are called with a DataFrame that has no rows."""
        if not self.functions:
            check_columns(frame, self.topic)
            return
        empty = frame.sparkSession.createDataFrame([], frame.schema)
        if self.dead_letters is not None:
            with _told_beforehand("dead_letters: when"):
                self.dead_letters.split(empty)
        for rows, topic in self._parts_of(empty, lambda rows: rows, _rows_beforehand):
            try:
                check_columns(rows, topic)
            except PipelineMistake as error:
                raise PipelineMistake(f"output '{topic}': {error}") from None


def _rows_of(name: str, function: Transform, frame: Any) -> Any:
    rows = function(frame)
    if not hasattr(rows, "_jdf"):
        raise PipelineMistake(f"outputs['{name}'] returned {type(rows).__name__}, and must return a DataFrame")
    if rows.isStreaming:
        raise PipelineMistake(
            f"outputs['{name}'] returned a streaming DataFrame: it must make its rows of the DataFrame that it is "
            "given, which has those of one micro-batch"
        )
    return rows


@contextmanager
def _told_beforehand(what: str) -> Iterator[None]:
    """Raise what a user's function raises, or Spark says of its SQL, as one sentence that names the argument."""
    try:
        yield
    except PipelineMistake:
        raise
    except Exception as error:
        raise PipelineMistake(f"{what} raised {in_words(error)}") from error


def _rows_beforehand(name: str, function: Transform, frame: Any) -> Any:
    with _told_beforehand(f"outputs['{name}'], called with a DataFrame without rows,"):
        return _rows_of(name, function, frame)


def _rows_of_a_batch(name: str, function: Transform, frame: Any) -> Any:
    """The same while the query runs: what the function gets wrong it would get wrong again."""
    try:
        return _rows_of(name, function, frame)
    except PipelineMistake:
        raise
    except CODING_ERRORS as error:
        raise failed_function(name, error) from error


def outputs_of(topic: str | None, outputs: Any, dead_letters: Any) -> Outputs:
    """The arguments of `start`, checked."""
    if dead_letters is not None and not isinstance(dead_letters, DeadLetters):
        raise PipelineMistake(f"dead_letters={dead_letters!r}: must be semel.spark.DeadLetters(topic, when=...)")
    if outputs is None and dead_letters is not None:
        raise PipelineMistake(
            "dead_letters needs outputs={topic: function}: start() is given the source's rows, from which dead letters "
            "are made, and the function makes rows for the topic from the others"
        )
    if outputs is None:
        return Outputs(topic)
    if topic is not None:
        raise PipelineMistake("topic and outputs: give one of them; outputs names a topic for each function")
    if not isinstance(outputs, Mapping) or not outputs:
        raise PipelineMistake(f"outputs={outputs!r}: must be a mapping from topics to functions, at least one")
    for name, function in outputs.items():
        check_topic_name("outputs", name)
        if not callable(function):
            raise PipelineMistake(f"outputs['{name}']={function!r}: must be a function from a DataFrame to a DataFrame")
    if dead_letters is not None and dead_letters.topic in outputs:
        raise PipelineMistake(f"topic '{dead_letters.topic}' is an output too: give dead letters one of their own")
    return Outputs(None, dict(outputs), dead_letters)
