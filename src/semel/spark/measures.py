"""What a running pipeline measures: rows, bytes, commit times, reruns and lag, for its progress and for Prometheus.

Spark's own progress knows nothing of what foreachBatch does, and a listener gets Spark's event as it is. So the figures
are kept here, put into the `lastProgress` of what `start` returns, and served at `metrics_port`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .batch_transaction import Observer, Step
from .preflight import PipelineMistake

#: As many micro-batches as Spark keeps the progress of.
_KEPT = 100

Offsets = Mapping[str, Mapping[str, int]]


@dataclass
class BatchMeasures:
    """One micro-batch."""

    outcome: str = ""
    attempts: int = 1
    rows: int = 0
    size_bytes: int = 0
    begun_at: float | None = None
    produced_at: float | None = None
    write_ms: float | None = None
    commit_ms: float | None = None

    def as_metrics(self) -> dict[str, Any]:
        """For a StreamingQueryProgress: the same names as Spark's, in its units."""
        return {
            "outcome": self.outcome,
            "rows": self.rows,
            "bytes": self.size_bytes,
            "reruns": self.attempts - 1,
            "writeMs": None if self.write_ms is None else round(self.write_ms, 1),
            "commitMs": None if self.commit_ms is None else round(self.commit_ms, 1),
        }


class Measures:
    """The figures of one query. Its micro-batches write them on Spark's thread, others read them."""

    def __init__(
        self, observer: Observer, written: Callable[[], tuple[int, int]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._observer, self._written, self._clock = observer, written, clock
        self._lock = threading.Lock()
        self._batches: dict[int, BatchMeasures] = {}
        self._totals = {"committed": 0, "skipped": 0, "reruns": 0, "rows": 0, "bytes": 0}
        self._commit_s = 0.0
        self._last_batch = -1
        self._last_commit_at = 0.0
        #: The last progress of the query, as Spark describes it.
        self.progress: Callable[[], Mapping[str, Any] | None] = lambda: None
        self._server: MetricsServer | None = None

    def serve(self, host: str, port: int, transactional_id: str) -> None:
        """Serve the figures for Prometheus until `close`."""
        try:
            self._server = MetricsServer(host, port, lambda: self.render(transactional_id, self.progress()))
        except OSError as error:
            raise PipelineMistake(f"metrics_port={port} cannot be used at {host}: {error.strerror}") from None

    @property
    def port(self) -> int | None:
        """Where the figures are served; None if they are not."""
        return self._server.port if self._server else None

    def close(self) -> None:
        """Stop serving."""
        if self._server is not None:
            self._server.close()

    def observe(self, step: Step, batch_id: int) -> None:
        """A step of a micro-batch; handed on to the user's observer, which may raise."""
        with self._lock:
            self._note(step, batch_id)
        self._observer(step, batch_id)

    def batch(self, batch_id: int) -> BatchMeasures | None:
        """A micro-batch that has ended; None if it has not, or was long ago."""
        with self._lock:
            found = self._batches.get(batch_id)
            return found if found is not None and found.outcome else None

    def _batch(self, batch_id: int) -> BatchMeasures:
        found = self._batches.setdefault(batch_id, BatchMeasures())
        while len(self._batches) > _KEPT:
            del self._batches[next(iter(self._batches))]
        return found

    def _note(self, step: Step, batch_id: int) -> None:
        batch, now = self._batch(batch_id), self._clock()
        if step is Step.BEGUN:
            batch.begun_at = now
        elif step is Step.RETRYING:
            batch.attempts += 1
            self._totals["reruns"] += 1
        elif step is Step.PRODUCED:
            batch.produced_at = now
            batch.rows, batch.size_bytes = self._written()
            batch.write_ms = None if batch.begun_at is None else (now - batch.begun_at) * 1000
        elif step in (Step.COMMITTED, Step.SKIPPED):
            batch.outcome = step.value
            self._totals[step.value] += 1
            self._last_batch = batch_id
            if step is Step.COMMITTED:
                self._last_commit_at = time.time()
                self._totals["rows"] += batch.rows
                self._totals["bytes"] += batch.size_bytes
                if batch.produced_at is not None:
                    batch.commit_ms = (now - batch.produced_at) * 1000
                    self._commit_s += batch.commit_ms / 1000

    def render(self, transactional_id: str, progress: Mapping[str, Any] | None) -> str:
        """Prometheus' text format."""
        with self._lock:
            totals, commit_s, last, at = dict(self._totals), self._commit_s, self._last_batch, self._last_commit_at
        label = f'transactional_id="{_escaped(transactional_id)}"'
        page = _Page()
        page.family("batches_total", "counter", "Micro-batches that ended.", [
            (f'{label},outcome="{name}"', totals[name]) for name in ("committed", "skipped")])  # fmt: skip
        page.family("reruns_total", "counter", "Attempts that failed and were run again.", [(label, totals["reruns"])])
        page.family("rows_written_total", "counter", "Rows of committed micro-batches.", [(label, totals["rows"])])
        page.family("bytes_written_total", "counter", "Bytes of their batches, as sent.", [(label, totals["bytes"])])
        page.family(
            "commit_seconds_total", "counter", "Time from the last row written to the commit.", [(label, commit_s)]
        )
        page.family("last_batch", "gauge", "The last micro-batch that ended; -1 before the first.", [(label, last)])
        page.family("last_commit_timestamp_seconds", "gauge", "When the last one was committed.", [(label, at)])
        if progress is not None:
            rows = progress.get("numInputRows") or 0
            page.family("last_batch_rows_read", "gauge", "Rows that the last micro-batch read.", [(label, rows)])
            lags = [
                (f'{label},topic="{_escaped(topic)}",partition="{partition}"', lag)
                for source in progress.get("sources", ())
                for (topic, partition), lag in lags_of(source).items()
            ]
            page.family(
                "lag_offsets", "gauge", "Offsets that were not read when the last micro-batch was planned.", lags
            )
        return page.text()


class _Page:
    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, help_text: str, samples: Sequence[tuple[str, float]]) -> None:
        whole = f"semel_pipeline_{name}"
        self._lines += [f"# HELP {whole} {help_text}", f"# TYPE {whole} {kind}"]
        self._lines += [f"{whole}{{{labels}}} {value:g}" if isinstance(value, float) else f"{whole}{{{labels}}} {value}"
                        for labels, value in samples]  # fmt: skip

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def offsets_in(text: Any) -> Offsets:
    """Kafka's offsets of a source in its progress; nothing for other sources, and before the first."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return found if isinstance(found, dict) and all(isinstance(value, dict) for value in found.values()) else {}


def lags_of(source: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """How far each partition of a source is behind, by the progress of a micro-batch."""
    end, latest = offsets_in(source.get("endOffset")), offsets_in(source.get("latestOffset"))
    return {
        (topic, partition): max(0, offset - end.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    }


def metrics_host(spark: Any) -> str:
    """The address to serve at: the one that the driver listens on for its executors."""
    host = spark.conf.get("spark.driver.host", "127.0.0.1")
    return str(spark.conf.get("spark.driver.bindAddress", host))


class MetricsServer:
    """Serves GET /metrics while a query runs."""

    def __init__(self, host: str, port: int, render: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] in ("/metrics", "/")
                body = (render() if is_known else "GET /metrics\n").encode()
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """A scrape is nothing to log."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="semel-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
