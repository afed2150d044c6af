"""What a person sees of a running pipeline: a line per micro-batch.

On a terminal the line of the running micro-batch says which step it is at, and is then replaced by its result. Anywhere
else only results are printed, each with its time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TextIO

from ..batch_transaction import Step
from ..measures import offsets_in

_RUNNING = {Step.BEGUN: "writing", Step.PRODUCED: "written, committing", Step.OFFSETS_ADDED: "committing",
            Step.RETRYING: "failed, running again"}  # fmt: skip
_CLEAR = "\r\x1b[2K"


@dataclass
class Totals:
    """What was done since the start."""

    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    reruns: int = 0


class Screen:
    """Prints to a stream. `observe` is called by the micro-batches, `show` by the main thread."""

    def __init__(self, stream: TextIO, *, is_terminal: bool | None = None) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty() if is_terminal is None else is_terminal
        self._shown = self._begun = -1
        self._lock = threading.Lock()
        self.totals = Totals()

    @property
    def has_seen_a_batch(self) -> bool:
        """Whether a micro-batch was begun."""
        return self._begun >= 0

    def observe(self, step: Step, batch_id: int) -> None:
        """A step of a micro-batch. Runs on Spark's thread."""
        with self._lock:
            self._begun = max(self._begun, batch_id)
            if self._is_terminal and step in _RUNNING:
                self._write(f"{_CLEAR}batch {batch_id}: {_RUNNING[step]}")

    def show(self, progress: list[Any]) -> None:
        """Print the micro-batches that ended since the last call."""
        for one in progress:
            measured = one.observedMetrics.get("semel")
            if measured is None or one.batchId <= self._shown:
                continue
            with self._lock:
                self._shown = one.batchId
                self.totals.batches += 1
                self.totals.rows_in += one.numInputRows
                self.totals.rows_out += measured["rows"]
                self.totals.reruns += measured["reruns"]
                self._line(_result(one, measured))

    def say(self, text: str) -> None:
        """Print a line of our own."""
        with self._lock:
            self._line(text)

    def _line(self, text: str) -> None:
        if self._is_terminal:
            self._write(f"{_CLEAR}{text}\n")
        else:
            self._write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _result(progress: Any, measured: Any) -> str:
    """One line: `batch 7 committed: 1000 rows in, 980 out, 61 kB, 830 rows/s, payments 7000..8000, lag 0, ...`."""
    words = [f"{progress.numInputRows} rows in", f"{measured['rows']} out", f"{measured['bytes'] / 1000:.1f} kB"]
    if progress.processedRowsPerSecond and progress.processedRowsPerSecond > 0:
        words.append(f"{progress.processedRowsPerSecond:.0f} rows/s")
    for source in progress.sources:
        begin, end = offsets_in(source.startOffset), offsets_in(source.endOffset)
        words += [_span(topic, begin.get(topic, {}), ends) for topic, ends in end.items()]
    words.append(f"lag {measured['lag']}")
    if measured["commitMs"] is not None:
        words.append(f"commit {measured['commitMs']:.0f} ms")
    if measured["reruns"]:
        words.append(f"reruns {measured['reruns']}")
    return f"batch {progress.batchId} {measured['outcome']}: {', '.join(words)}"


def _span(topic: str, begin: Mapping[str, int], end: Mapping[str, int]) -> str:
    """How far a topic was read: `payments 0..500`, or the sums over its partitions."""
    first = sum(begin.get(partition, 0) for partition in end)
    return f"{topic} {first}..{sum(end.values())}"
