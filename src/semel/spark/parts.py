"""In which parts Spark hands the rows of a micro-batch to a task's Python.

By default a part has 10,000 rows, or 64 MB. If rows are large, Python waits for all of them and does nothing meanwhile,
and both sides hold them in memory. So a part is as large as a batch is worth. There are two ways to say so:

- By bytes. Whatever comes, a part has this size. But Spark computes the size anew for each row, which takes an eighth
  of its time if rows are small.
- By rows, which costs nothing. How large rows are is known from the micro-batch before. If they are much larger this
  time, so is a part; the next micro-batch knows.
"""

from __future__ import annotations

from typing import Any

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"

#: With this value Spark does not compute sizes.
_NO_LIMIT = 2**31 - 1

#: The most rows of a part that is chosen by rows: if each has 1 MB, which is what a topic takes by default, they still
#: fit into a part. Larger parts are not quicker, either.
_MOST_ROWS = 2_000

#: Rows are small if they have less bytes on average.
_SMALL_ROW = 1024


class Parts:
    """Chooses the parts of each micro-batch of a query. If a user has set their size, that stays."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._most_rows: int | None = None
        self._is_set = False
        self._chosen: tuple[int, int] | None = None

    def choose(self, session: Any, row_bytes: float | None) -> None:
        """Set the parts in the session of the micro-batches.

        `row_bytes` is the average of the micro-batch before. None if it is not known, or if that micro-batch failed.
        """
        if self._most_rows is None:
            self._is_set = session._jsparkSession.sessionState().conf().contains(_BYTES)
            given = int(session.conf.get(_ROWS))
            self._most_rows = given if given > 0 else _NO_LIMIT
        if self._is_set:
            return
        chosen = self._size_bytes, self._most_rows
        if row_bytes is not None and row_bytes < _SMALL_ROW:
            chosen = _NO_LIMIT, min(self._most_rows, _MOST_ROWS, int(self._size_bytes / row_bytes))
        if chosen != self._chosen:
            session.conf.set(_BYTES, str(chosen[0]))
            session.conf.set(_ROWS, str(chosen[1]))
            self._chosen = chosen
