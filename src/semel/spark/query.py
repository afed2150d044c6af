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
from .hopeless import source_failure
from .measures import Measures, lags_of

#: How often a query that is to stop is looked at.
_LOOK_AGAIN_S = 0.1

_PYTHON_SOURCE = ".datasources.v2.python."


class PipelineQuery(StreamingQuery):
    """What `start` returns: all that Spark's own query can do."""

    def __init__(
        self,
        query: StreamingQuery,
        sources: list[StreamingSource],
        sink: str,
        callback: BatchCallback,
        measures: Measures,
    ) -> None:
        super().__init__(query._jsq)
        self._sources = [source.description for source in sources if source.format == "semel"]
        self._sink = sink
        self._callback = callback
        self._measures = measures
        measures.progress = self._plain_progress

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end. A failed query raises Spark's StreamingQueryException, `__cause__` the pipeline's error."""
        try:
            return super().awaitTermination(timeout)  # type: ignore[arg-type]
        except StreamingQueryException as error:
            if self._callback.has_stopped:
                return None if timeout is None else True
            raise self._with_cause(error)  # noqa: B904 - it has its cause

    def stop_after_batch(self) -> None:
        """Let the running micro-batch end, and stop before the next one. `stop()` would abort it instead.

        Returns when the query has ended. If it ends by an error, that is raised as by `awaitTermination`.
        """
        self._callback.stopping.set()
        while not self.awaitTermination(_LOOK_AGAIN_S):
            if not self.status["isTriggerActive"]:
                self.stop()  # it waits for data or for its next trigger

    def exception(self) -> StreamingQueryException | None:
        """The error that ended the query, or None; `__cause__` is the pipeline's own error."""
        error = super().exception()
        return None if error is None or self._callback.has_stopped else self._with_cause(error)

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The last micro-batch that was run, or found nothing to do."""
        found = self._jsq.lastProgress()
        return self._with_descriptions(found.json()) if found is not None else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """The last micro-batches, as many as Spark keeps."""
        return [self._with_descriptions(found.json()) for found in self._jsq.recentProgress()]

    @property
    def metrics_port(self) -> int | None:
        """The port at which the driver serves its figures for Prometheus; None if it does not."""
        return self._measures.port

    def _plain_progress(self) -> dict[str, Any] | None:
        """Spark's last progress, for a scrape: none is no reason to fail."""
        try:
            found = self._jsq.lastProgress()
            return json.loads(found.json()) if found is not None else None
        except Exception:  # the JVM ends
            return None

    def _with_cause(self, error: StreamingQueryException) -> StreamingQueryException:
        failure: Any = self._callback.failure or source_failure(str(error))
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
        lag = 0
        for source in progress["sources"]:
            behind = lags_of(source)
            lag += sum(behind.values())
            source["metrics"] = {**(source.get("metrics") or {}), "lag": str(sum(behind.values()))}
        measured = self._measures.batch(progress["batchId"])
        if measured is not None:
            progress["sink"]["numOutputRows"] = measured.rows
            own = {**measured.as_metrics(), "lag": lag}
            progress["observedMetrics"] = {**progress.get("observedMetrics", {}), "semel": own}
        return StreamingQueryProgress.fromJson(progress)
