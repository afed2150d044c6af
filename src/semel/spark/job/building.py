"""From a file to DataFrames: the Spark session, the sources, the transform."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..dead_letters import DeadLetters
from ..frames import keeps_state
from ..pipeline import register
from ..preflight import PipelineMistake
from .tables import Mistake, PipelineFile

#: A micro-batch becomes the rows of one output.
Part = Callable[[Any], Any]

#: What an output's sql calls the rows that the transform made.
RESULT = "result"

#: How a Python worker's report of one of our own errors begins.
_OUR_ERROR = re.compile(r"\bsemel\.[\w.]+: ")

_LOG4J = Path(__file__).with_name("log4j2.properties")


class BuildMistakes(Exception):
    """The plan cannot be built as the file says."""

    def __init__(self, *mistakes: Mistake) -> None:
        super().__init__("; ".join(mistake.why for mistake in mistakes))
        self.mistakes = list(mistakes)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run: a streaming DataFrame, and for each output its part of the rows (None: all of them)."""

    frame: Any
    parts: dict[str, Part | None]
    #: Taken out of the frame before the outputs get their parts.
    dead_letters: DeadLetters | None = None


#: By TCP, a small answer of a Python worker waits 40 ms for a delayed acknowledgement. By a Unix socket it does not.
_FASTER = {"spark.python.unix.domain.socket.enabled": "true"} if hasattr(socket, "AF_UNIX") else {}


def make_session(file: PipelineFile) -> Any:
    """The Spark session of the file. Where it says nothing: this machine, no web page, and only errors in the log."""
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    folder = str(file.path.parent.absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # where a function of the file is
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, inherited] if inherited else [folder])
    settings = session_settings(file, SparkConf().get("spark.master"))
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(settings.get("spark.log.level", "ERROR"))
    register(spark)
    return spark


def session_settings(file: PipelineFile, submitted_to: str | None) -> dict[str, str]:
    """The settings of the session: what the file says, and what holds without a word in it.

    `submitted_to` is the master that spark-submit was told.
    """
    settings = {
        "spark.master": submitted_to or "local[*]",
        "spark.app.name": f"semel pipeline {file.transactional_id}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_FASTER,
        **file.spark,
    }
    if settings["spark.master"].startswith("local"):
        settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", **settings}
    java = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}"
    settings["spark.driver.extraJavaOptions"] = f"{java} {settings.get('spark.driver.extraJavaOptions', '')}".strip()
    return settings


def load_sources(file: PipelineFile, spark: Any) -> dict[str, Any]:
    """The streaming DataFrames that the sources are."""
    frames, mistakes = {}, []
    for source in file.sources:
        try:
            frames[source.name] = spark.readStream.format("semel").options(**source.options).load()
        except Exception as error:  # Spark's, with our sentence somewhere in it
            if "OptionError: " not in str(error):
                raise  # no mistake: a broker does not answer
            mistakes.append(file.mistake(f"source.{source.name}", sentence_of(error)))
    if mistakes:
        raise BuildMistakes(*mistakes)
    return frames


def stand_ins(file: PipelineFile, spark: Any) -> dict[str, Any]:
    """Streaming DataFrames with the columns of the sources: enough to look at a plan without any broker."""
    columns = (
        "cast(null as binary) as key", "cast(null as binary) as value", "cast(null as string) as topic",
        "cast(null as int) as partition", "cast(value as long) as offset", "timestamp",
        "cast(null as int) as timestampType",
    )  # fmt: skip
    headers = ("cast(null as array<struct<key: string, value: binary>>) as headers",)
    rate = spark.readStream.format("rate").load()
    return {
        source.name: rate.selectExpr(*columns, *(headers if _has_headers(source.options) else ()))
        for source in file.sources
    }


def _has_headers(options: dict[str, str]) -> bool:
    return {name.lower(): value for name, value in options.items()}.get("includeheaders", "").lower() == "true"


def build(file: PipelineFile, spark: Any, frames: dict[str, Any]) -> Plan:
    """Apply the transform to the sources. `BuildMistakes` says which key is wrong."""
    made = _transformed(file, spark, frames)
    parts = {output.name: _part_of(file, output.name, output.sql, output.function) for output in file.outputs}
    if not isinstance(made, dict):
        _require_streaming_frame(file, "transform.function", made)
        if file.dead_letters is not None:
            return _without_dead_letters(file, frames, made, parts)
        if len(parts) > 1:
            return Plan(made, parts)
        ((name, part),) = parts.items()
        return Plan(made if part is None else _called(file, f"output.{name}", part, made), {name: None})
    if set(made) != set(parts):
        given, wanted = (", ".join(map(str, names)) or "nothing" for names in (made, parts))
        raise BuildMistakes(file.mistake("transform.function", f"returned {given}, and the outputs are {wanted}"))
    return _split_by_function(file, frames, made)


def _without_dead_letters(file: PipelineFile, frames: dict[str, Any], made: Any, parts: dict[str, Part | None]) -> Plan:
    """The transform is applied to the good rows of each micro-batch, so it can keep no state."""
    if keeps_state(made):
        raise BuildMistakes(
            file.mistake(
                "dead_letters",
                "are taken out of each micro-batch before the transform, and this transform keeps state over all of "
                "them: sort the bad rows out in a pipeline of their own, and let a second one read its good rows",
            )
        )
    ((name, source),) = frames.items()

    def of_good_rows(part: Part | None) -> Part:
        def rows(batch: Any) -> Any:
            result = _transformed(file, batch.sparkSession, {name: batch})
            return result if part is None else part(result)

        return rows

    return Plan(source, {output: of_good_rows(part) for output, part in parts.items()}, _dead_letters_of(file, source))


def _dead_letters_of(file: PipelineFile, source: Any) -> DeadLetters | None:
    """The dead letters of the file, tried with the columns of the source."""
    table = file.dead_letters
    if table is None:
        return None
    key = "dead_letters.when" if table.function is None else "dead_letters.function"
    when = table.when if table.function is None else _find_function(file, key, table.function)
    try:
        found = DeadLetters(table.topic, when)
        found.split(source)
    except PipelineMistake as error:
        raise BuildMistakes(file.mistake(key, str(error).removeprefix("dead_letters: "))) from None
    except Exception as error:  # a user's function, or Spark's analysis of what it says
        why = sentence_of(error) if table.function is None else _with_place(error, file)
        raise BuildMistakes(file.mistake(key, why)) from None
    return found


def _split_by_function(file: PipelineFile, frames: dict[str, Any], made: dict[str, Any]) -> Plan:
    """Several DataFrames of one transaction: they are made of each micro-batch, so they can keep no state."""
    for name, frame in made.items():
        _require_streaming_frame(file, "transform.function", frame)
        if keeps_state(frame):
            raise BuildMistakes(
                file.mistake(
                    "transform.function",
                    f"'{name}' keeps state, and one query has one state: return one DataFrame, and give each output "
                    "its part of it (sql or function of [output.NAME])",
                )
            )
    if len(frames) != 1:
        raise BuildMistakes(
            file.mistake("transform.function", "several outputs of several sources: return one DataFrame, and split it")
        )
    assert file.function is not None
    function = _find_function(file, "transform.function", file.function)
    (source,) = frames.values()

    def part(name: str) -> Part:
        return lambda batch: function(batch)[name]

    return Plan(source, {name: part(name) for name in made}, _dead_letters_of(file, source))


def _transformed(file: PipelineFile, spark: Any, frames: dict[str, Any]) -> Any:
    if file.sql is not None:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        try:
            return spark.sql(file.sql)
        except Exception as error:
            raise BuildMistakes(file.mistake("transform.sql", sentence_of(error))) from None
    if file.function is None:
        return next(iter(frames.values()))
    function = _find_function(file, "transform.function", file.function)
    if len(frames) == 1:
        return _called(file, "transform.function", function, *frames.values())
    try:
        inspect.signature(function).bind(**frames)
    except TypeError as error:
        why = f"{file.function} must take the sources {', '.join(frames)} by these names: {error}"
        raise BuildMistakes(file.mistake("transform.function", why)) from None
    return _called(file, "transform.function", function, **frames)


def _part_of(file: PipelineFile, name: str, sql: str | None, function: str | None) -> Part | None:
    if sql is not None:

        def by_sql(batch: Any) -> Any:
            batch.createOrReplaceTempView(RESULT)
            return batch.sparkSession.sql(sql)

        return by_sql
    if function is not None:
        return _find_function(file, f"output.{name}.function", function)
    return None


def _find_function(file: PipelineFile, key: str, name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            why = f"there is no module '{module_name}' beside {file.path.name}, nor among the installed ones"
        else:
            why = f"importing '{module_name}' failed: {_with_place(error, file)}"
        raise BuildMistakes(file.mistake(key, why)) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise BuildMistakes(file.mistake(key, f"module '{module_name}' has no function '{function_name}'"))
    path = getattr(module, "__file__", None)
    if path is not None and Path(path).parent == file.path.parent.absolute():
        _send_to_executors(path)
    found: Callable[..., Any] = function
    return found


def _send_to_executors(path: str) -> None:
    """Functions of this module may run in tasks, and on a cluster these are on other machines."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None and not str(context.master).startswith("local["):
        context.addPyFile(path)


def _called(file: PipelineFile, key: str, function: Callable[..., Any], *frames: Any, **named: Any) -> Any:
    try:
        return function(*frames, **named)
    except Exception as error:
        raise BuildMistakes(file.mistake(key, _with_place(error, file))) from None


def _require_streaming_frame(file: PipelineFile, key: str, made: Any) -> None:
    if not hasattr(made, "isStreaming"):
        why = f"returned {type(made).__name__}: a DataFrame is needed, or a dict with one for each output"
        raise BuildMistakes(file.mistake(key, why))
    if not made.isStreaming:
        raise BuildMistakes(
            file.mistake(key if file.sql is None else "transform.sql", "gives a batch: it must read one of the sources")
        )


def sentence_of(error: Exception) -> str:
    """What happened, without Spark's stack traces and plans."""
    text = str(error)
    if ours := list(_OUR_ERROR.finditer(text)):
        text = text[ours[-1].end() :]
    lines = text.split("\n\nJVM stacktrace")[0].split(";\n'")[0].split("\n\nDriver stacktrace")[0].strip().splitlines()
    return " ".join(line.strip() for line in lines[:8] if line.strip()) or type(error).__name__


def _with_place(error: Exception, file: PipelineFile) -> str:
    """The error, and the line of the user's own code that it came from."""
    folder = str(file.path.parent.absolute())
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(folder)]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    if isinstance(error, SyntaxError):
        place = f" ({Path(error.filename or '').name}:{error.lineno})"
        return f"SyntaxError: {error.msg}{place}"
    return f"{type(error).__name__}: {sentence_of(error)}{place}"
