"""`semel pipeline run`: run the query until it ends, fails, or is told to stop.

Guarantees: the exit code tells a supervisor whether a restart can help. The first SIGTERM or SIGINT lets the running
micro-batch end; the second ends the process at once, and the restart settles what it left.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from enum import IntEnum
from types import FrameType
from typing import Any

from semel.errors import KafkaError
from semel.machines.pipeline.batch_marker import MarkerConflict
from semel.machines.pipeline.claims import RowRefused
from semel.machines.pipeline.driver_transaction import DriverFenced

from ..adoption import Adoption, adopt
from ..batch_transaction import Observer
from ..hopeless import BatchFailed, SourceFailed
from ..pipeline import start
from ..preflight import PipelineMistake
from ..range_reader import DataLost
from .building import BuildMistakes, Plan, build, load_sources, make_session, sentence_of
from .screen import Screen
from .tables import PipelineFile

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_S = 0.2
_SLOW_STARTS = 5
_TOO_SLOW_TO_START = "Python worker failed to connect back"


#: Errors that say what happened; what they were caused by says less.
_OURS = (
    PipelineMistake, KafkaError, DriverFenced, MarkerConflict, RowRefused, DataLost, SourceFailed, BatchFailed,
)  # fmt: skip


class Exit(IntEnum):
    """How `semel pipeline run` ends. A second signal ends it with 128 and the number of the signal."""

    #: All input was read (available_now), or it was told to stop.
    DONE = 0
    #: It failed, and a restart may help: a broker is away, a task died too often.
    FAILED = 1
    #: A mistake in the file or in the transform: correct it first.
    MISTAKE = 2
    #: Another process runs the pipeline now.
    FENCED = 3
    #: A person must decide: a row that can never be written, a checkpoint that does not belong to the progress, or
    #: records that were gone before they were read.
    STUCK = 4


class _ToldToStop(BaseException):
    """A signal came before the query ran. No `except Exception` on the way may hold it up."""


class _Signals:
    """The first signal asks for a stop, the second one ends the process."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.told_to_stop = False
        self.is_running = False

    def install(self) -> None:
        """Spark puts its own handler for SIGINT, so this is called again once the session is there."""
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.told_to_stop:
            _end_spark()
            os._exit(128 + number)
        self.told_to_stop = True
        if not self.is_running:
            raise _ToldToStop


def _end_spark() -> None:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is not None and gateway.proc is not None:
        gateway.proc.kill()


def run_pipeline(file: PipelineFile, screen: Screen) -> Exit:
    """Run the pipeline of a file. Returns how it ended; what happened was said on the screen."""
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for chatty in ("py4j", "SQLQueryContextLogger"):  # they log with stack traces what is said here in a sentence
        logging.getLogger(chatty).setLevel(logging.CRITICAL)
    signals = _Signals(screen)
    signals.install()
    try:
        spark = make_session(file)
        signals.install()
        plan = build(file, spark, load_sources(file, spark))
        topics = ", ".join(file.topics)
        for again in range(_SLOW_STARTS):
            query = start_plan(file, plan, screen.observe)
            signals.is_running = True
            if not again:
                read = ", ".join(source.name for source in file.sources)
                screen.say(f"{file.transactional_id} runs: {read} to {topics}")
            try:
                return _follow(query, spark, screen, signals)
            except Exception as error:
                # Spark gives a source's own worker ten seconds to start, whatever its settings say.
                if _TOO_SLOW_TO_START not in str(error) or screen.has_seen_a_batch or again + 1 == _SLOW_STARTS:
                    raise
                screen.say("this machine is busy: Spark's source did not start in time, and is started again")
        raise AssertionError("the last try returns or raises")
    except _ToldToStop:
        screen.say("stopped before it began")
        return Exit.DONE
    except BuildMistakes as error:
        for mistake in error.mistakes:
            screen.say(mistake.text(str(file.path)))
        return Exit.MISTAKE
    except Exception as error:
        return _tell(error, file, screen, signals)


def start_plan(file: PipelineFile, plan: Plan, observer: Observer) -> Any:
    """Start the query of a file."""
    is_one = len(file.outputs) == 1 and plan.parts[file.outputs[0].name] is None
    return start(
        plan.frame,
        bootstrap_servers=file.bootstrap_servers,
        transactional_id=file.transactional_id,
        checkpoint=file.checkpoint,
        topic=file.outputs[0].topic if is_one else None,
        outputs=None if is_one else {output.topic: plan.parts[output.name] or _all for output in file.outputs},
        dead_letters=plan.dead_letters,
        trigger=file.trigger,
        kafka={name: value for name, value in file.kafka.items() if name != "bootstrap.servers"},
        metrics_port=file.metrics_port,
        observer=observer,
        **file.arguments,
    )


def _all(rows: Any) -> Any:
    """An output that gets every row."""
    return rows


def adopt_checkpoint_of(file: PipelineFile, spark: Any, *, repeat: bool) -> Adoption:
    """Take over the checkpoint of a file that has no progress on the broker."""
    return adopt(
        spark,
        checkpoint=file.checkpoint,
        bootstrap_servers=file.bootstrap_servers,
        transactional_id=file.transactional_id,
        source=build(file, spark, load_sources(file, spark)).frame,
        marker_topic=file.arguments.get("marker_topic"),
        repeat=repeat,
        kafka={name: value for name, value in file.kafka.items() if name != "bootstrap.servers"},
    )


def adopt_pipeline(file: PipelineFile, screen: Screen, *, repeat: bool) -> Exit:
    """`semel pipeline adopt`: say what came of it."""
    signals = _Signals(screen)
    try:
        screen.say(str(adopt_checkpoint_of(file, make_session(file), repeat=repeat)))
        return Exit.DONE
    except BuildMistakes as error:
        for mistake in error.mistakes:
            screen.say(mistake.text(str(file.path)))
        return Exit.MISTAKE
    except Exception as error:
        return _tell(error, file, screen, signals)


def _follow(query: Any, spark: Any, screen: Screen, signals: _Signals) -> Exit:
    """Wait for the end, and show each micro-batch."""
    while not query.awaitTermination(_LOOK_S):
        screen.show(query.recentProgress)
        if signals.told_to_stop:
            screen.say("stopping after this micro-batch; a second signal stops at once")
            spark.sparkContext.setLogLevel("OFF")  # Spark would log the micro-batch that is held back as an error
            query.stop_after_batch()
            break
    screen.show(query.recentProgress)
    totals = screen.totals
    ended = "stopped" if signals.told_to_stop else "done"
    rows = f"{totals.rows_in} rows in, {totals.rows_out} out"
    screen.say(f"{ended}: {totals.batches} batches, {rows}, {totals.reruns} reruns")
    spark.stop()
    return Exit.DONE


def _tell(error: Exception, file: PipelineFile, screen: Screen, signals: _Signals) -> Exit:
    """Say why it ended, and find the exit code."""
    cause: BaseException = error
    while cause.__cause__ is not None and not isinstance(cause, _OURS):
        cause = cause.__cause__
    if signals.told_to_stop and _spark_is_gone():
        screen.say("stopped: Spark ended first")
        return Exit.DONE
    if isinstance(cause, PipelineMistake):
        screen.say(file.hide(f"{file.path}: {cause}"))
        return Exit.MISTAKE
    if isinstance(cause, DriverFenced):
        screen.say(file.hide(f"fenced: {cause}"))
        return Exit.FENCED
    if isinstance(cause, (MarkerConflict, RowRefused, DataLost)):
        screen.say(file.hide(f"stuck: {cause}"))
        return Exit.STUCK
    screen.say(file.hide(f"failed: {cause if isinstance(cause, _OURS) else sentence_of(error)}"))
    return Exit.FAILED


def _spark_is_gone() -> bool:
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    return gateway is None or gateway.proc is None or gateway.proc.poll() is not None
