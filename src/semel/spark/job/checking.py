"""`semel pipeline check`: the file against the brokers and against Spark, without writing anything.

Guarantees: no topic, no offset, no transaction and no file is made or changed. A coordinator is asked only if its
internal topic is there, or hidden from this user; where it is, nobody is asked, because that would create the topic. (A
Semel broker that never ran a transaction makes it even so, if it is hidden.) What the brokers refuse to tell is said in
the findings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from semel.client.blocking.loop_thread import LoopThread
from semel.client.cluster.cluster import Cluster
from semel.client.offset_requests import list_offsets
from semel.config import CONSUMER
from semel.errors import Disconnected, ErrorCode, KafkaError, Retriable
from semel.machines.pipeline.batch_marker import (
    MarkerConflict,
    forget_command,
    refuse_foreign_checkpoint,
    refuse_group_of_another,
)
from semel.machines.pipeline.driver_transaction import DriverTransaction, PipelineProgress
from semel.machines.values import TopicPartition
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.transactions import AddOffsetsToTxnRequest

from ..changed_sources import refuse_changed_sources
from ..checkpoint import Checkpoint, CheckpointUnreadable
from ..connections import connect
from ..frames import StreamingSource, sources_of
from ..kafka_options import ClientSettings
from ..limits import broker_settings, is_compacted
from ..preflight import PipelineMistake, check_columns, refuse_what_breaks_the_promise
from ..progress_topic import ProgressTopic
from ..source_options import EARLIEST, LATEST, SourceOptions
from .building import BuildMistakes, Plan, build, load_sources, make_session, sentence_of, stand_ins
from .tables import Mistake, OutputTable, PipelineFile, SourceTable

#: Bits of the operations that a broker says a client may do.
_READ, _WRITE, _CREATE = 3, 4, 5
_NOT_TOLD = -(2**31)
_PATIENCE_S = 15.0
_NO_PRODUCER = -1
_OFFSETS, _TRANSACTIONS = "__consumer_offsets", "__transaction_state"
_NO_TOPIC = "there is no topic"
#: What a broker says that is not the coordinator, or where there is none yet.
_ANOTHER_BROKER = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_DENIED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
           ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)  # fmt: skip


@dataclass
class Findings:
    """What `check` has found out: mistakes, and what is in order."""

    mistakes: list[Mistake] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    #: Whether the mistakes may go away by themselves, because no broker answered.
    is_unreachable: bool = False


def check_pipeline(file: PipelineFile) -> Findings:
    """Look at everything that can be known beforehand."""
    spark = make_session(file)
    try:
        return check_in_session(file, spark)
    finally:
        spark.stop()


def check_in_session(file: PipelineFile, spark: Any) -> Findings:
    """`check_pipeline` in a Spark session that is there already."""
    found = Findings()
    loop = LoopThread("semel-pipeline-check")
    try:
        progress = loop.run(_look_at_the_brokers(file, found))
    finally:
        loop.close()
    sources = _look_at_the_plan(file, spark, found)
    _look_at_the_checkpoint(file, spark, progress, sources, found)
    return found


# --- the brokers --------------------------------------------------------------------------------------------------


async def _look_at_the_brokers(file: PipelineFile, found: Findings) -> PipelineProgress | None:
    """Topics, permissions and limits. Returns the pipeline's progress; None if it could not be read."""
    try:
        settings = {name: value for name, value in file.kafka.items() if name in CONSUMER or name in CONSUMER.aliases}
        cluster = await _connected(settings)
    except (KafkaError, TimeoutError, OSError) as error:
        found.is_unreachable = True
        found.mistakes.append(file.mistake("kafka.bootstrap.servers", _no_answer(file.bootstrap_servers, error)))
        return None
    try:
        for source in file.sources:
            await _look_at_a_source(file, source, found)
        limits = await broker_settings(cluster, "transaction.max.timeout.ms", "auto.create.topics.enable")
        made_on_demand = limits.get("auto.create.topics.enable") == "true"
        for output in file.outputs:
            await _look_at_an_output(file, cluster, f"output.{output.name}", output.topic, made_on_demand, found)
        if file.dead_letters is not None:
            dead = file.dead_letters.topic
            await _look_at_an_output(file, cluster, "dead_letters", dead, made_on_demand, found)
        if (kept_in := file.arguments.get("marker_topic")) is not None:
            await _look_at_an_output(file, cluster, "marker_topic", kept_in, made_on_demand, found)
        _look_at_the_timeout(file, limits.get("transaction.max.timeout.ms"), found)
        return await _look_at_the_coordinators(file, cluster, found)
    finally:
        await cluster.close()


async def _connected(settings: dict[str, Any]) -> Cluster:
    async with asyncio.timeout(_PATIENCE_S):
        return await connect(ClientSettings(settings))


def _no_answer(servers: str, error: Exception) -> str:
    why = "no answer" if isinstance(error, TimeoutError) else str(error)
    return f"cannot connect to {servers}: {why}"


async def _look_at_a_source(file: PipelineFile, source: SourceTable, found: Findings) -> None:
    key = f"source.{source.name}"
    options = SourceOptions.parse(source.options)
    try:
        cluster = await _connected(dict(options.client_settings))
    except (KafkaError, TimeoutError, OSError) as error:
        found.is_unreachable = True
        found.mistakes.append(file.mistake(key, _no_answer(source.options["kafka.bootstrap.servers"], error)))
        return
    try:
        if options.pattern is not None:
            await cluster.refresh_metadata(None)
            names = sorted(name for name in cluster.metadata.topics if options.pattern.fullmatch(name))
        else:
            names = list(dict.fromkeys((*options.topics, *(place.topic for place in options.assigned or ()))))
        waiting, partitions = 0, 0
        for name in names:
            why, topic = await _topic(cluster, name)
            if topic is None:
                found.mistakes.append(file.mistake(f"{key}.{_way(options)}", f"{_servers(source)}: {why}"))
                continue
            if not _may(topic, _READ):
                found.mistakes.append(file.mistake(key, f"this user may not read topic '{name}'"))
                continue
            count = len(topic.partitions)
            partitions += count
            for place in options.assigned or ():
                if place.topic == name and not 0 <= place.partition < count:
                    why = f"names {place}, and the topic has partitions 0 to {count - 1}"
                    found.mistakes.append(file.mistake(f"{key}.assign", why))
            waiting += await _records_in(cluster, name, count)
        if partitions or not names:
            read = ", ".join(names) or "no topic yet"
            found.facts.append((key, f"{read}: {partitions} partitions, {waiting} offsets in them"))
    finally:
        await cluster.close()


def _way(options: SourceOptions) -> str:
    return "assign" if options.assigned is not None else "subscribe"


def _servers(source: SourceTable) -> str:
    return source.options["kafka.bootstrap.servers"]


async def _look_at_an_output(
    file: PipelineFile, cluster: Cluster, key: str, name: str, made_on_demand: bool, found: Findings
) -> None:
    why, topic = await _topic(cluster, name)
    key_of_topic = key if key == "marker_topic" else f"{key}.topic"
    if topic is None:
        if made_on_demand and why.startswith(_NO_TOPIC):
            found.facts.append((key, f"topic {name} is not there yet: the brokers make it when it is written"))
        else:
            found.mistakes.append(file.mistake(key_of_topic, f"{file.bootstrap_servers}: {why}"))
    elif topic.is_internal:
        found.mistakes.append(file.mistake(key_of_topic, f"'{name}' is one of the brokers' own topics"))
    elif not _may(topic, _WRITE):
        found.mistakes.append(file.mistake(key_of_topic, f"this user may not write topic '{name}'"))
    else:
        found.facts.append((key, f"topic {name}: {len(topic.partitions)} partitions"))


def _look_at_the_timeout(file: PipelineFile, longest: str | None, found: Findings) -> None:
    timeout_ms = file.arguments.get("transaction_timeout_ms", 600_000)
    if longest is not None and timeout_ms > int(longest):
        found.mistakes.append(
            file.mistake(
                "transaction_timeout_ms",
                f"{timeout_ms} is more than the broker allows: lower it to {longest}, or raise the broker's "
                "transaction.max.timeout.ms",
            )
        )
    limit = (
        f"the broker allows {int(longest) // 1000} s" if longest is not None else "the broker does not tell its limit"
    )
    found.facts.append(("transactions", f"a micro-batch may take {timeout_ms // 1000} s, {limit}"))


async def _topic(cluster: Cluster, name: str) -> tuple[str, Any]:
    """A topic as the broker describes it to this user, or why there is none. Does not create it."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    answer = await cluster.request(None, request)
    topic = answer.topics[0]
    code = ErrorCode.of(topic.error_code)
    if code is ErrorCode.NONE:
        return "", topic
    if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"{_NO_TOPIC} '{name}' that this user can see (semel topic create {name})", None
    if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return f"this user may not use topic '{name}'", None
    return f"topic '{name}': {code.name}: {code.meaning}", None


def _may(topic: Any, operation: int) -> bool:
    told = topic.topic_authorized_operations
    return told == _NOT_TOLD or bool(told >> operation & 1)


async def _records_in(cluster: Cluster, topic: str, partitions: int) -> int:
    places = [TopicPartition(topic, number) for number in range(partitions)]
    ends = await list_offsets(cluster, dict.fromkeys(places, LATEST), isolation_level=1, timeout_ms=_PATIENCE_S * 1000)
    starts = await list_offsets(
        cluster, dict.fromkeys(places, EARLIEST), isolation_level=1, timeout_ms=_PATIENCE_S * 1000
    )
    return sum(ends[place].offset - starts[place].offset for place in places)


async def _look_at_the_coordinators(file: PipelineFile, cluster: Cluster, found: Findings) -> PipelineProgress | None:
    """The permissions of the pipeline's id, and its progress; None if that cannot be told now."""
    name = file.transactional_id
    for internal in (_OFFSETS, _TRANSACTIONS):
        why, topic = await _topic(cluster, internal)
        if topic is None and why.startswith(_NO_TOPIC):
            words = "no transaction was ever run here: those of the id could not be asked for"
            found.facts.append(("permissions", words))
            return PipelineProgress({}, None)
    # A producer id that nobody has: the broker checks the permissions, and then refuses without a change.
    probe = AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=_NO_PRODUCER, producer_epoch=_NO_PRODUCER, group_id=name
    )
    transaction = DriverTransaction(name, name, timeout_ms=1)
    try:
        answer = await _from_coordinator(cluster, probe, lambda answer: answer.error_code)
        code = ErrorCode.of(answer.error_code)
        if code in _DENIED:
            what = "read group" if code is ErrorCode.GROUP_AUTHORIZATION_FAILED else "write transactional id"
            found.mistakes.append(file.mistake("transactional_id", f"this user may not {what} '{name}'"))
            return None
        found.facts.append(("permissions", f"this user may write transactional id '{name}' and read group '{name}'"))
        answer = await _from_coordinator(
            cluster, transaction.read_progress().message, lambda answer: (answer.groups or [answer])[0].error_code
        )
        if ErrorCode.of((answer.groups or [answer])[0].error_code) in _ANOTHER_BROKER:
            progress = PipelineProgress({}, None)  # no group was ever stored here
        else:
            progress = transaction.on_progress(answer)
        kept_in = file.arguments.get("marker_topic")
        if progress.marker is None and kept_in is not None and await is_compacted(cluster, kept_in):
            return replace(await ProgressTopic(cluster, kept_in, name).read(), of_others=progress.of_others)
        return progress
    except Retriable as error:
        found.facts.append(("progress", f"cannot be told now: {error}"))
        return None
    except KafkaError as error:
        found.mistakes.append(file.mistake("transactional_id", str(error)))
        return None


async def _from_coordinator(cluster: Cluster, message: Any, code_of: Callable[[Any], int]) -> Any:
    """The coordinator's answer. All brokers are asked in turn, and the others say that they are not it.

    Asking who it is would create its internal topic, if that is not there; and not every user is told whether it is.
    """
    answer, gone = None, None
    for node_id in list(cluster.metadata.nodes):
        try:
            answer = await cluster.request(node_id, message)
        except Disconnected as error:
            gone = error  # it may be named for a while after it is gone
            continue
        if ErrorCode.of(code_of(answer)) not in _ANOTHER_BROKER:
            return answer
    if gone is not None:
        raise gone
    return answer


# --- Spark --------------------------------------------------------------------------------------------------------


def _look_at_the_plan(file: PipelineFile, spark: Any, found: Findings) -> list[StreamingSource] | None:
    """Build the plan and have it checked as Spark does when a query starts. Returns its sources, if they are known."""
    # If a source cannot be loaded, its columns are still known, and the rest of the plan can be looked at.
    are_real = not found.mistakes
    try:
        frames = load_sources(file, spark) if are_real else stand_ins(file, spark)
        plan = build(file, spark, frames)
    except BuildMistakes as error:
        found.mistakes += error.mistakes
        return None
    where = "transform.sql" if file.sql is not None else "transform.function" if file.function else "transform"
    mode = file.arguments.get("output_mode", "append")
    try:
        refuse_what_breaks_the_promise(plan.frame, file.checkpoint, file.trigger, {})
        _check_as_spark_does(spark, plan.frame, mode)
    except PipelineMistake as error:
        found.mistakes.append(file.mistake(where, str(error)))
    except Exception as error:  # Spark's AnalysisException through py4j
        found.mistakes.append(file.mistake(where, sentence_of(error)))
    for output in file.outputs:
        _look_at_the_columns(file, output, plan, where, found)
    return sources_of(plan.frame) if are_real else None


def _look_at_the_columns(file: PipelineFile, output: OutputTable, plan: Plan, where: str, found: Findings) -> None:
    part = plan.parts[output.name]
    key = f"output.{output.name}.{'sql' if output.sql else 'function'}" if output.sql or output.function else where
    try:
        rows = plan.frame if part is None else part(plan.frame)
        check_columns(rows, output.topic)
    except PipelineMistake as error:
        found.mistakes.append(file.mistake(key, str(error)))
    except Exception as error:  # a user's function, or Spark's analysis of its result
        found.mistakes.append(file.mistake(key, sentence_of(error)))
    else:
        columns = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in rows.schema.fields)
        found.facts.append((f"output.{output.name}", f"columns {columns}"))


def _check_as_spark_does(spark: Any, frame: Any, mode: str) -> None:
    """Refuse what Spark refuses for this output mode. It would say so only when the query starts."""
    jvm = spark._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    chosen = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), chosen)


def _look_at_the_checkpoint(
    file: PipelineFile,
    spark: Any,
    progress: PipelineProgress | None,
    sources: list[StreamingSource] | None,
    found: Findings,
) -> None:
    """Whether the checkpoint belongs to the progress on the broker, and to the sources if these are known."""
    checkpoint = Checkpoint(spark, file.checkpoint)
    try:
        known = checkpoint.next_batch()
        query_id, batch_id = known or (None, 0)
        if progress is not None:
            name = file.transactional_id
            forget = forget_command(name, file.bootstrap_servers, file.arguments.get("marker_topic"))
            refuse_group_of_another(progress.marker, progress.of_others, name, batch_id, forget)
            refuse_foreign_checkpoint(
                progress.marker, query_id, batch_id, name, progress.offsets,
                lambda: checkpoint.where_batch_begins(batch_id), forget,
            )  # fmt: skip
        if known is not None and sources is not None:
            refuse_changed_sources(sources, checkpoint, batch_id)
    except (MarkerConflict, CheckpointUnreadable, PipelineMistake) as error:
        found.mistakes.append(file.mistake("checkpoint", str(error)))
    except Exception as error:  # Hadoop's, through py4j: no such file system, no permission
        found.mistakes.append(file.mistake("checkpoint", sentence_of(error)))
    else:
        found.facts.append(("checkpoint", "new: the pipeline begins" if known is None else f"batch {batch_id} is next"))
