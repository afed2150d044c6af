"""`semel pipeline`: write, check and run a pipeline on Spark; its progress as stored by the broker."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from semel.cli.connecting import Brokers, admin_at, brokers_options, cluster_at
from semel.cli.output import errors_for_people, show
from semel.cli.txn_diagnosis import duration
from semel.client.blocking.admin import Admin
from semel.client.blocking.producer import Producer
from semel.client.offset_arguments import PartitionLike
from semel.errors import ErrorCode, KafkaError
from semel.machines.pipeline.batch_marker import BatchMarker, is_source_offset
from semel.machines.transactions.producer import OffsetAndMetadata
from semel.machines.values import TopicPartition

_LATEST, _READ_COMMITTED = -1, 1
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")


@click.group()
def pipeline() -> None:
    """Write, check and run pipelines on Spark; show or delete their progress."""


@pipeline.command()
@click.argument("directory", default=".", type=click.Path(path_type=Path))
def init(directory: Path) -> None:
    """Write a commented pipeline.toml and a transform.py. Files that are there are left alone."""
    from semel.spark.job.template import write_template

    try:
        written = write_template(directory)
    except FileExistsError as error:
        raise click.ClickException(f"{error} is there already: nothing was written") from None
    except OSError as error:
        raise click.ClickException(f"{directory}: {error.strerror or error}") from None
    for path in written:
        click.echo(f"wrote {path}")
    click.echo(f"next: semel pipeline check {written[0]}")


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Check a pipeline.toml against the brokers and against Spark. Nothing is written.

    Exits with 0 if all is well, with 2 for mistakes, with 1 if a broker does not answer.
    """
    with _mistakes_for_people(), _spark_needed():
        from semel.spark.job.checking import check_pipeline
        from semel.spark.job.file import read_pipeline

        found = check_pipeline(read_pipeline(file))
    for about, fact in found.facts:
        click.echo(f"{about:<20} {fact}")
    if found.mistakes:
        for mistake in found.mistakes:
            click.echo(mistake.text(str(file)), err=True)
        click.echo(_count_of(len(found.mistakes)), err=True)
        raise SystemExit(1 if found.is_unreachable else 2)
    click.echo("no mistakes found, and nothing was written")


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path))
def run(file: Path) -> None:
    """Run a pipeline.toml. SIGTERM and SIGINT stop it after the current micro-batch, a second one at once.

    Exits with 0 if all was read or it was told to stop, 1 if it failed and a restart may help, 2 for a mistake in the
    file, 3 if another process has taken over, 4 if a person must decide: a row that can never be written, a
    checkpoint that does not belong to the progress, or records that were gone before they were read.
    """
    with _mistakes_for_people(), _spark_needed():
        from semel.spark.job.file import read_pipeline
        from semel.spark.job.running import run_pipeline
        from semel.spark.job.screen import Screen

        code = run_pipeline(read_pipeline(file), Screen(sys.stdout))
    raise SystemExit(int(code))


@pipeline.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--repeat", is_flag=True, help="Accept that rows of a micro-batch that was begun are written again.")
def adopt(file: Path, repeat: bool) -> None:
    """Take over a checkpoint that was made with Spark's own sink, or whose progress expired.

    Stop the old query first. From the next micro-batch on each row is written exactly once. Exits as `run` does.
    """
    with _mistakes_for_people(), _spark_needed():
        from semel.spark.job.file import read_pipeline
        from semel.spark.job.running import adopt_pipeline
        from semel.spark.job.screen import Screen

        code = adopt_pipeline(read_pipeline(file), Screen(sys.stdout), repeat=repeat)
    raise SystemExit(int(code))


@contextmanager
def _mistakes_for_people() -> Iterator[None]:
    from semel.spark.job.tables import FileMistakes

    try:
        yield
    except FileMistakes as error:
        click.echo(str(error), err=True)
        click.echo(_count_of(len(error.mistakes)), err=True)
        raise SystemExit(2) from None


def _count_of(mistakes: int) -> str:
    return f"{mistakes} mistake{'s' if mistakes > 1 else ''}"


@contextmanager
def _spark_needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j", "pyarrow", "pandas"):
            raise
        raise click.ClickException(f"this needs {error.name}: pip install 'semel[spark]'") from None


@pipeline.command()
@click.argument("transactional_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@brokers_options
def status(transactional_id: str, brokers: Brokers, as_json: bool) -> None:
    """Show a pipeline's last committed micro-batch, its source offsets, and its open transaction."""
    with errors_for_people(), admin_at(brokers) as admin:
        committed = admin.list_group_offsets(transactional_id)
        sources = {where: at for where, at in committed.items() if is_source_offset(at.metadata)}
        found: dict[str, Any] = {
            "transactional_id": transactional_id,
            "marker": _marker(committed),
            "transaction": _transaction(admin, transactional_id),
            "sources": _sources(admin, sources),
            "sources_elsewhere": bool(committed) and not sources,
            "offsets_of_others": sorted(
                str(where) for where, at in committed.items() if BatchMarker.from_metadata(at.metadata) is None
            ),
        }
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _tell(found)
    if not committed and found["transaction"] is None:
        raise SystemExit(1)  # unknown to this cluster: a script that waits for it, or a typing mistake, must be noticed


@pipeline.command("audit")
@click.argument("transactional_id")
@click.option("--output", "outputs", multiple=True, metavar="TOPIC", help="An output topic that the broker forgot.")
@click.option("--bars", is_flag=True, help="Draw the ledger below the table.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw the ledger into a PNG file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@brokers_options
def audit_(
    transactional_id: str, outputs: tuple[str, ...], brokers: Brokers, bars: bool, plot: Path | None, as_json: bool
) -> None:
    """Recompute from the logs that each source offset was written by exactly one committed micro-batch.

    Prints the ledger: micro-batch, offsets, rows, transaction, outcome, time. Exits with 1 if the answer is no, or if
    the brokers know nothing of the id.
    """
    from semel.cli import pipeline_audit

    with errors_for_people(), cluster_at(brokers) as cluster:
        ledger, read = pipeline_audit.audit(cluster, transactional_id, outputs)
    if as_json:
        click.echo(json.dumps(pipeline_audit.as_json(transactional_id, ledger, read), indent=2))
    elif not ledger.entries:
        click.echo(f"the logs hold no transaction of '{transactional_id}'")
    else:
        pipeline_audit.tell(transactional_id, ledger, read, bars=bars)
    if plot is not None:
        pipeline_audit.draw(transactional_id, ledger, plot)
    if not ledger.is_exactly_once:
        raise SystemExit(1)


@pipeline.command()
@click.argument("transactional_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--marker-topic", help="The compacted topic that the pipeline keeps its progress in too, if it has one.")
@brokers_options
def forget(transactional_id: str, yes: bool, marker_topic: str | None, brokers: Brokers) -> None:
    """Delete a pipeline's progress, so that a new checkpoint may write its output from the start."""
    with errors_for_people(), admin_at(brokers) as admin:
        committed = admin.list_group_offsets(transactional_id)
        if not committed and marker_topic is None:
            raise click.ClickException(f"there is no progress of '{transactional_id}'")
        if marker_topic is not None and marker_topic not in admin.list_topics():
            raise click.ClickException(f"there is no topic '{marker_topic}' for this user: nothing was deleted")
        marker = _marker(committed)
        at = f"batch {marker['batch_id']} of query {marker['query_id']}" if marker else "offsets without a marker"
        at = at if committed else f"what topic '{marker_topic}' keeps"
        if not yes:
            click.confirm(
                f"'{transactional_id}' is at {at}. Without it a pipeline that starts at batch 0 writes everything "
                "again, and one that goes on is refused. Delete its progress?",
                abort=True,
            )
        if committed:
            admin.delete_group_offsets(transactional_id, list(committed))
        if marker_topic is not None:
            with Producer({**brokers.client_settings(), "client.id": "semel-forget"}) as producer:
                producer.send(marker_topic, None, key=transactional_id, partition=0).result()
    click.echo(f"forgot the progress of '{transactional_id}' ({at})")


def _marker(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[str, Any] | None:
    markers = [marker for given in committed.values() if (marker := BatchMarker.from_metadata(given.metadata))]
    if not markers:
        return None
    last = max(markers, key=lambda marker: marker.batch_id)
    return {"query_id": last.query_id, "batch_id": last.batch_id, "offsets_hash": last.offsets_hash}


def _transaction(admin: Admin, transactional_id: str) -> dict[str, Any] | None:
    try:
        found = admin.describe_transactions([transactional_id])[transactional_id]
    except KafkaError as error:
        if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise
    is_open = found.state in _OPEN and found.started_ms >= 0
    return {
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "open_ms": int(time.time() * 1000) - found.started_ms if is_open else None,
        "partitions": [str(place) for place in found.partitions],
    }


def _sources(admin: Admin, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> list[dict[str, Any]]:
    latest: dict[PartitionLike, int] = dict.fromkeys(committed, _LATEST)
    ends = admin.list_offsets(latest, isolation_level=_READ_COMMITTED) if latest else {}
    return [
        {
            "topic": place.topic,
            "partition": place.partition,
            "committed": committed[place].offset,
            "last_stable_offset": ends[place].offset,
            "behind": max(0, ends[place].offset - committed[place].offset),
        }
        for place in sorted(committed, key=lambda place: (place.topic, place.partition))
    ]


def _tell(found: Mapping[str, Any]) -> None:
    name, marker, transaction = found["transactional_id"], found["marker"], found["transaction"]
    if marker is None:
        click.echo(f"'{name}' has committed no micro-batch here")
    else:
        click.echo(f"'{name}' has committed batch {marker['batch_id']} of query {marker['query_id']}")
    if transaction is None:
        click.echo("its transactional id is not known to the coordinator")
    elif transaction["open_ms"] is None:
        click.echo(f"no transaction is open ({transaction['state']})")
    else:
        click.echo(
            f"a transaction is open: {transaction['state']} for {duration(transaction['open_ms'])} of at most "
            f"{duration(transaction['timeout_ms'])}, writing {', '.join(transaction['partitions']) or 'nothing yet'}"
        )
    if others := found["offsets_of_others"]:
        click.echo(
            f"another program has committed offsets in the group of this name ({', '.join(others)}): a consumer with "
            "this group.id? It overwrites the pipeline's progress: give it a group of its own"
        )
    if found["sources_elsewhere"]:
        click.echo("its sources are not on this cluster: the query's checkpoint says how far they were read")
    if found["sources"]:
        click.echo()
        columns = ("topic", "partition", "committed", "last_stable_offset", "behind")
        show(found["sources"], columns, as_json=False)
