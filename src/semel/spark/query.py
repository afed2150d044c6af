"""A running pipeline: Spark's StreamingQuery, whose progress says what is read and written.

Spark names a source written in Python by a Java class and an address in memory, whatever it reads.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from .frames import StreamingSource

_PYTHON_SOURCE = ".datasources.v2.python."


class PipelineQuery(StreamingQuery):
    """What `start` returns: all that Spark's own query can do, with descriptions that describe."""

    def __init__(self, query: StreamingQuery, sources: list[StreamingSource], sink: str) -> None:
        super().__init__(query._jsq)
        self._sources = [source.description for source in sources if source.format == "semel"]
        self._sink = sink

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The last micro-batch that was run, or found nothing to do."""
        found = self._jsq.lastProgress()
        return self._with_descriptions(found.json()) if found is not None else None

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """The last micro-batches, as many as Spark keeps."""
        return [self._with_descriptions(found.json()) for found in self._jsq.recentProgress()]

    def _with_descriptions(self, text: str) -> StreamingQueryProgress:
        progress: dict[str, Any] = json.loads(text)
        unnamed = [source for source in progress["sources"] if _PYTHON_SOURCE in source["description"]]
        for source, description in zip(unnamed, self._sources, strict=False):
            source["description"] = description
        progress["sink"]["description"] = self._sink
        return StreamingQueryProgress.fromJson(progress)
