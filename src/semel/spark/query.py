"""A running pipeline: Spark's StreamingQuery with readable descriptions and errors.

Spark describes a Python source by a Java class and a memory address, and wraps an error of foreachBatch in a Java
exception whose text begins with Spark's own words. Here the pipeline's sentence comes first, and the Python error is
the `__cause__`.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from .callbacks import BatchCallback
from .frames import StreamingSource

_PYTHON_SOURCE = ".datasources.v2.python."


class PipelineQuery(StreamingQuery):
    """What `start` returns: all that Spark's own query can do."""

    def __init__(
        self, query: StreamingQuery, sources: list[StreamingSource], sink: str, callback: BatchCallback
    ) -> None:
        super().__init__(query._jsq)
        self._sources = [source.description for source in sources if source.format == "semel"]
        self._sink = sink
        self._callback = callback

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the end. A failed query raises Spark's StreamingQueryException, `__cause__` the pipeline's error."""
        try:
            return super().awaitTermination(timeout)
        except StreamingQueryException as error:
            raise self._with_cause(error)  # noqa: B904 - it has its cause

    def exception(self) -> StreamingQueryException | None:
        """The error that ended the query, or None; `__cause__` is the pipeline's own error."""
        error = super().exception()
        return None if error is None else self._with_cause(error)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The last micro-batch that was run, or found nothing to do."""
        found = self._jsq.lastProgress()
        return self._with_descriptions(found.json()) if found is not None else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """The last micro-batches, as many as Spark keeps."""
        return [self._with_descriptions(found.json()) for found in self._jsq.recentProgress()]

    def _with_cause(self, error: StreamingQueryException) -> StreamingQueryException:
        failure: Any = self._callback.failure
        if failure is not None:
            captured: Any = error
            sentence = f"{type(failure).__name__}: {failure}"
            if not captured._desc.startswith(sentence):
                captured._desc = f"{sentence}\n\n{captured._desc}"
            error.__cause__ = failure
        return error

    def _with_descriptions(self, text: str) -> StreamingQueryProgress:
        progress: dict[str, Any] = json.loads(text)
        unnamed = [source for source in progress["sources"] if _PYTHON_SOURCE in source["description"]]
        for source, description in zip(unnamed, self._sources, strict=False):
            source["description"] = description
        progress["sink"]["description"] = self._sink
        return StreamingQueryProgress.fromJson(progress)
