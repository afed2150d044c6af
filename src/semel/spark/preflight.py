"""Checks before the query starts: arguments, columns, topics, and limits of the cluster.

Guarantees: a mistake that can be found beforehand raises one sentence here. Spark would run a micro-batch in its own
thread and wrap the error in a long stack trace.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from semel.client.cluster.cluster import Cluster
from semel.client.cluster.metadata import TopicMetadata
from semel.config import CONSUMER, PRODUCER, ConfigError
from semel.config.codecs import CODECS as COMPRESSIONS
from semel.errors import Misuse

from .checkpoint import CheckpointUnreadable
from .connections import connect
from .frames import StreamingSource, constant_in, sources_of
from .kafka_options import ClientSettings, ProducerOptions, check_addresses, sink_settings, source_settings
from .limits import broker_settings, find_topic
from .source_options import COLUMNS, OWN_COLUMNS, REFUSED, OptionError, SourceOptions
from .source_options import KNOWN as SOURCE_OPTIONS
from .writer import no_such_partition

log = logging.getLogger("semel.spark")

OUTPUT_MODES = ("append", "update", "complete")
_TRIGGERS = ("processingTime", "availableNow", "once")
_NO_BATCHES = ("continuous", "realTime")
#: Options of the source that would have no effect on the sink. Spark's page on Kafka has includeHeaders for both.
_OF_THE_SOURCE = frozenset(name.lower() for name in (*SOURCE_OPTIONS, *REFUSED)) - {"includeheaders"}
_INT32_MAX = 2**31 - 1
#: How the names of Java's errors begin that are about files.
_FILE_ERRORS = ("java.io.", "java.nio.file.", "org.apache.hadoop.")

#: How long to wait for a topic that may be created on demand, and for one that not all brokers may know yet.
_NEW_TOPIC_MS, _ANY_TOPIC_MS = 10_000, 2_000


class PipelineMistake(ValueError):
    """A wrong argument, column or topic. The text says which, and what to do."""


class NotExactlyOnce(PipelineMistake):
    """Settings that would break exactly-once. The text says which, and what to change."""


# --- arguments ----------------------------------------------------------------------------------------------------


def bootstrap_text(given: Any) -> str:
    """The addresses as one string, from a string or a list."""
    text = given if isinstance(given, str) else None
    if isinstance(given, (list, tuple)) and all(isinstance(item, str) for item in given):
        text = ",".join(given)
    if text is None:
        raise PipelineMistake(f"bootstrap_servers={given!r}: must be host:port, several separated by commas")
    try:
        check_addresses(CONSUMER.parse({"bootstrap.servers": text}))
    except ConfigError as error:
        raise PipelineMistake(f"bootstrap_servers={given!r}: {error}") from None
    return text


def kafka_arguments(kafka: Any, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The client's settings, from the argument `kafka` and from `options` named `kafka.*`; and Spark's own options."""
    if kafka is not None and not isinstance(kafka, Mapping):
        raise PipelineMistake(f"kafka: must be a mapping from the client's settings to values, not {_kind(kafka)}")
    for name in kafka or ():
        if not isinstance(name, str):
            raise PipelineMistake(f"kafka: the name of a setting is text, not {name!r}")
    found = dict(kafka or {})
    for name in found:
        if name.lower().startswith("kafka."):
            raise PipelineMistake(f"kafka: '{name}' is named '{name[6:]}' here; 'kafka.' is for options")
    for name in [name for name in options if name.lower().startswith("kafka.")]:
        if name[6:] in found:
            raise PipelineMistake(f"options: '{name}' is in the argument kafka too: give it once")
        found[name[6:].lower()] = options[name]
    return found, {name: value for name, value in options.items() if not name.lower().startswith("kafka.")}


def sink_options(
    bootstrap: str, kafka: Mapping[str, Any], transactional_id: str, compression: str
) -> tuple[ClientSettings, ProducerOptions]:
    """What the sink's connections and its producers are given."""
    named = None if compression == "none" else compression
    try:
        return sink_settings(bootstrap, kafka, f"semel-pipeline-{transactional_id}", named)
    except (ConfigError, TypeError) as error:
        raise PipelineMistake(f"kafka: {error}") from None


def _kind(value: Any) -> str:
    return type(value).__name__


def location_text(given: Any) -> str:
    """The checkpoint's location as a string."""
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if not isinstance(given, str):
        raise PipelineMistake(f"checkpoint={given!r}: must be the path of a directory, as text")
    return given


def check_limits(
    *,
    transactional_id: Any,
    transaction_timeout_ms: Any,
    compression: Any,
    writers: Any,
    topic: Any = None,
    marker_topic: Any = None,
    attempts: Any = 1,
    observer: Any = print,
) -> None:
    """Check the arguments that all ways to write have in common, as far as they can be checked without data."""
    if not isinstance(transactional_id, str) or not transactional_id.strip():
        raise PipelineMistake(f"transactional_id={transactional_id!r}: must be a non-empty string")
    if len(transactional_id.encode()) > 30_000:
        raise PipelineMistake(f"transactional_id is {len(transactional_id)} characters long: give a shorter one")
    for name, value in (("topic", topic), ("marker_topic", marker_topic)):
        if value is not None:
            check_topic_name(name, value)
    if not isinstance(compression, str) or compression not in COMPRESSIONS:
        raise PipelineMistake(f"compression={compression!r}: must be one of {', '.join(COMPRESSIONS)}")
    _whole_number("transaction_timeout_ms", transaction_timeout_ms)
    _whole_number("attempts", attempts)
    if writers is not None:
        _whole_number("writers", writers)
    if not callable(observer):
        raise PipelineMistake(f"observer={observer!r}: must be a function of a step and a batch id")


def check_query(*, output_mode: Any, trigger: Any, query_name: Any, options: Any) -> None:
    """Check the arguments that are meant for Spark's query."""
    if not isinstance(output_mode, str) or output_mode.lower() not in OUTPUT_MODES:
        raise PipelineMistake(f"output_mode={output_mode!r}: must be one of {', '.join(OUTPUT_MODES)}")
    if query_name is not None and (not isinstance(query_name, str) or not query_name):
        raise PipelineMistake(f"query_name={query_name!r}: must be a non-empty string")
    _check_trigger(trigger)
    _check_options(options)


def check_topic_name(argument: str, name: Any) -> None:
    """Refuse an invalid topic name."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) or name in (".", ".."):
        raise PipelineMistake(
            f"{argument}={name!r}: must be the name of a topic: letters, digits, '.', '_' and '-', at most 249"
        )


def _whole_number(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _INT32_MAX:
        raise PipelineMistake(f"{name}={value!r}: must be a whole number, at least 1")


def _check_trigger(trigger: Any) -> None:
    if trigger is None:
        return
    if not isinstance(trigger, Mapping) or len(trigger) != 1 or not {*trigger} <= {*_TRIGGERS, *_NO_BATCHES}:
        raise PipelineMistake(
            f'trigger={trigger!r}: must be one of {{"processingTime": "10 seconds"}}, {{"availableNow": True}} and '
            '{"once": True}'
        )


def _check_options(options: Any) -> None:
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise PipelineMistake(f"options: must be a mapping from Spark's option names to values, not {_kind(options)}")
    for name in options:
        if not isinstance(name, str):
            raise PipelineMistake(f"options: the name of an option is text, not {name!r}")
    own = {"checkpointlocation": "checkpoint", "outputmode": "output_mode", "queryname": "query_name", "topic": "topic"}
    for name in options:
        if name.lower() in own:
            raise PipelineMistake(f"options: '{name}' is the argument {own[name.lower()]} of start()")
        if name.lower() in _OF_THE_SOURCE:
            raise PipelineMistake(f"options: '{name}' is an option of the source: give it to spark.readStream")
        if name in PRODUCER or name in PRODUCER.aliases:
            raise PipelineMistake(f"options: '{name}' must be named 'kafka.{name}'")


@contextmanager
def sparks_words(what: str = "") -> Iterator[None]:
    """Raise what Spark refuses as one sentence, without the plan that it prints below it."""
    from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkValueError

    try:
        yield
    except (AnalysisException, IllegalArgumentException, PySparkValueError) as error:
        first = str(error).partition("\n")[0].rstrip(";")
        raise PipelineMistake(f"{what}{first}") from None


@contextmanager
def checkpoint_in_words(location: str) -> Iterator[None]:
    """Raise what Hadoop says about the checkpoint's place as one sentence, without its stack trace."""
    try:
        yield
    except CheckpointUnreadable as error:
        raise PipelineMistake(f"checkpoint='{location}' cannot be used: {error}") from None
    except Exception as error:  # py4j's, with Java's inside
        if (why := _why_no_files(getattr(error, "java_exception", None) or getattr(error, "_origin", None))) is None:
            raise
        raise PipelineMistake(f"checkpoint='{location}' cannot be used: {why}") from None


def _why_no_files(java: Any) -> str | None:
    """What Java says about files, in the words of the first error that is about them; None if none is.

    Hadoop wraps a class that it does not find, and a host that nobody knows, in errors that are about anything.
    """
    while java is not None:
        name = str(java.getClass().getName())
        if name == "java.lang.ClassNotFoundException":
            return (
                f"{java.getMessage()}: Spark needs the package that brings it, as in spark.jars.packages="
                "org.apache.hadoop:hadoop-aws:VERSION for s3a"
            )
        if name == "java.net.UnknownHostException":
            return f"unknown host {java.getMessage()}"
        if name.startswith(_FILE_ERRORS):
            return str(java.getMessage())
        java = java.getCause()
    return None


# --- the frame ----------------------------------------------------------------------------------------------------


def refuse_what_breaks_the_promise(
    frame: Any, checkpoint: str, trigger: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> None:
    """Refuse what could make a micro-batch visible in part, twice, or never."""
    refuse_connect(frame)
    if not hasattr(frame, "isStreaming") or not hasattr(frame, "_jdf"):
        raise PipelineMistake(f"start() takes a streaming DataFrame (spark.readStream), not {type(frame).__name__}")
    if not frame.isStreaming:
        raise NotExactlyOnce("start() takes a streaming DataFrame (spark.readStream); this one is a batch")
    if not checkpoint.strip():
        raise NotExactlyOnce("checkpoint is empty: without one a restart would begin a new query and repeat its output")
    refuse_speculation(frame.sparkSession)
    for kind in trigger or {}:
        if kind in _NO_BATCHES:
            raise NotExactlyOnce(f"trigger {kind} has no micro-batches to commit: use processingTime or availableNow")
    lowered = {name.lower(): str(value).lower() for name, value in options.items()}
    if lowered.get("asyncprogresstrackingenabled") == "true":
        raise NotExactlyOnce("asyncProgressTrackingEnabled=true lets a batch start before the last one is written down")


def refuse_connect(frame: Any) -> None:
    """Refuse a DataFrame whose driver is another process."""
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        raise NotExactlyOnce(
            "this DataFrame belongs to a Spark Connect session, whose driver is another process: the transaction must "
            "live where the driver does. Run the pipeline in a classic session (SparkSession.builder.master(...))"
        )


def refuse_speculation(spark: Any) -> None:
    """Refuse a session that starts tasks twice."""
    if spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise NotExactlyOnce(
            "spark.speculation=true starts tasks twice, and a second writer is always refused: set it to false"
        )


def check_columns(frame: Any, topic: str | None) -> None:
    """Check the columns and their types: those of Spark's Kafka sink."""
    from pyspark.sql import types

    given = [(field.name, field.dataType) for field in frame.schema.fields]
    names = [name for name, _ in given]
    _refuse_like_names(frame, names, topic)
    if "value" not in names:
        raise PipelineMistake(
            f"the sink needs a column 'value' of strings or bytes; there are: {', '.join(names) or 'none'}"
        )
    if topic is None and "topic" not in names:
        raise PipelineMistake("where do rows go? Give start() a topic, or the rows a column 'topic'")
    text_or_bytes = ("strings or bytes", (types.StringType, types.BinaryType))
    whole = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
    wanted: dict[str, tuple[str, tuple[Any, ...]]] = {
        "value": text_or_bytes,
        "key": text_or_bytes,
        "partition": ("whole numbers", whole),
        "topic": ("strings", (types.StringType,)),
    }
    for name, kind in given:
        if name in wanted and not (name == "topic" and topic is not None):
            words, kinds = wanted[name]
            if not isinstance(kind, (*kinds, types.NullType)):
                raise PipelineMistake(
                    f"column '{name}' holds {kind.simpleString()}, and must hold {words}: cast it, for example with "
                    "to_json(struct(...)) or cast(... as string)"
                    if name in ("value", "key")
                    else f"column '{name}' holds {kind.simpleString()}, and must hold {words}"
                )
        if name == "headers" and not _are_headers(kind):
            raise PipelineMistake(
                f"column 'headers' holds {kind.simpleString()}, and must hold array<struct<key:string,value:binary>>"
            )


def _refuse_like_names(frame: Any, names: list[str], topic: str | None) -> None:
    """Refuse a column that is there twice, or whose name is another one for Spark but not for the sink."""
    is_exact = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    for name in ("value", "key", "headers", "partition", *(("topic",) if topic is None else ())):
        like = [given for given in names if given == name or (not is_exact and given.lower() == name)]
        if len(like) > 1:
            raise PipelineMistake(f"there are {len(like)} columns '{name}': select the one that is meant")
        if like and like[0] != name:
            raise PipelineMistake(f"column '{like[0]}' would not be written: name it '{name}', or drop it")


def _are_headers(kind: Any) -> bool:
    from pyspark.sql import types

    if isinstance(kind, types.NullType):
        return True
    if not isinstance(kind, types.ArrayType) or not isinstance(kind.elementType, types.StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, types.StringType)
        and isinstance(fields[1].dataType, (types.StringType, types.BinaryType, types.NullType))
    )


def check_sources(frame: Any) -> list[StreamingSource]:
    """The sources of the frame. The options of our own source are checked for a streaming query."""
    sources = sources_of(frame)
    for source in sources:
        if source.format == "semel":
            if source.columns and source.columns[: len(COLUMNS)] != COLUMNS:
                raise PipelineMistake(f"the source: {OWN_COLUMNS}")
            try:
                SourceOptions.parse(source.options)
            except OptionError as error:
                raise PipelineMistake(f"the source: {error}") from None
    return sources


# --- the cluster --------------------------------------------------------------------------------------------------


async def check_cluster(
    cluster: Cluster,
    bootstrap: str,
    outputs: Iterable[tuple[str | None, int | None]],
    marker_topic: str | None,
    transaction_timeout_ms: int,
) -> None:
    """Check topics and limits with the cluster. An output is a topic, and a partition if every row names the same."""
    limits = await broker_settings(cluster, "transaction.max.timeout.ms", "auto.create.topics.enable")
    longest = limits.get("transaction.max.timeout.ms")
    if longest is not None and transaction_timeout_ms > int(longest):
        raise PipelineMistake(
            f"transaction_timeout_ms={transaction_timeout_ms} is more than the broker allows: lower it to {longest}, "
            "or raise the broker's transaction.max.timeout.ms"
        )
    made_on_demand = limits.get("auto.create.topics.enable", "true") == "true"
    for topic, partition in outputs:
        if topic is None:
            continue
        count = len((await _require_topic(cluster, bootstrap, topic, made_on_demand)).partitions)
        if partition is not None and not 0 <= partition < count:
            raise PipelineMistake(no_such_partition(topic, partition, count))
    if marker_topic is not None:
        await _require_topic(cluster, bootstrap, marker_topic, made_on_demand)


async def _require_topic(cluster: Cluster, bootstrap: str, name: str, made_on_demand: bool) -> TopicMetadata:
    patience_ms = _NEW_TOPIC_MS if made_on_demand else _ANY_TOPIC_MS
    try:
        found = await find_topic(cluster, name, patience_ms=patience_ms, allow_auto_create=made_on_demand)
    except Misuse as error:
        raise PipelineMistake(error.why) from None
    if found is None:
        raise PipelineMistake(
            f"there is no topic '{name}' at {bootstrap}: create it (semel topic create {name}), or correct the name"
        )
    if found.is_internal:
        raise PipelineMistake(f"topic '{name}' is one of the brokers' own: nothing can be written to it")
    return found


async def sources_here(sources: Iterable[StreamingSource], cluster: Cluster, bootstrap: str) -> tuple[bool, ...]:
    """For each source, whether it reads from this cluster. Only then can its offsets be committed here.

    The cluster ids are compared: two clusters may have topics of the same name.
    """
    known: dict[str, bool] = {bootstrap: True}
    found = []
    for source in sources:
        here = source.has_kafka_offsets and bool(source.bootstrap_servers)
        if here and source.bootstrap_servers not in known:
            known[source.bootstrap_servers] = await _is_this(cluster, source)
        found.append(here and known[source.bootstrap_servers])
    return tuple(found)


async def _is_this(cluster: Cluster, source: StreamingSource) -> bool:
    kafka = {name[6:]: value for name, value in source.options.items() if name.startswith("kafka.")}
    try:
        settings, _ = source_settings(kafka, "semel-pipeline")
        other = await connect(settings)
    except ConfigError as error:
        # An option of Spark's own source that means nothing here, such as a Java class.
        log.warning("progress is stored without the offsets of %s: %s", source.description, error)
        return False
    try:
        return cluster.metadata.cluster_id is not None and cluster.metadata.cluster_id == other.metadata.cluster_id
    finally:
        await other.close()


def constants_of(frame: Any, topic: str | None) -> tuple[str | None, int | None]:
    """The topic and the partition of all rows, if they are constants in the query."""
    named, partition = topic, None
    if topic is None:
        value = constant_in(frame, "topic")
        if value is not None:
            check_topic_name("column 'topic'", value)
            named = value
    if "partition" in frame.columns:
        value = constant_in(frame, "partition")
        partition = value if isinstance(value, int) else None
    return named, partition
