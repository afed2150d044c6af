"""Start an exactly-once pipeline.

Guarantees: what would break exactly-once, and every mistake that can be found beforehand, is refused before the query
starts (`preflight`). All connections and threads of a pipeline are closed when its query ends.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from semel.errors import Retriable
from semel.machines.pipeline.batch_marker import (
    forget_command,
    refuse_foreign_checkpoint,
    refuse_group_of_another,
)
from semel.machines.pipeline.driver_transaction import PipelineProgress

from .adoption import adopt_checkpoint, refuse_a_begun_first_batch
from .batch_transaction import WHERE_TO_KEEP_PROGRESS, BatchTransaction, Observer, OutputSettings, no_observer
from .callbacks import BatchCallback, require_callbacks
from .changed_sources import refuse_changed_sources, refuse_deleted_topics
from .checkpoint import Checkpoint
from .column_needs import needed_columns
from .dead_letters import DeadLetters
from .driver_side import DriverSide
from .frames import StreamingSource, adds_no_rows, keeps_state
from .kafka_options import redaction_pattern
from .measures import Measures, metrics_host
from .outputs import Outputs, Transform, outputs_of
from .parts import Parts
from .preflight import (
    PipelineMistake,
    bootstrap_text,
    check_cluster,
    check_limits,
    check_query,
    check_sources,
    checkpoint_in_words,
    constants_of,
    kafka_arguments,
    location_text,
    refuse_what_breaks_the_promise,
    sink_options,
    sources_here,
    sparks_words,
)
from .query import PipelineQuery
from .sink import ExactlyOnceSink
from .source import SemelDataSource
from .workers_python import require_workers_python

log = logging.getLogger("semel.spark")

#: To hand over fewer bytes of rows to a task's Python at once would cost more than it saves.
_SMALLEST_PART = 256 << 10

#: Spark's setting for the options that are shown as "(redacted)".
_REDACTED_OPTIONS = "spark.sql.redaction.options.regex"


def register(spark: Any) -> None:
    """Make `spark.readStream.format("semel")` and `spark.read.format("semel")` known to a session."""
    if not hasattr(spark, "dataSource"):
        raise PipelineMistake(f"register() takes a SparkSession, not {type(spark).__name__}")
    require_workers_python(spark)
    spark.dataSource.register(_source_for(spark))
    _hide_secrets(spark)


def _source_for(spark: Any) -> type[SemelDataSource]:
    """The source with what its planner cannot ask for: on one machine, how many tasks run at once.

    More tasks for little data only cost time there. On a cluster executors come and go.
    """
    if not re.match(r"local(\[|$)", str(spark.sparkContext.master)):
        return SemelDataSource

    class OnOneMachine(SemelDataSource):
        most_tasks = int(spark.sparkContext.defaultParallelism)

    return OnOneMachine


def _hide_secrets(spark: Any) -> None:
    """Have Spark hide the secret options of a source where it prints a plan. It knows only some by itself."""
    pattern, known = redaction_pattern(), spark.conf.get(_REDACTED_OPTIONS)
    if pattern not in known:
        spark.conf.set(_REDACTED_OPTIONS, f"{known}|{pattern}" if known else pattern)


def start(
    frame: Any,
    *,
    bootstrap_servers: str | Sequence[str],
    transactional_id: str,
    checkpoint: str | os.PathLike[str],
    topic: str | None = None,
    outputs: Mapping[str, Transform] | None = None,
    dead_letters: DeadLetters | None = None,
    output_mode: str = "append",
    trigger: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    transaction_timeout_ms: int = 600_000,
    compression: str = "none",
    writers: int | None = None,
    attempts: int = 3,
    marker_topic: str | None = None,
    adopt: bool | str = False,
    kafka: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    claim_port: int | None = None,
    metrics_port: int | None = None,
    observer: Observer = no_observer,
) -> PipelineQuery:
    """Start a streaming query in which every micro-batch is one transaction. Returns Spark's StreamingQuery.

    `frame` has the columns of Spark's Kafka sink: `value`, and optionally `key`, `headers`, `partition`, `topic`.
    `transactional_id` is the pipeline's name on the broker: a second pipeline with the same name fences the first.
    Progress is committed to the group of the same name. `output_mode` is Spark's: append, update or complete. `writers`
    is the most tasks that compute and write rows (by default as many as the query has). `attempts` is how often a
    micro-batch is tried before the query fails. `kafka` are settings of the client, by Kafka's or librdkafka's names:
    security, timeouts, `batch.size` and so on. `claim_port` is the driver's port that tasks connect to before they
    write, for a cluster with a firewall.

    `metrics_port` is where the driver serves its figures for Prometheus, at /metrics. 0 takes a free port, and
    `query.metrics_port` tells which.

    `outputs`, in place of `topic`, are several topics, each with a function from the rows of a micro-batch to the rows
    for this topic, all in one transaction. With them `dead_letters` may say which rows go to another topic, with where
    they came from and what is wrong with them.

    `adopt` takes over a checkpoint that has no progress on the broker: one that was made with Spark's own sink, or one
    whose progress expired. 'repeat' also accepts that rows of a batch that was begun before are written again.

    Raises `PipelineMistake` for a mistake that can be found beforehand, and `MarkerConflict` for a checkpoint that does
    not belong to the progress on the broker.
    """
    check_limits(
        transactional_id=transactional_id, topic=topic, marker_topic=marker_topic, compression=compression,
        writers=writers, attempts=attempts, transaction_timeout_ms=transaction_timeout_ms, observer=observer,
    )  # fmt: skip
    check_query(output_mode=output_mode, trigger=trigger, query_name=query_name, options=options)
    if type(adopt) is not bool and adopt != "repeat":
        raise PipelineMistake(f"adopt={adopt!r}: must be True, False or 'repeat'")
    if metrics_port is not None and (type(metrics_port) is not int or not 0 <= metrics_port <= 65535):
        raise PipelineMistake(f"metrics_port={metrics_port!r}: must be a port, or 0 for a free one")
    targets = outputs_of(topic, outputs, dead_letters)
    bootstrap, location = bootstrap_text(bootstrap_servers), location_text(checkpoint)
    client, options = kafka_arguments(kafka, options or {})
    refuse_what_breaks_the_promise(frame, location, trigger, options)
    targets.check(frame)
    sources = check_sources(frame)
    stream = frame.writeStream.outputMode(output_mode.lower()).option("checkpointLocation", location).options(**options)
    if trigger:
        with sparks_words(f"trigger={dict(trigger)!r}: "):
            stream = stream.trigger(**trigger)
    if query_name:
        stream = stream.queryName(query_name)
    spark = frame.sparkSession
    require_workers_python(spark)
    require_callbacks(spark)
    client_settings, producer = sink_options(bootstrap, client, transactional_id, compression)
    side = DriverSide(
        spark, client_settings, transactional_id, timeout_ms=transaction_timeout_ms, step_ms=producer.step_ms,
        claim_port=claim_port,
    )  # fmt: skip
    measures: Measures | None = None
    try:
        where = Checkpoint(spark, location)
        here = _look_at_the_cluster(side, bootstrap, frame, targets, marker_topic, sources)
        marker_at = marker_topic or next(iter(targets.topics), None)
        settings = OutputSettings(client_settings, producer, writers, marker_at, here)
        kept_in = side.keep_progress(marker_topic, targets.topics)
        writing = BatchTransaction(side.loop, side.client, side.claims, settings)
        with checkpoint_in_words(location):
            if adopt:
                adopt_checkpoint(side, writing, where, repeat=adopt == "repeat")
            forget = forget_command(transactional_id, bootstrap, kept_in)
            progress = _refuse_a_foreign_checkpoint(side, where, forget)
            if progress is not None:
                refuse_deleted_topics(sources, here, where, progress, transactional_id)
            if (known := where.next_batch()) is not None:
                refuse_changed_sources(sources, where, known[1])
        measures = Measures(observer, lambda: (writing.rows, writing.size_bytes))
        sink = ExactlyOnceSink(
            writing, where, targets.write, attempts=attempts, keeps_state=keeps_state(frame), observer=measures.observe,
            adds_no_rows=not targets.functions and adds_no_rows(frame),
            parts=Parts(max(producer.rows_bytes, _SMALLEST_PART)),
            needed_columns=None if targets.functions else needed_columns(frame),
        )  # fmt: skip
        callback = BatchCallback(sink)
        if metrics_port is not None:
            measures.serve(metrics_host(spark), metrics_port, transactional_id)
        with sparks_words(), checkpoint_in_words(location), where.written_quickly(spark):
            query = stream.foreachBatch(callback).start()
    except BaseException:
        if measures is not None:
            measures.close()
        side.close()
        raise
    found = PipelineQuery(query, sources, f"semel[{targets.description} at {bootstrap}]", callback, measures)
    threading.Thread(target=_close_after, args=(side, measures, query), name="semel-pipeline-end", daemon=True).start()
    return found


def _look_at_the_cluster(
    side: DriverSide,
    bootstrap: str,
    frame: Any,
    targets: Outputs,
    marker_topic: str | None,
    sources: list[StreamingSource],
) -> tuple[bool, ...]:
    """Check topics, partitions and limits with the cluster. Returns which sources are on it."""
    named = [(topic, None) for topic in targets.topics] if targets.functions else [constants_of(frame, targets.topic)]
    side.loop.run(check_cluster(side.cluster, bootstrap, named, marker_topic, side.transaction.timeout_ms))
    here = side.loop.run(sources_here(sources, side.cluster, bootstrap))
    if not any(here) and not targets.topics and marker_topic is None:
        raise PipelineMistake(WHERE_TO_KEEP_PROGRESS)
    return here


def _refuse_a_foreign_checkpoint(side: DriverSide, checkpoint: Checkpoint, forget: str) -> PipelineProgress | None:
    """Refuse a checkpoint that the first batch would refuse, if that is known without fencing another driver.

    Returns the progress on the broker; None if it is not known yet.

    At its first batch a checkpoint looks the same whoever made it. Then it counts who has begun the batch.
    """
    try:
        progress = side.loop.run(side.client.progress(patient=False))
    except Retriable:
        return None  # a commit is not settled yet: the first batch settles it, and then reads the progress
    query_id, batch_id = checkpoint.next_batch() or (None, 0)
    name = side.transaction.transactional_id
    refuse_group_of_another(progress.marker, progress.of_others, name, batch_id, forget)
    refuse_foreign_checkpoint(
        progress.marker,
        query_id,
        batch_id,
        name,
        progress.offsets,
        lambda: checkpoint.where_batch_begins(batch_id),
        forget,
    )
    if batch_id == 0 and progress.marker is None:
        refuse_a_begun_first_batch(side, checkpoint, progress)
        # Before Spark writes the batch down: if this driver dies in it, the next one knows that it was this pipeline's.
        side.loop.run(side.client.begin())
    return progress


def _close_after(side: DriverSide, measures: Measures, query: Any) -> None:
    """Wait until the query ends, in whatever way, and close."""
    try:
        query.awaitTermination()
    except Exception as error:  # the user gets the error from the query; here only the end matters
        log.debug("the query ended: %s", error)
    finally:
        measures.close()
        side.close()
